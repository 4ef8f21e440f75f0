"""A warning names the line of whoever called us, not one of ours."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

import ckpt_client.warn
from ckpt_client.url import default_code
from ckpt_client.warn import warn


def test_a_warning_names_the_caller_s_file_however_deep_its_cause_is() -> None:
    with pytest.warns(UserWarning, match="no redundancy") as found:
        default_code(1)
    assert [Path(one.filename) for one in found] == [Path(__file__)]


def test_in_a_thread_of_ours_it_names_the_outermost_line_there_is() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn, args=("beside the training",))
        thread.start()
        thread.join()
    (one,) = found
    assert str(one.message) == "beside the training"
    assert Path(one.filename).name != Path(ckpt_client.warn.__file__).name


def test_what_could_redraw_a_terminal_is_escaped() -> None:
    with pytest.warns(UserWarning, match=r"step \\u202e1"):
        warn("step \u202e1")
