"""Where a column may be made again: room that its domains allow, for one payload at a time.

Who is away and still waited for keeps its place: it comes back with its column, and what was put
beside it meanwhile would break the rule. Who holds a copy of the payload, named or not, takes no
other column of it: a copy that nobody has named may be named yet. Where no other place is left one
that has such a copy is taken all the same: the column that is made again counts, and the copy,
without which its payload does, goes then.

A damaged column that finds no place elsewhere is made again where it lies: the file takes the place
of the damaged one when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.format.messages.saving import Place
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.repairing.clearing import Clearing
from ckpt.protocol.coordinator.repairing.lacking import Lacking
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.coordinator.saving.space.reservations import Reserver

PlaceThen = Callable[[Place | None], None]


class RepairPlaces:
    """I look for a place for each column that is due, and reserve it."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, reserver: Reserver,
        lacking: Lacking, clearing: Clearing,
    ) -> None:  # fmt: skip
        self._desk = desk
        self._members = members
        self._clearing = clearing
        self._checkpoints = checkpoints
        self._reserver = reserver
        self._lacking = lacking

    def allotment(self, checkpoint: KeptCheckpoint, payload: PayloadId) -> Allotment:
        """Nothing is reserved yet, and it knows who holds what. The checkpoint is placed."""
        assert checkpoint.placement is not None
        placed = checkpoint.placement[payload.rank]
        allotment = self._reserver.empty_allotment(placed.layout)
        allotment.is_admitted = True
        leaving = self._leaving(checkpoint, payload)
        for j in self._checkpoints.columns_now(checkpoint, payload.rank):
            target = placed.columns[j]
            assert target is not None
            if target not in leaving:
                allotment.intended[j] = target
        allotment.intended |= self._lacking.awaited(checkpoint, payload.rank, self._desk.now_us)
        allotment.asked_spares |= leaving | _unnamed(checkpoint, payload)
        return allotment

    def gone(self, places: Iterable[Place]) -> TargetId | None:
        """Whose process has left, or stands still for long: nothing is sealed there any more."""
        for place in places:
            is_coming = self._members.is_coming(self._members.targets[place.target])
            if not is_coming and not self._members.accepts(place.target, place.boot):
                return place.target
        return None

    def hold_leaving(self, allotment: Allotment, payload: PayloadId) -> bool:
        """At first who is to be emptied keeps its domain as well: what finds a place so can be
        named at once, whatever becomes of the payload's other columns. False where nobody is.
        """
        checkpoint = self._checkpoints.get(payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return False
        columns = checkpoint.placement[payload.rank].columns
        for j in self._checkpoints.outgoing_now(checkpoint, payload.rank):
            if (target := columns[j]) is not None:
                allotment.intended[j] = target
        return not self._leaving(checkpoint, payload).isdisjoint(allotment.intended.values())

    def find(
        self, allotment: Allotment, payload: PayloadId, column: ColumnNumber, then: PlaceThen
    ) -> None:
        """Wherever it fits; of a move there or not at all; while no column may move, where it
        was.
        """
        checkpoint = self._checkpoints.get(payload.checkpoint)
        move = self._lacking.move_of(payload, column)
        if checkpoint is None or checkpoint.placement is None:
            then(None)
        elif self._desk.no_moves is not None:
            own = checkpoint.placement[payload.rank].columns[column]
            assert own is not None, "what has no holder is not due in its own place"
            self._reserver.reserve_there(allotment, column, own, then)
        elif move is not None:
            self._reserver.reserve_there(allotment, column, move.destination, then)
        else:
            self._anywhere(allotment, ColumnId(payload, column), checkpoint, then)

    def may_take(
        self, allotment: Allotment, payload: PayloadId, columns: Iterable[ColumnNumber]
    ) -> list[TargetId]:
        """Who may take one of these, which have found no place, but for room. For a move for
        balance nobody is to make room.
        """
        checkpoint = self._checkpoints.get(payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return []
        found: dict[TargetId, None] = {}
        for column in columns:
            if self._lacking.move_of(payload, column) is not None:
                continue
            holder = checkpoint.placement[payload.rank].columns[column]
            if self._desk.no_moves is None:
                own = self._damaged_at(checkpoint, ColumnId(payload, column))
                found |= dict.fromkeys(self._clearing.may_take(allotment, column, own))
            elif holder is not None:
                found[holder] = None
        return list(found)

    def _anywhere(
        self, allotment: Allotment, column: ColumnId, checkpoint: KeptCheckpoint, then: PlaceThen
    ) -> None:
        # While who is to be emptied keeps its domain there may be a place elsewhere later.
        own = self._damaged_at(checkpoint, column)
        may_stay = own is not None and allotment.intended.get(column.column) != own

        def found(place: Place | None) -> None:
            payload = column.payload
            beside = _unnamed(checkpoint, payload) - self._leaving(checkpoint, payload)
            beside &= allotment.asked_spares
            if place is not None or not beside:
                found_beside(place)
                return
            allotment.asked_spares -= beside
            self._reserver.replace(allotment, column.column, found_beside)

        def found_beside(place: Place | None) -> None:
            if place is None and may_stay and own is not None and self._is_free(own, allotment):
                self._reserver.reserve_there(allotment, column.column, own, then)
            else:
                then(place)

        self._reserver.replace(allotment, column.column, found)

    def _damaged_at(self, checkpoint: KeptCheckpoint, column: ColumnId) -> TargetId | None:
        """Who is named for it, is here, and has found damage in it."""
        assert checkpoint.placement is not None
        holder = checkpoint.placement[column.payload.rank].columns[column.column]
        target = self._members.targets.get(holder) if holder is not None else None
        if target is None or target.session is None or target.is_failing:
            return None
        return holder if column in rotten_columns(target) else None

    def _is_free(self, own: TargetId, allotment: Allotment) -> bool:
        """No other column of this task has got a place in its domain meanwhile."""
        domain_of = self._clearing.domain_of
        return domain_of(own) not in {domain_of(p.target) for p in allotment.columns.values()}

    def _leaving(self, checkpoint: KeptCheckpoint, payload: PayloadId) -> set[TargetId]:
        """Whose columns are to be made again elsewhere though they count."""
        assert checkpoint.placement is not None
        columns = checkpoint.placement[payload.rank].columns
        outgoing = self._checkpoints.outgoing_now(checkpoint, payload.rank)
        return {target for j in outgoing if (target := columns[j]) is not None}


def _unnamed(checkpoint: KeptCheckpoint, payload: PayloadId) -> set[TargetId]:
    """Who has a copy of a column of it and is not named for that."""
    surplus = checkpoint.surplus.items()
    return {id for column, holders in surplus if column.payload == payload for id in holders}
