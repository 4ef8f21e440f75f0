"""Which columns go to another target although theirs stays: the balance has said so, or too many of
their payload lie in one failure domain.

A column that is moved counts where it is, until the copy at its destination is named; then the old
one is surplus, as of a target that is drained. This is memory of the coordinator that leads: with
it ends what it has begun, and copies that nobody has named go as any.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.base.ids import CheckpointId, ColumnId, PayloadId, TargetId
from ckpt.plan.balancing import ColumnMove


class Moving:
    """I hold the moves. Balancer adds them; it and Repairs take them away."""

    def __init__(self) -> None:
        self.crowded: dict[ColumnId, TargetId] = {}
        """Columns that may go wherever their domains allow, and from where. Crowding says so, all
        of them at each of its looks."""
        self._moves: dict[CheckpointId, dict[ColumnId, ColumnMove]] = {}
        #: Checkpoints of which columns have other holders since Crowding has looked.
        self._replaced: set[CheckpointId] = set()

    def add(self, move: ColumnMove) -> None:
        self._moves.setdefault(move.column.payload.checkpoint, {})[move.column] = move

    def discard(self, column: ColumnId) -> None:
        """Forget a move: the column stays where it is, or has gone."""
        of_checkpoint = self._moves.get(column.payload.checkpoint, {})
        of_checkpoint.pop(column, None)
        if not of_checkpoint:
            self._moves.pop(column.payload.checkpoint, None)

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget all moves of a checkpoint's columns."""
        self._moves.pop(checkpoint, None)
        self.crowded = {
            column: holder
            for column, holder in self.crowded.items()
            if column.payload.checkpoint != checkpoint
        }

    def forget_payload(self, payload: PayloadId) -> bool:
        """Forget all moves of a payload; returns whether there were any."""
        columns = [c for c in self._moves.get(payload.checkpoint, {}) if c.payload == payload]
        for column in columns:
            self.discard(column)
        return bool(columns)

    def replaced(self, checkpoint: CheckpointId) -> None:
        """It is known where its columns are, or where they are now."""
        self._replaced.add(checkpoint)

    def take_replaced(self) -> set[CheckpointId]:
        """Of which that was said since this was asked last."""
        taken, self._replaced = self._replaced, set()
        return taken

    def clear(self) -> None:
        self._moves.clear()

    def of(self, column: ColumnId) -> ColumnMove | None:
        return self._moves.get(column.payload.checkpoint, {}).get(column)

    def leaves(self, column: ColumnId, holder: TargetId) -> bool:
        """Whether the column is to move away from this holder."""
        move = self.of(column)
        is_moved = move is not None and move.source == holder
        return is_moved or self.crowded.get(column) == holder

    def checkpoints(self) -> set[CheckpointId]:
        """Checkpoints of which columns are moving."""
        return set(self._moves) | {column.payload.checkpoint for column in self.crowded}

    def __iter__(self) -> Iterator[ColumnMove]:
        for of_checkpoint in self._moves.values():
            yield from of_checkpoint.values()

    def __len__(self) -> int:
        return sum(map(len, self._moves.values()))
