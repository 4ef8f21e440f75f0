"""How long do transactions with etcd take? All of them for Prometheus, the latest for people."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ckpt.base.errors import Unavailable
from ckptd.http.exposition import Histogram

BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 3.0, 10.0)
SILENT_S: Final = 1.0
"""etcd counts as silent when nothing is heard of it for so long."""
LATEST_S: Final = 300.0
LATEST_COUNT: Final = 1000
FEW: Final = 20
"""Fewer measurements say nothing about the slowest percent."""


class TransactionTimes:
    """I collect the durations of transactions, in seconds."""

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS_S)
        self.unanswered = ""
        """Why the transaction on its way has had no answer for SILENT_S; empty while none lacks it.
        """
        self.written_bytes = 0
        """Of the keys and values that were stored."""
        #: (when it ended, how long it took), by the monotonic clock.
        self._latest: deque[tuple[float, float]] = deque(maxlen=LATEST_COUNT)

    @contextmanager
    def waiting(self) -> Iterator[Callable[[Unavailable], None]]:
        """While one is on its way; what that gives hears of each time that it was not answered."""
        clock = asyncio.get_running_loop().time
        began_s = clock()

        def failed(error: Unavailable) -> None:
            if clock() - began_s >= SILENT_S:
                self.unanswered = error.message

        try:
            yield failed
        finally:
            self.unanswered = ""

    def took(self, seconds: float, now_s: float | None = None) -> None:
        """Add the duration of one that was answered."""
        self.histogram.observe(seconds)
        self._latest.append((time.monotonic() if now_s is None else now_s, seconds))

    def percentile(self, percent: int, now_s: float | None = None) -> float:
        """Of the latest minutes, in seconds; 0 where there were few."""
        since_s = (time.monotonic() if now_s is None else now_s) - LATEST_S
        while self._latest and self._latest[0][0] < since_s:
            self._latest.popleft()
        if len(self._latest) < FEW:
            return 0.0
        seconds = sorted(took for _, took in self._latest)
        return seconds[min(len(seconds) - 1, len(seconds) * percent // 100)]
