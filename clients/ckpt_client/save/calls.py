"""Has the call that a thread was in come to its end?

torch writes a tensor first and counts up its version last, without the GIL: who compares versions
while that runs finds nothing changed. So whoever compares lets the call return before.

    the thread stands elsewhere in its code    it has returned
    it asked for that comparison, and waits    it is in no such call
    it sleeps, for QUIET_S                     it waits for something else, and writes nothing
    else                                       asked again, for PATIENCE_S at most
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

POLL_S: Final = 0.001
QUIET_S: Final = 0.02
"""More than threads that share a call's work wait for each other."""
PATIENCE_S: Final = 2.0
"""Longer than any change of a state in one call."""


def let_return(thread: threading.Thread, is_waiting: Callable[[], bool]) -> None:
    """Wait until the call that `thread` is in at this moment is over, or writes nothing.

    is_waiting: whether it waits for who calls this.
    """
    began = slept = time.monotonic()
    place = _place_of(thread)
    while not is_waiting() and place is not None and place == _place_of(thread):
        now = time.monotonic()
        if not _sleeps(thread):
            slept = now
        if now - slept >= QUIET_S or now - began >= PATIENCE_S:
            return
        time.sleep(POLL_S)


def _place_of(thread: threading.Thread) -> tuple[int, int] | None:
    """Where in its code it is; None of a thread that has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return None if frame is None else (id(frame), frame.f_lasti)


def _sleeps(thread: threading.Thread) -> bool:
    """Where the system does not say so, it is taken to."""
    try:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_bytes()
    except OSError:
        return True
    # After the name, which may hold spaces and brackets.
    return stat.rpartition(b")")[2].split()[0] != b"R"
