"""What a job sees of a cluster whose catalog was harmed, and how a person mends it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.client import clikit
from tests.e2e.states import form_of

NAME = "catalog.sqlite"
WAIT_S = 60.0


def state(step: int) -> dict[str, object]:
    return {"a": np.random.default_rng(step).integers(0, 255, 100_000, "u1")}


def refusal(url: str) -> str:
    """What a job hears that begins now; it must not hear that there is nothing, or less."""
    try:
        with ckpt.open(url) as store:
            newest = store.latest("run")
    except ckpt.CkptError as error:
        return str(error)
    pytest.fail(f"the newest step is said to be {newest}")


def command_in(text: str) -> str:
    """That an error names, at its end."""
    _, marker, line = text.partition("run: ")
    assert marker, f"no command in: {text}"
    return line


def run_line(line: str) -> None:
    """As a person types it."""
    ended = clikit.run_line(line, dict(os.environ))
    assert ended.code == 0, f"{line}: {ended.out}{ended.err}"


def check_all_is_there(url: str, *steps: int) -> None:
    """Everything loads, and what is saved next has a generation above all of it."""
    with ckpt.open(url) as store:
        assert store.latest("run") == steps[-1]
        for step in steps:
            assert form_of(store.load("run", step=step)) == form_of(state(step))
        generations = [commit.generation for commit in store.steps("run")]
        store.save("run", steps[-1] + 1, state(0)).wait(WAIT_S)
        (new,) = {commit.generation for commit in store.steps("run")} - set(generations)
        assert new.term > max(generation.term for generation in generations)


def remove(directory: Path) -> None:
    for file in directory.glob(f"{NAME}*"):
        file.unlink()
