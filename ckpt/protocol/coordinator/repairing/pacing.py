"""How fast may a payload be made again, so that saves and loads hardly notice?

    nobody saves or loads   each target gives repair its cap
    somebody does           its floor; URGENT times that where the payload can lose no more

A target's budget is parted among the tasks that read from it or write to it. A worker reads k
columns at once and writes lost ones as fast as these come: so a payload goes at k times the least
share that one of its targets gives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from ckpt.base.ids import TargetId
from ckpt.base.units import MiB
from ckpt.format.messages.repairs import NO_CAP, RepairLimits, RepairPace

URGENT: Final = 4
"""Factor for a payload that can lose no more columns: its repair matters more than a slower
save.
"""
RENEW_FAST_US: Final = 250_000
"""How often a worker asks that goes faster than its floor: half a second after a save has begun it
is down there.
"""
RENEW_US: Final = 1_000_000
UNKNOWN_BYTES_PER_S: Final = float(64 * MiB)
"""Without a cap, before anything was measured."""


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """What one payload in hand asks of whom."""

    targets: frozenset[TargetId]
    """All that it may read from, and those that it writes to."""
    k: int


NO_LOAD: Final = TaskLoad(frozenset(), 0)


class TaskCounts:
    """I know how many payloads in hand use each target. My owner says what begins and ends."""

    def __init__(self) -> None:
        self._counts: Counter[TargetId] = Counter()

    def begin(self, load: TaskLoad) -> None:
        self._counts.update(load.targets)

    def end(self, load: TaskLoad) -> None:
        """As it was begun."""
        self._counts.subtract(load.targets)
        for target in load.targets:
            if not self._counts[target]:
                del self._counts[target]

    def most(self, load: TaskLoad) -> int:
        """Of its targets, at the one that most use."""
        return max((self._counts[target] for target in load.targets), default=1)


def paced(
    load: TaskLoad, most: int, limits: RepairLimits, *, is_busy: bool, is_urgent: bool
) -> RepairPace:
    """The pace that a worker gets. `most`: so many payloads share one of its targets."""
    budget = _budget(limits, is_busy=is_busy, is_urgent=is_urgent)
    renew_us = RENEW_US if budget == limits.floor_bytes else RENEW_FAST_US
    if budget == NO_CAP:
        return RepairPace(NO_CAP, renew_us)
    return RepairPace(max(1, load.k * budget // max(1, most)), renew_us)


def most_beside_others(limits: RepairLimits) -> int:
    """What a target gives while somebody saves or loads, for whatever payloads."""
    return _budget(limits, is_busy=True, is_urgent=True)


def expected_bytes_per_s(limits: RepairLimits, measured: float, targets: int, k: int) -> float:
    """Bytes of lost columns that may be made again in a second, at most: what the cap of so many
    targets allows, as each byte is made of k that are read and one that is written; and twice what
    was measured, once something was.
    """
    rates = [2 * measured] if measured > 0 else []
    if limits.cap_bytes != NO_CAP:
        rates.append(limits.cap_bytes * targets / (k + 1))
    return min(rates, default=UNKNOWN_BYTES_PER_S)


def _budget(limits: RepairLimits, *, is_busy: bool, is_urgent: bool) -> int:
    """Of one target."""
    if not is_busy:
        return limits.cap_bytes
    if not is_urgent:
        return limits.floor_bytes
    more = URGENT * limits.floor_bytes
    return more if limits.cap_bytes == NO_CAP else min(more, limits.cap_bytes)
