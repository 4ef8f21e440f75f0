"""A thread of ours, where the system may have none left to give: a container's `pids.max` counts
the threads of all its processes.
"""

from __future__ import annotations

import _thread
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ckpt.base.system_errors import system_error

NO_THREAD: Final = "can't start new thread"
"""As CPython says it."""


def start_thread(thread: threading.Thread) -> None:
    """Let it run. Raises Scarce. Whoever owns it notes it before: a Ctrl-C may come from here."""
    with thread_found(thread.name):
        thread.start()


@contextmanager
def thread_found(name: str) -> Iterator[None]:
    """For what starts threads by itself. Raises Scarce where the system has none left."""
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):  # As it also says at the interpreter's end.
            raise
        refused = OSError(errno.EAGAIN, str(error))
        raise system_error(f"{name} cannot run", refused) from None


def run_beside(work: Callable[[], None]) -> None:
    """Do it on a thread that nobody waits for, not even the interpreter's end; at once, in the
    caller's, where the system has none left.

    A plain one: a `Thread` is waited for until it runs, for milliseconds while other ranks copy.
    """
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:  # As CPython says it.
        work()
