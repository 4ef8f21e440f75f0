"""How fast are lost columns made again, and when will that be done?

The rate is a mean over the time in which somebody had something in hand; what lies further back
counts less, by half each HALF_S. It is never above what is allowed now, which it would come down to
only in minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.format.messages.repairs import NO_CAP, RepairLimits
from ckpt.protocol.coordinator.repairing.pacing import TaskCounts, paced
from ckpt.protocol.coordinator.repairing.task import RepairTask

HALF_S: Final = 60.0
ENOUGH_S: Final = 0.5
"""A shorter time says nothing but chance."""


class RepairRate:
    """I count bytes, and the time that they took."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0
        #: Up to when time has been counted; None before the first.
        self._seen_us: int | None = None
        #: What is in hand makes no more while it has the cap for itself.
        self._allowed = math.inf

    def passed(self, now_us: int, *, is_working: bool) -> None:
        """Count the time until now, in which nothing, or something, was in hand."""
        seen_us, self._seen_us = self._seen_us, now_us
        if not is_working or seen_us is None:
            return
        seconds = (now_us - seen_us) / US_PER_S
        kept: float = 0.5 ** (seconds / HALF_S)
        self._bytes *= kept
        self._seconds = self._seconds * kept + seconds

    def allow(self, tasks: Sequence[RepairTask], limits: RepairLimits) -> None:
        """Note what is in hand, and what limits it when nobody saves or loads."""
        shares = TaskCounts()
        for task in tasks:
            shares.begin(task.load)
        if limits.cap_bytes == NO_CAP or not tasks:
            self._allowed = math.inf
            return
        self._allowed = sum(
            _pace(task, shares.most(task.load), limits) * len(task.lost) / task.reads
            for task in tasks
        )

    def made(self, count: float) -> None:
        """So many bytes of lost columns follow from what was read."""
        self._bytes += count

    @property
    def bytes_per_s(self) -> float:
        """0 while nothing is known."""
        measured = self._bytes / self._seconds if self._seconds >= ENOUGH_S else 0.0
        return min(measured, self._allowed)

    def left_s(self, bytes_left: float) -> float | None:
        """Until so much is made; None while nobody can say."""
        rate = self.bytes_per_s
        return bytes_left / rate if rate > 0 else None


def _pace(task: RepairTask, most: int, limits: RepairLimits) -> int:
    return paced(task.load, most, limits, is_busy=False, is_urgent=False).bytes_per_s
