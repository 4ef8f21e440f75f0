"""A stager holds what was saved: nothing that only speaks of it may end it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_client.local import detach
from tests.waiting import wait_until

SAYS = """
from ckpt_client.stager.log import log
log("warning", "no session", why="gone")
log("warning", "no session", why="still gone")
"""


def test_a_line_that_finds_a_full_disk_is_lost_and_ends_nothing() -> None:
    with Path("/dev/full").open("wb") as full:
        assert (
            subprocess.run([sys.executable, "-c", SAYS], stderr=full, check=False).returncode == 0
        )


def test_a_line_says_what_and_why(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        subprocess.run([sys.executable, "-c", SAYS], stderr=file, check=True)
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["level"], first["text"], first["why"]) == ("warning", "no session", "gone")
    assert second["why"] == "still gone"


def test_a_log_that_the_stagers_of_years_have_filled_is_put_aside_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detach, "LOG_BYTES_MAX", 10)
    log, old = tmp_path / "stager-0.log", tmp_path / "stager-0.old.log"
    old.write_text("the one before")
    for written in ("", "as it was\n", "what many stagers have said\n"):
        log.write_text(written)
        begun = detach.start_detached(["-c", "print('new')"], log=log)
        wait_until(lambda: "new\n" in log.read_text(), "it has written", poll_s=0.01)
        assert begun > 0
    assert old.read_text() == "what many stagers have said\n"
    assert log.read_text() == "new\n"
