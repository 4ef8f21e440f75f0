"""Where does a column go whose place is gone, or bad?

    another target --none--> where it failed, if its connection may just have broken --no-->
        wait for targets that come after a start, or were silent --none comes--> nowhere

Without it the payload may be below its floor, and its save fails: then it waits as long as a lease,
or after a start of the coordinator until the machines of its targets can have started.
A broken connection says little of a target, and all of a host's connections may break at once: the
column goes back there, at once the first time, later once in RETURN_GAP_US while the payload is
below its floor. Its own silence and slowness are the stager's to judge; it says so by not leaving.

Invariant: `done` is called once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.format.messages.saving import Place
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.space.allotment import Allotment

RETURNS_MAX: Final = 5
"""So often a column goes to one target that it could not be written to."""
RETURN_GAP_US: Final = US_PER_S

Then = Callable[[Place | None], None]


@dataclass(frozen=True, slots=True)
class Homeless:
    """A column that has no place, as its stager says."""

    failed_at: tuple[TargetId, ...] = ()
    others: int = 0
    """So many columns of its payload have a place."""


class Shelf(Protocol):
    """Who reserves for me."""

    def replace(self, allotment: Allotment, column: ColumnNumber, then: Then) -> None: ...
    def reserve_column(
        self, allotment: Allotment, column: ColumnNumber, target: TargetId, then: Then
    ) -> None: ...
    def leave(self, allotment: Allotment, column: ColumnNumber, target: TargetId) -> None: ...
    def wait(self, search: SpareSearch) -> None: ...


class SpareSearch:
    """One search for one column. I expect `again` on every tick after I said `wait`."""

    def __init__(
        self, shelf: Shelf, desk: Desk, members: Membership, allotment: Allotment,
        column: ColumnNumber, homeless: Homeless | None,
        done: Callable[[tuple[Place, ...]], None],
    ) -> None:  # fmt: skip
        """`homeless` is None for a column that has a place still, or may have."""
        self._shelf = shelf
        self._desk = desk
        self._members = members
        self._allotment = allotment
        self._column = column
        self._homeless = homeless
        self._done = done
        self._until_us = desk.now_us + LEASE_US

    def begin(self) -> None:
        self._shelf.replace(self._allotment, self._column, self._placed)

    def again(self) -> None:
        """Time has passed."""
        self._allotment.forgive_silence()
        self.begin()

    # ----------------------------------------------------------------------- inside

    def _placed(self, place: Place | None) -> None:
        if place is not None:
            self._allotment.spares.append(place)
            self._done((place,))
        elif (target := self._way_back()) is not None:
            self._allotment.returns[self._column, target].append(self._desk.now_us)
            self._shelf.leave(self._allotment, self._column, target)
            self._shelf.reserve_column(self._allotment, self._column, target, self._placed)
        elif self._may_wait():
            self._shelf.wait(self)
        else:
            self._end_nowhere()

    def _end_nowhere(self) -> None:
        """Where it was meant to be, another column may go."""
        if self._homeless is not None:
            self._allotment.intended.pop(self._column, None)
        self._done(())

    def _way_back(self) -> TargetId | None:
        """A target where it failed, and where it may go now."""
        live = {target.id for target in self._members.live()}
        for target in self._ways_back():
            went_us = self._allotment.returns[self._column, target]
            rested = not went_us or self._desk.now_us - went_us[-1] >= RETURN_GAP_US
            if rested and target in live:
                return target
        return None

    def _ways_back(self) -> list[TargetId]:
        """Where it failed, and may go now or later: on targets that live and have no other column
        of the payload, and more than once only when the payload is below its floor.
        """
        if self._allotment.released or self._homeless is None:
            return []
        count_max = RETURNS_MAX if self._is_short() else 1
        returns = self._allotment.returns
        counts = {target: len(returns[self._column, target]) for target in self._homeless.failed_at}
        return [id for id, count in counts.items() if count < count_max and self._is_free(id)]

    def _is_free(self, target: TargetId) -> bool:
        member = self._members.targets.get(target)
        if member is None or member.is_failing:
            return False
        if member.state is not TargetState.LIVE and not self._may_come(member):
            return False
        intended = self._allotment.intended.items()
        return all(id != target for column, id in intended if column != self._column)

    def _may_come(self, target: Target) -> bool:
        return self._is_short() and self._members.is_coming(target)

    def _is_short(self) -> bool:
        """Without this column the payload is below its floor."""
        return self._left() < self._allotment.layout.code.floor

    def _left(self) -> int:
        """Columns with a place, as their stager says, or else places that have not failed."""
        if self._homeless is not None:
            return self._homeless.others
        holding = {place.target for place in self._allotment.places}
        return sum(target not in self._allotment.refused for target in holding)

    def _may_wait(self) -> bool:
        """Too few places are left for the payload, and with those that may come they are enough; or
        the way back is open soon; or a target that is expected after a start has not come yet.
        """
        allotment = self._allotment
        if allotment.released:
            return False
        if self._ways_back():
            return True
        holding = {place.target for place in allotment.places}
        coming = self._members.coming()
        askable = [t for t in coming if t.id not in holding and allotment.may_ask(t.id)]
        if any(self._members.is_expected(target) for target in askable):
            return True
        live = self._members.live()
        more = sum(t.id not in holding and allotment.may_ask(t.id) for t in live) + len(askable)
        left, floor = self._left(), allotment.layout.code.floor
        patient = self._desk.now_us < self._until_us
        if self._homeless is not None:
            patient = patient or any(map(self._members.is_powering_up, askable))
        return patient and left < floor <= left + more
