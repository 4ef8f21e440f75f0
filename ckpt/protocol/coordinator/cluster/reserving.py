"""Is a target late to reserve space, or has it only much to do?

    answers about as fast as the others, queues aside     busy: it is asked again
    silent for at most WAIT_FACTOR times as long as       busy: all disks are slow, or full of work,
    most others took lately, or have been silent by now   and so is its own
    its disk has ended nothing for STILL_US               late, whatever the others do

Of a queue the service time says nothing, and of what else the disk has to do neither: where each
operation takes a fifth of a second, or a sync takes seconds, a target may end no reservation for
seconds while it does what it was given before. So the others' waits count as well, for whatever a
disk has to do: the longest, since some are lucky. A target that is slow or hangs among fast ones is
known by both. A process that stands still loses its lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ckpt.base.ids import ReservationId
from ckpt.base.units import US_PER_S
from ckpt.protocol.service_time import ServiceTime

GOOD_US: Final = 250_000
"""A target that reserves within this is not passed over as slow."""
FACTOR: Final = 8
"""Nor is one that takes less than so many times what the others take."""
WAIT_FACTOR: Final = 4
"""Nor one that is silent for less than so many times as long as most others."""
FADE: Final = 32
"""The longest wait loses one part in so many each second, half of it in 22 s."""
STILL_US: Final = 60 * US_PER_S
"""A disk that ends nothing at all for so long hangs, even if all others do as well."""
WORK: Final = ("fragments", "columns_sealed", "documents_stored")
"""Counters that only a disk that works moves."""


class Reserving:
    """I am one target's reservations on one session."""

    def __init__(self) -> None:
        self._service = ServiceTime(unit=1)
        #: When each was asked that has no answer; the oldest first.
        self._asked_us: dict[ReservationId, int] = {}
        #: The longest that an answer took which waited for the disk, queues included; it fades.
        self._longest_us = 0
        #: When the disk was last seen to have ended something; and that it has not for STILL_US.
        self._worked_us = 0
        self._is_still = False
        self._work = 0

    def asked(self, now_us: int, reservation: ReservationId) -> None:
        """Note that it is asked for one."""
        self._service.began(now_us)
        self._asked_us[reservation] = now_us

    def answered(self, now_us: int, reservation: ReservationId) -> None:
        """Note that it has answered."""
        self._service.ended(now_us, 1)
        self.disk_answered(now_us - self._asked_us.pop(reservation))
        self._worked_us, self._is_still = now_us, False

    def disk_answered(self, took_us: int) -> None:
        """Note that the disk has done something else that was asked."""
        self._longest_us = max(self._longest_us, took_us)

    def given_up(self, reservation: ReservationId) -> None:
        """Note that nobody waits for the answer any more."""
        self._service.given_up()
        del self._asked_us[reservation]

    def heard(self, now_us: int, counters: Mapping[str, int]) -> None:
        """Note what it says of its work."""
        work = sum(counters.get(name, 0) for name in WORK)
        if work != self._work:
            self._work, self._worked_us, self._is_still = work, now_us, False

    def fade(self) -> None:
        """Once each MEMORY_US."""
        self._service.fade()
        self._longest_us -= self._longest_us // FADE

    def is_busy(self, now_us: int, others: Iterable[Reserving]) -> bool:
        """Whether it may be waited for; of the others each is live."""
        rest = list(others)
        others_us = sorted(one._service.unit_us(now_us) for one in rest)
        limit_us = max(GOOD_US, FACTOR * _median(others_us))
        if not self._service.hangs(now_us) and self._service.unit_us(now_us) <= limit_us:
            return True
        silent_us = self._silent_us(now_us)
        if silent_us >= STILL_US and now_us - self._worked_us >= STILL_US:
            self._is_still = True
        if self._is_still:
            return False
        waits_us = sorted(max(one._longest_us, one._silent_us(now_us)) for one in rest)
        return silent_us <= WAIT_FACTOR * _median(waits_us)

    def hangs(self, now_us: int) -> bool:
        """Whether it was asked and answers nothing."""
        return self._service.hangs(now_us)

    def _silent_us(self, now_us: int) -> int:
        """For how long the oldest question has no answer."""
        return now_us - next(iter(self._asked_us.values()), now_us)


def _median(ascending: list[int]) -> int:
    return ascending[len(ascending) // 2] if ascending else 0
