"""A process to which the system gives no thread, as in a container whose `pids.max` is reached."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TOO_LARGE: Final = 1 << 46
"""No machine gives a stack of this size."""
SAYS: Final = r"can't start new thread.*pids\.max"


@contextmanager
def no_threads() -> Iterator[None]:
    before = threading.stack_size(TOO_LARGE)
    try:
        yield
    finally:
        threading.stack_size(before)
