"""How often does Python look for garbage that refers to itself, while a state of many tensors is
taken apart or put together, and at a process's end?

What is made for each tensor is in no cycle; to look through it again and again, as it grows, took a
third to a half of the CPU time of a state of 100,000 tensors. At its end Python looks three times
through all that was imported: a seventh of what a short `ckpt` command took.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS_MAX: Final = 20_000
"""Python's own is 700. So many containers in cycles take some megabytes."""


def collect_rarely() -> None:
    """Let Python's collector run rarely in this process, which is one of ours."""
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])


def end_uncollected() -> None:
    """Let Python look for no garbage at this process's end. Only a program's main calls this."""
    atexit.register(gc.freeze)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector in the caller's process for as long as it takes to make the objects."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
