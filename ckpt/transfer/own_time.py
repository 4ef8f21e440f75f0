"""How much time of this thread was its own: at work, or waiting for a processor.

Whoever judges peers by how long they let it wait must not charge them that. A thread that is busy
or starved finds bytes late that came in time.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds runnable without one, and how often."""


class OwnTime:
    """Belongs to one thread, which asks me now and then."""

    def __init__(self, now_us: int) -> None:
        self._asked_us = now_us
        self._waited_us = 0
        self._starved_us = _starved_us()

    def since_last(self, now_us: int, waited_us: int) -> int:
        """Microseconds since the last call in which this thread did not wait for others.

        waited_us: for how long it has done so, in all.
        """
        span_us, self._asked_us = now_us - self._asked_us, now_us
        waited, self._waited_us = waited_us - self._waited_us, waited_us
        before, self._starved_us = self._starved_us, _starved_us()
        starved = self._starved_us - before
        return min(span_us, max(0, span_us - waited) + starved)


def _starved_us() -> int:
    """How long this thread was runnable without a processor; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(_SCHEDSTAT.read_bytes().split()[1]) // 1000
    return 0
