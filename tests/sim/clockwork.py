"""Virtual time: a heap of things to do, and one random generator. Equal seeds run equally.

A campaign runs thousands of histories of a few thousand steps each, so a step's own cost counts:
entries are tuples, which the heap compares without a call, and a condition is asked again only
after something that it may hang on has changed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

Action = Callable[..., object]
STEPS_MAX = 100_000
"""Fifty times what a history takes: nobody may answer another for ever."""


class Clockwork:
    """I run actions in time order; ties run in the order in which they were asked for."""

    __slots__ = ("_count", "_heap", "changed", "now_us", "random", "rng", "steps", "steps_max")

    def __init__(self, seed: int, steps_max: int = STEPS_MAX) -> None:
        self.steps_max = steps_max
        self.rng = random.Random(seed)
        self.random = self.rng.random
        self.now_us = 50_000_000_000
        #: (when, order, action, its arguments); the order is unique, so no more is compared.
        self._heap: list[tuple[int, int, Action, tuple[object, ...]]] = []
        self._count = 0
        self.steps = 0
        self.changed = True
        """Coordinator, ranks and readers raise this: conditions look at nothing else."""

    def after(self, delay_us: int, action: Action, *arguments: object) -> None:
        """Run `action` so many microseconds from now."""
        self._count += 1
        at_us = self.now_us + delay_us if delay_us > 0 else self.now_us
        heapq.heappush(self._heap, (at_us, self._count, action, arguments))

    def at(self, at_us: int, action: Action, *arguments: object) -> None:
        """Run `action` at a time that is not past."""
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, action, arguments))

    def between(self, low: int, high: int) -> int:
        """A whole number of low .. high, both inclusive; cheaper than `rng.randint`."""
        return low + int(self.random() * (high - low + 1))

    def run(self, until: Callable[[], bool], limit_us: int) -> bool:
        """Run until the condition holds (True) or virtual time passes the limit (False)."""
        end_us = self.now_us + limit_us
        heap, pop = self._heap, heapq.heappop
        self.changed = True
        while heap:
            if self.changed:
                self.changed = False
                if until():
                    return True
                if self.steps > self.steps_max:
                    raise AssertionError(f"P4: no end after {self.steps_max} steps")
            if heap[0][0] > end_us:
                self.now_us = end_us
                return False
            self.now_us, _, action, arguments = pop(heap)
            self.steps += 1
            action(*arguments)
        return until()

    def pass_time(self, span_us: int) -> None:
        """Run everything that is due within the span."""
        self.run(_never, span_us)


def _never() -> bool:
    return False
