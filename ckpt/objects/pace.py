"""How fast may bytes leave: a cap of bandwidth, stepping aside for a burst of saves, and an end.

A token bucket without memory of idle time: what was not used for more than a second is gone. The
rate may change at any time, also for who waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Aborted

POLL_S: Final = 0.2
"""How soon a thread that waits notices a change."""
IDLE_CREDIT_S: Final = 1.0


def never() -> bool:
    """A condition that never holds: nothing stops or slows the writer."""
    return False


@dataclass(slots=True)
class WritePace:
    """Shared by all threads that write. `wait_turn` is called before bytes are moved."""

    bytes_per_s: float | None = None
    """Bytes a second; None: as fast as it goes. Anybody may change it."""
    is_burst: Callable[[], bool] = never
    """Asked often: while it says yes, nothing more is moved."""
    is_stopped: Callable[[], bool] = never
    """Once it says yes, writers end, also while they read, and abort what they began."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: All bytes that were asked for; how many of them, or ahead of them, the rate has let pass, and
    #: until when.
    _asked: float = 0.0
    _passed: float = 0.0
    _settled_s: float = -math.inf

    def check_stopped(self) -> None:
        """Raises Aborted when everything is to end."""
        if self.is_stopped():
            raise Aborted("writing was stopped", hint="the next writer goes on from here")

    def wait_turn(self, byte_count: int) -> None:
        """Wait until so many bytes may be moved. Raises Aborted when everything is to end."""
        while not self.is_stopped() and self.is_burst():
            self.sleep(POLL_S)
        with self._lock:
            turn = self._asked
            rest_s = self._rest_s(turn)
            self._asked += byte_count
        while rest_s > 0 and not self.is_stopped():
            self.sleep(min(rest_s, POLL_S))
            with self._lock:
                rest_s = self._rest_s(turn)
        self.check_stopped()

    def _rest_s(self, turn: float) -> float:
        """Until all bytes ahead of this turn were due; under the lock."""
        rate, now_s = self.bytes_per_s, self.clock()
        if rate is None:
            self._passed = max(self._passed, turn)
        else:
            passed = self._passed + rate * (now_s - self._settled_s)
            self._passed = min(passed, self._asked + rate * IDLE_CREDIT_S)
        self._settled_s = now_s
        left = turn - self._passed
        # Less than a byte is what rounding leaves.
        return left / rate if rate is not None and left >= 1 else 0.0
