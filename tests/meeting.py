"""What one of a run's workers starts for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import pytest


def meeting_of(factory: pytest.TempPathFactory) -> Path:
    """The folder in which all workers of this run meet; without workers this process's own."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def shared(
    meeting: Path, name: str, start: Callable[[], AbstractContextManager[str]]
) -> Iterator[str]:
    """What the first of all who meet in this folder has started, in its own words. It stays until
    the others have gone, each of whom holds a shared lock meanwhile.
    """
    words = meeting / f"{name}.words"
    with (
        (meeting / f"{name}.start").open("w") as starting,
        (meeting / f"{name}.users").open("w") as users,
        ExitStack() as mine,
    ):
        with _locked(starting):
            fcntl.flock(users, fcntl.LOCK_SH)
            if not words.exists():
                words.write_text(mine.enter_context(start()))
                mine.callback(_wait_for_others, words, starting, users)
        try:
            yield words.read_text()
        finally:
            # By name: a child that was forked meanwhile may hold the file open.
            fcntl.flock(users, fcntl.LOCK_UN)


def _wait_for_others(words: Path, starting: TextIO, users: TextIO) -> None:
    with _locked(starting):
        words.unlink()
    fcntl.flock(users, fcntl.LOCK_EX)


@contextmanager
def _locked(file: TextIO) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
