"""Space of an earlier term: nobody knows any more which column it is for.

    a target comes with it --its stager claims it (claiming.py)------------------> stands again
                       |--grace is over, and no save that a start found is under way--> goes back
                       `--at the latest after ORPHAN_US------------------------------->

What goes back ends the stream that uses it. Saves that were under way come back with what they have
and go on writing, so it is left to them: a reservation does not say whose it is, and need not, as
long as all wait for the last of these (decision 44).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ckpt.base.ids import BootId, ReservationId, TargetId
from ckpt.format.messages.saving import Place
from ckpt.format.messages.targets import ReleaseReservation
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.attempts import AttemptBook

ORPHAN_US: Final = 600_000_000
"""After so long it goes back in any case: a list of files may be open for as long as its writer
likes. A stream that goes on then finds another place."""

_Orphan = tuple[TargetId, BootId, ReservationId]


class Orphans:
    """I give back space that nobody here knows."""

    def __init__(self, desk: Desk, members: Membership, book: AttemptBook, grace_us: int) -> None:
        self._desk = desk
        self._members = members
        self._book = book
        self._grace_us = grace_us
        #: When each was found.
        self._found_us: dict[_Orphan, int] = {}

    def found(self, target: Target, held: Iterable[ReservationId]) -> None:
        """Note a target that came with reservations that nobody here knows."""
        for reservation in held:
            if reservation >> 32 < self._members.term:
                self._found_us.setdefault((target.id, target.boot, reservation), self._desk.now_us)

    def has(self, place: Place) -> bool:
        """Whether its target, as it is here now, holds it and nobody knows for whom."""
        target = self._members.targets.get(place.target)
        here = target is not None and target.session is not None and target.boot == place.boot
        return here and (place.target, place.boot, place.reservation) in self._found_us

    def take(self, place: Place) -> None:
        """Note that a reservation belongs to somebody."""
        del self._found_us[place.target, place.boot, place.reservation]

    def give_back(self, place: Place) -> None:
        """Give a reservation back that belongs to nobody, if it is one."""
        orphan = place.target, place.boot, place.reservation
        if self._found_us.pop(orphan, None) is not None:
            self._release(orphan)

    def tick(self) -> None:
        """Give back what nobody can claim any more."""
        now = self._desk.now_us
        waits_us = ORPHAN_US if any(a.recovered for a in self._book.open()) else self._grace_us
        for orphan in [one for one, us in self._found_us.items() if now - us >= waits_us]:
            del self._found_us[orphan]
            self._release(orphan)

    def _release(self, orphan: _Orphan) -> None:
        id, boot, reservation = orphan
        target = self._members.targets.get(id)
        if target is not None and target.boot == boot and target.session is not None:
            message = ReleaseReservation(self._members.term, reservation)
            self._desk.send(target.session, 0, message)
