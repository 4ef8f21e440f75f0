"""Space of an earlier term: nobody knows any more which column it is for.

    a target comes with it --grace is over, and no save that a start found is under way--> goes back
                                        `--at the latest after ORPHAN_US------------------->

What goes back ends the stream that uses it. Saves that were under way come back with what they have
and go on writing, so it is left to them: a reservation does not say whose it is, and need not, as
long as all wait for the last of these (decision 44).
"""

from __future__ import annotations

from typing import Final

from ckpt.base.ids import BootId, ReservationId, TargetId
from ckpt.format.messages.targets import ReleaseReservation
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.attempts import AttemptBook

ORPHAN_US: Final = 600_000_000
"""After so long it goes back in any case: a list of files may be open for as long as its writer
likes. A stream that goes on then finds another place."""

_Orphan = tuple[TargetId, BootId, ReservationId]


class Orphans:
    """I give it back."""

    def __init__(self, desk: Desk, members: Membership, book: AttemptBook, grace_us: int) -> None:
        self._desk = desk
        self._members = members
        self._book = book
        self._grace_us = grace_us
        #: When each was found.
        self._found_us: dict[_Orphan, int] = {}

    def found(self, target: Target, held: tuple[ReservationId, ...]) -> None:
        """A target came with reservations."""
        for reservation in held:
            if reservation >> 32 < self._members.term:
                self._found_us.setdefault((target.id, target.boot, reservation), self._desk.now_us)

    def tick(self) -> None:
        """What nobody can come for goes back."""
        now = self._desk.now_us
        waits_us = ORPHAN_US if any(a.recovered for a in self._book.open()) else self._grace_us
        for orphan in [one for one, us in self._found_us.items() if now - us >= waits_us]:
            del self._found_us[orphan]
            id, boot, reservation = orphan
            target = self._members.targets.get(id)
            if target is not None and target.boot == boot and target.session is not None:
                message = ReleaseReservation(self._members.term, reservation)
                self._desk.send(target.session, 0, message)
