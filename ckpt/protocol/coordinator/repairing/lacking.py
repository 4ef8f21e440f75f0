"""Which payloads lack columns that are to be made again now, and which comes first?

It follows from the placements, what targets have listed, and who is here: there is nothing to lose
at a restart. A column is due

    at once       when its holder is here without it, is out or was removed, or it was missing at
                  the commit, and when its payload can lose no more; and when its target has found
                  it damaged, or is to be emptied: it counts until another copy is there
    after a while when its holder is away: one that comes back has its columns still

and never while its holder is about to come. What can lose least comes first, then what no object
store has, then the newest; what is moved for balance alone comes last.

While columns stay where they are (the upgrade of the cluster is not finished) only those are due
whose holder is here without them: they are made again in their own place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.plan.balancing import ColumnMove
from ckpt.protocol.coordinator.cluster.membership import Membership, TargetState
from ckpt.protocol.coordinator.cluster.returning import is_awaited
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint


@dataclass(frozen=True, slots=True)
class LackingPayload:
    """Its columns that are due."""

    payload: PayloadId
    columns: tuple[ColumnNumber, ...]
    left: int
    """How many more columns may be lost before it cannot be read."""
    stored: bool
    """An object store has its checkpoint."""
    committed_at_s: float
    is_move: bool = False
    """Nothing of it is lost, nor in danger: columns go for balance alone."""

    @property
    def order(self) -> tuple[bool, int, bool, float, int, PayloadId]:
        """Ascending: what comes first."""
        step = self.payload.checkpoint.step
        return self.is_move, self.left, self.stored, -self.committed_at_s, -step, self.payload


class Lacking:
    """I look, when asked, at all that is kept."""

    def __init__(
        self,
        members: Membership,
        checkpoints: Checkpoints,
        holding: Callable[[CheckpointId], tuple[str, ...]],
        after_us: int | None,
        in_place: Callable[[], bool],
    ) -> None:
        """`holding`: which object stores have a checkpoint. `after_us`: who is away for so long is
        not waited for any more; None: nothing is ever due. `in_place`: no column may move now."""
        self._members = members
        self._checkpoints = checkpoints
        self._holding = holding
        self._after_us = after_us
        self._in_place = in_place
        #: Who was waited for when somebody asked last, who of them was about to come, and how often
        #: that was another answer.
        self._awaited: list[tuple[TargetId, bool]] = []
        self._turns = 0

    @property
    def news(self) -> int:
        """Another number whenever a target has come, gone, reported other damage, or is waited for
        no more, which time alone brings about.
        """
        members, now_us = self._members, self._members.now_us
        awaited = [
            (target.id, members.is_coming(target))
            for target in members.targets.values()
            if target.state is not TargetState.LIVE
            and is_awaited(members, target, now_us, self._after_us)
        ]
        if awaited != self._awaited:
            self._awaited, self._turns = awaited, self._turns + 1
        return members.version + members.rot_version + self._turns

    def all(self, now_us: int) -> list[LackingPayload]:
        """What is due, in its order."""
        if self._after_us is None:
            return []
        return sorted(self._found(now_us), key=lambda one: one.order)

    def _found(self, now_us: int) -> Iterator[LackingPayload]:
        outgoing = {
            column.payload.checkpoint
            for target in self._members.live()
            for column in rotten_columns(target)
        }
        leaving = (target for target in self._members.live() if not target.stays)
        outgoing.update(*(target.proved.checkpoints() for target in leaving))
        outgoing.update(self._checkpoints.moving.checkpoints())
        for checkpoint in self._checkpoints.all():
            if not checkpoint.is_needed or checkpoint.placement is None:
                continue
            if self._checkpoints.columns_missing(checkpoint) or checkpoint.id in outgoing:
                stored = bool(self._holding(checkpoint.id))
                for rank, now in self._checkpoints.columns_by_rank(checkpoint):
                    found = self._of_payload(checkpoint, rank, now, stored, now_us)
                    if found is not None:
                        yield found

    def due(self, checkpoint: KeptCheckpoint, rank: Rank, now_us: int) -> list[ColumnNumber]:
        """Columns of one payload, in the order in which they get places: what counts where it is
        comes last. None of what is not placed, or goes.
        """
        if checkpoint.placement is None or not checkpoint.is_needed:
            return []
        now = self._checkpoints.columns_now(checkpoint, rank)
        return self._due_beside(checkpoint, rank, now, now_us)

    def _due_beside(
        self, checkpoint: KeptCheckpoint, rank: Rank, now: Sequence[ColumnNumber], now_us: int
    ) -> list[ColumnNumber]:
        """`now`: which count."""
        assert checkpoint.placement is not None
        left = len(now) - checkpoint.code.k
        holders = checkpoint.placement[rank].columns
        if self._in_place():
            lost = [j for j, holder in enumerate(holders) if j not in now and self._is_here(holder)]
            return list(map(ColumnNumber, lost)) if left >= 0 else []
        missing = [
            ColumnNumber(j)
            for j, holder in enumerate(holders)
            if j not in now and left >= 0 and self._is_due(holder, left, now_us)
        ]
        return [*missing, *self._checkpoints.outgoing_of(checkpoint, rank, now)]

    def _of_payload(
        self,
        checkpoint: KeptCheckpoint,
        rank: Rank,
        now: Sequence[ColumnNumber],
        stored: bool,
        now_us: int,
    ) -> LackingPayload | None:
        columns = tuple(self._due_beside(checkpoint, rank, now, now_us))
        if not columns:
            return None
        left = len(now) - checkpoint.code.k
        payload = PayloadId(checkpoint.id, rank)
        is_move = all(self.move_of(payload, j) is not None for j in columns)
        info = checkpoint.info
        return LackingPayload(payload, columns, left, stored, info.committed_at_s, is_move)

    def move_of(self, payload: PayloadId, column: ColumnNumber) -> ColumnMove | None:
        """Of what is to go for balance, and for no other reason."""
        move = self._checkpoints.moving.of(ColumnId(payload, column))
        source = None if move is None else self._members.targets.get(move.source)
        if source is None or not source.stays:
            return None
        return None if ColumnId(payload, column) in rotten_columns(source) else move

    def _is_here(self, holder: TargetId | None) -> bool:
        target = self._members.targets.get(holder) if holder is not None else None
        return target is not None and target.state is TargetState.LIVE and target.stays

    def awaited(
        self, checkpoint: KeptCheckpoint, rank: Rank, now_us: int
    ) -> dict[ColumnNumber, TargetId]:
        """Who is away with a column that is not due: it keeps its place in its domain. The
        checkpoint is placed.
        """
        assert checkpoint.placement is not None
        now = self._checkpoints.columns_now(checkpoint, rank)
        left = len(now) - checkpoint.code.k
        return {
            ColumnNumber(j): holder
            for j, holder in enumerate(checkpoint.placement[rank].columns)
            if holder is not None and j not in now and not self._is_due(holder, left, now_us)
        }

    def _is_due(self, holder: TargetId | None, left: int, now_us: int) -> bool:
        target = self._members.targets.get(holder) if holder is not None else None
        if target is None or not is_awaited(self._members, target, now_us, self._after_us):
            return True
        return left == 0 and not self._members.is_coming(target)
