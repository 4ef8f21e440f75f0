"""Virtual time: a heap of things to do, and one random generator. Equal seeds run equally."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(order=True, slots=True)
class _Entry:
    at_us: int
    order: int
    action: Callable[[], None] = field(compare=False)


class Clockwork:
    """I run actions in time order; ties run in the order in which they were asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_us = 50_000_000_000
        self._heap: list[_Entry] = []
        self._count = 0
        self.steps = 0

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Run `action` so many microseconds from now."""
        self._count += 1
        heapq.heappush(self._heap, _Entry(self.now_us + max(0, delay_us), self._count, action))

    def run(self, until: Callable[[], bool], limit_us: int) -> bool:
        """Run until the condition holds (True) or virtual time passes the limit (False)."""
        end_us = self.now_us + limit_us
        while self._heap and not until():
            if self._heap[0].at_us > end_us:
                self.now_us = end_us
                return until()
            entry = heapq.heappop(self._heap)
            self.now_us = max(self.now_us, entry.at_us)
            self.steps += 1
            entry.action()
        return until()
