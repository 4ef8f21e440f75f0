"""The chance that a group loses data, tried out: every target by itself, year after year.

The same assumptions as the chain's (group.py), and nothing of its states: each target and each
domain has its own next event, drawn from the stream of numbers that the caller gives. Where losses
are rare so are results: trials prove the model where both can be had.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ckpt.plan.durability.group import WHOLE, Hazards, PlacementGroup

Draw = Callable[[], float]
"""The next number of a stream, from 0 on and below 1, all equally likely."""

Z_95: Final = 1.959963984540054
"""95% of the normal distribution lie within so many standard deviations."""


class Tried(Struct, frozen=True, gc=False):
    """What came of trials."""

    trials: int
    losses: int

    @property
    def chance(self) -> float:
        return self.losses / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the chance, both ends within it (Wilson, "Probable Inference, the Law
        of Succession, and Statistical Inference", 1927): right also where few or none were lost.
        """
        square = Z_95**2
        middle = (self.losses + square / 2) / (self.trials + square)
        spread = self.chance * (1 - self.chance) / self.trials + square / (4 * self.trials**2)
        half = Z_95 * math.sqrt(spread) / (1 + square / self.trials)
        # At an end they cancel but for a last digit.
        least = middle - half if self.losses else 0.0
        most = middle + half if self.losses < self.trials else 1.0
        return least, most


def tried(
    group: PlacementGroup, hazards: Hazards, trials: int, draw: Draw, years: float = 1.0
) -> Tried:
    """How many of so many groups lose data within `years`."""
    losses = sum(_History(group, hazards, draw, years).loses_data() for _ in range(trials))
    return Tried(trials, losses)


class _History:
    """I live through one group's years."""

    def __init__(self, group: PlacementGroup, hazards: Hazards, draw: Draw, years: float) -> None:
        self._years = years
        self._loss_max = group.loss_max
        self._group = group
        self._hazards = hazards
        self._draw = draw
        #: (when, domain, target in it or WHOLE): the next thing that befalls each within the years.
        self._events: list[tuple[float, int, int]] = []
        #: By domain, its targets that are lost, each by itself.
        self._lost: list[set[int]] = [set() for _ in range(group.domains)]
        #: Domains that are lost as a whole; what their targets had lost before is part of it.
        self._whole: set[int] = set()
        for domain in range(group.domains):
            self._next(0.0, domain, WHOLE, hazards.domain_losses)
            for target in range(group.domain_targets):
                self._next(0.0, domain, target, hazards.target_losses)

    def loses_data(self) -> bool:
        while self._events:
            now, domain, target = heapq.heappop(self._events)
            taken = self._whole_event if target == WHOLE else self._target_event
            if taken(now, domain, target):
                return True
        return False

    def _target_event(self, now: float, domain: int, target: int) -> bool:
        lost, hazards = self._lost[domain], self._hazards
        if target in lost:
            lost.remove(target)
        elif domain not in self._whole:
            lost.add(target)
            if not self._is_beyond():
                self._next(now, domain, target, 1 / hazards.target_return)
                return False
            if self._is_deadly():
                return True
            lost.remove(target)
        self._next(now, domain, target, hazards.target_losses)
        return False

    def _whole_event(self, now: float, domain: int, _target: int) -> bool:
        hazards = self._hazards
        if domain in self._whole:
            self._whole.remove(domain)
        else:
            self._whole.add(domain)
            if not self._is_beyond():
                self._forget_targets(now, domain)
                self._next(now, domain, WHOLE, 1 / hazards.domain_return)
                return False
            if self._is_deadly():
                return True
            self._whole.remove(domain)
        self._next(now, domain, WHOLE, hazards.domain_losses)
        return False

    def _forget_targets(self, now: float, domain: int) -> None:
        """What they lost is the domain's now: they have no return of their own any more."""
        gone, self._lost[domain] = self._lost[domain], set()
        kept = [one for one in self._events if one[1] != domain or one[2] not in gone]
        self._events = kept
        heapq.heapify(self._events)
        for target in sorted(gone):
            self._next(now, domain, target, self._hazards.target_losses)

    def _state(self) -> list[int]:
        return [
            WHOLE if domain in self._whole else len(lost)
            for domain, lost in enumerate(self._lost)
            if lost or domain in self._whole
        ]

    def _is_beyond(self) -> bool:
        return sum(map(self._group.weight, self._state())) > self._loss_max

    def _is_deadly(self) -> bool:
        return self._draw() < self._group.deadly(self._state())

    def _next(self, now: float, domain: int, target: int, rate: float) -> None:
        if rate > 0:
            when = now - math.log1p(-self._draw()) / rate
            if when <= self._years:
                heapq.heappush(self._events, (when, domain, target))
