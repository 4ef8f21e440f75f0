"""How fast may bytes leave: a cap of bandwidth, stepping aside for a burst of saves, and an end.

A token bucket without memory of idle time: what was not used for more than a second is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Aborted

BURST_POLL_S: Final = 0.2
IDLE_CREDIT_S: Final = 1.0


def never() -> bool:
    """Nobody is in a hurry."""
    return False


@dataclass(slots=True)
class WritePace:
    """Shared by all threads that write. `wait_turn` is called before bytes are moved."""

    bytes_per_s: float | None = None
    """None: as fast as it goes."""
    is_burst: Callable[[], bool] = never
    """Asked often: while it says yes, nothing more is moved."""
    is_stopped: Callable[[], bool] = never
    """Once it says yes, writers end, also while they read, and abort what they began."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: When all bytes so far were due.
    _due_s: float = 0.0

    def check_stopped(self) -> None:
        """Raises Aborted when all is to end."""
        if self.is_stopped():
            raise Aborted("writing was stopped", hint="the next writer goes on from here")

    def wait_turn(self, byte_count: int) -> None:
        """Return when so many bytes may be moved. Raises Aborted when all is to end."""
        while not self.is_stopped() and self.is_burst():
            self.sleep(BURST_POLL_S)
        self.check_stopped()
        if self.bytes_per_s is None:
            return
        with self._lock:
            now_s = self.clock()
            self._due_s = max(self._due_s, now_s - IDLE_CREDIT_S)
            rest_s = self._due_s - now_s
            self._due_s += byte_count / self.bytes_per_s
        if rest_s > 0:
            self.sleep(rest_s)
