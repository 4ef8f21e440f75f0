"""Which checkpoint a path of Lightning's means."""

from __future__ import annotations

import pytest

import ckpt
from ckpt_torch.lightning import CkptIO


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out/epoch=1-step=300.ckpt", "run/300"),
        ("out/step-7.ckpt", "run/7"),
        ("out/42", "run/42"),
        ("out/last.ckpt", "run"),
        ("out/last-v1.ckpt", "run"),
        ("out/epoch-last.ckpt", "run"),
        ("run", "run"),
    ],
)
def test_a_path_names_a_step_or_the_newest(path: str, name: str) -> None:
    assert CkptIO("run").name_of(path) == name


@pytest.mark.parametrize("path", ["out/best.ckpt", "out/blast.ckpt", "out/lasting.ckpt"])
def test_a_path_that_names_neither_is_refused(path: str) -> None:
    with pytest.raises(ckpt.Refused, match="names no step"):
        CkptIO("run").name_of(path)
