"""How long this target takes for what it is given: its own service time, whoever waits.

A sender compares it with what its other targets say (`ckpt.protocol.writer.lateness`). Time in a
queue is not in it (`ckpt.protocol.service_time`). A write is charged from the end of whatever ended
before it, so that a device which has reads and files to make as well is not called slow; a step of
a seal from the end of the step before it, or of what the device was given before, so that one that
waits for its turn is not slow, and a sync that hangs shows although later writes go on.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.units import MiB
from ckpt.format.messages.writing import TargetPace
from ckpt.protocol.service_time import (
    BUSY_US_MIN,
    MEMORY_US,
    WRITE_BYTES_MIN,
    ServiceTime,
)

StepHeard = Callable[[int], None]
"""Hears the operation number of a step of a chain."""


class Pace:
    """I measure writes and the steps of seals apart: a device may do one well and not the other."""

    def __init__(self) -> None:
        self._writes = ServiceTime(unit=MiB)
        self._seal_steps = ServiceTime(unit=1)
        #: Numbers of the steps of seals that are under way, the oldest first.
        self._sealing: dict[int, None] = {}
        #: The step that the device began with nothing else to do, and when; None: none is open.
        self._alone: tuple[int, int] | None = None
        #: What such steps took lately; 0 before any.
        self._alone_us = 0
        self._faded_us = 0

    def write_began(self, now_us: int) -> None:
        """Note that a fragment goes to the device."""
        self._writes.began(now_us)

    def write_ended(self, now_us: int, size: int) -> None:
        """Note that it is written."""
        self._writes.ended(now_us, max(size, WRITE_BYTES_MIN))

    def seal_step_began(self, now_us: int, op: int) -> None:
        """Note that one operation of a seal begins."""
        self._seal_steps.began(now_us)
        self._sealing[op] = None

    def seal_step_ended(self, now_us: int, op: int) -> None:
        """Note that it is answered."""
        self._seal_steps.ended(now_us, 1)
        del self._sealing[op]

    def step_began(self, now_us: int, op: int, open_count: int) -> None:
        """Note that a step of any chain begins, beside so many other operations."""
        if not open_count:
            self._alone = op, now_us

    def disk_answered(self, now_us: int, op: int) -> None:
        """Whatever it was: until now the device was not busy with a write, nor with a step that it
        was given later.
        """
        self._writes.worked_elsewhere(now_us)
        if self._sealing and op < next(iter(self._sealing)):
            self._seal_steps.worked_elsewhere(now_us)
        if self._alone is not None and self._alone[0] == op:
            took_us = now_us - self._alone[1]
            self._alone = None
            self._alone_us += (took_us - self._alone_us) // 4 if self._alone_us else took_us

    def excuse(self, gap_us: int) -> None:
        """Excuse a time in which this process stood still, and may not have heard the device."""
        self._writes.excuse(gap_us)
        self._seal_steps.excuse(gap_us)
        self._alone = None

    def ticked(self, now_us: int) -> None:
        """Forget old measurements slowly."""
        if now_us - self._faded_us >= MEMORY_US:
            self._faded_us = now_us
            self._writes.fade()
            self._seal_steps.fade()

    def told(self, now_us: int, waiting_count: int) -> TargetPace | None:
        """The pace as senders get it; None while there is nothing to report."""
        write_us, seal_us = self._writes.unit_us(now_us), self._seal_steps.unit_us(now_us)
        under_way = (each.still_us(now_us) for each in (self._writes, self._seal_steps))
        still_us = min((us for us in under_way if us is not None), default=0)
        if still_us < BUSY_US_MIN:
            still_us = 0
        if not write_us and not seal_us and not waiting_count and not still_us:
            return None
        return TargetPace(write_us, seal_us, waiting_count, still_us, self._alone_us)
