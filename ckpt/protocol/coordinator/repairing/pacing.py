"""How fast may a payload be made again, so that saves and loads hardly notice?

    nobody saves or loads   each target gives repair its cap
    somebody does           its floor; URGENT times that where the payload can lose no more

A target's budget is parted among the tasks that read from it or write to it. A worker reads k
columns at once and writes lost ones as fast as these come: so a payload goes at k times the least
share that one of its targets gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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


def paced(
    load: TaskLoad,
    all_loads: Iterable[TaskLoad],
    limits: RepairLimits,
    *,
    is_busy: bool,
    is_urgent: bool,
) -> RepairPace:
    """The pace that a worker gets. `all_loads`: of all tasks, its own among them."""
    budget = _budget(limits, is_busy=is_busy, is_urgent=is_urgent)
    renew_us = RENEW_US if budget == limits.floor_bytes else RENEW_FAST_US
    if budget == NO_CAP:
        return RepairPace(NO_CAP, renew_us)
    tasks = Counter(target for each in all_loads for target in each.targets)
    most = max((tasks[target] for target in load.targets), default=1)
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
