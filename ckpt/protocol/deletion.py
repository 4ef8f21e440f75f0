"""How things go away: tombstone first, columns when nobody reads them.

    asked --catalog row + m+1 tombstones durable--> answered --no pins--> DropGeneration everywhere
          --all targets confirmed--> catalog DELETED, forgotten

A target that was away is dropped from when it comes back and lists what should be gone.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.errors import NotFound
from ckpt.base.ids import CheckpointId, ColumnId, TargetId
from ckpt.format.record import Tombstone, encode_tombstone
from ckpt.plan.retention import expired
from ckpt.protocol import catalog
from ckpt.protocol.catalog import RowState
from ckpt.protocol.checkpoints import Checkpoint, Checkpoints
from ckpt.protocol.committing import store_document
from ckpt.protocol.desk import Desk
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.membership import Membership, Target
from ckpt.protocol.messages import (
    DeleteStep,
    DocumentKind,
    DropColumn,
    DropGeneration,
    Dropped,
    Failed,
    Message,
    StepDeleted,
)


class Deleter:
    """I tombstone, drop and expire. `keep` is how many steps of a run stay; None keeps all."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoints: Checkpoints,
        *,
        cluster: str,
        keep: int | None,
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._cluster = cluster
        self._keep = keep
        self.gone: dict[CheckpointId, RowState] = {}
        #: Generations whose columns nobody may keep: aborted, or tombstoned without pins.

    def delete_step(self, session: Session, request: int, message: DeleteStep) -> None:
        """Every committed or damaged generation of (run, step)."""
        doomed = self._checkpoints.of_step(
            message.run, message.step, RowState.COMMITTED, RowState.DAMAGED
        )
        if not doomed:
            missing = NotFound(f"{message.run}@{message.step} has no committed checkpoint")
            self._desk.send(session, request, Failed(missing.code, missing.message, "see ckpt ls"))
            return
        freed = sum(c.info.payload_bytes for c in doomed)

        def done() -> None:
            self._desk.send(session, request, StepDeleted(freed))

        self._tombstone(doomed, "deleted on request", done)

    def expire(self, checkpoint: Checkpoint) -> None:
        """After a commit: what the retention rule and newer generations of a step leave behind."""
        held = self._checkpoints.of_run(checkpoint.id.run, RowState.COMMITTED)
        pinned = {(c.id.step, c.id.generation) for c in held if c.pins}
        ids = [(c.id.step, c.id.generation) for c in held]
        doomed_ids = set(expired(ids, self._keep, pinned))
        doomed = [c for c in held if (c.id.step, c.id.generation) in doomed_ids]
        if doomed:
            self._tombstone(doomed, "expired", lambda: None)

    def _tombstone(self, doomed: list[Checkpoint], reason: str, done: Callable[[], None]) -> None:
        for checkpoint in doomed:
            checkpoint.state, checkpoint.reason = RowState.TOMBSTONED, reason
        waiting = len(doomed)

        def one_done() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                done()

        def durable() -> None:
            for checkpoint in doomed:
                self._spread_tombstone(checkpoint, one_done)

        entries = tuple(catalog.CheckpointTombstoned(c.id, reason) for c in doomed)
        self._desk.persist(entries, durable)

    def _spread_tombstone(self, checkpoint: Checkpoint, done: Callable[[], None]) -> None:
        document = encode_tombstone(
            Tombstone(self._cluster, checkpoint.id, self._members.term, checkpoint.reason)
        )

        def stored(_on: tuple[TargetId, ...]) -> None:
            done()
            self.released(checkpoint)

        copies = checkpoint.code.m + 1
        store_document(
            self._desk,
            self._members,
            checkpoint.id,
            DocumentKind.TOMBSTONE,
            document,
            copies,
            stored,
        )

    # ----------------------------------------------------------------------- dropping

    def released(self, checkpoint: Checkpoint) -> None:
        """No reader holds it any more: when it is tombstoned, its columns go."""
        if checkpoint.state is RowState.TOMBSTONED and not checkpoint.pins:
            self.gone[checkpoint.id] = RowState.TOMBSTONED
            self.drop_everywhere(checkpoint.id)

    def drop_everywhere(self, id: CheckpointId) -> None:
        """Every live target may hold something of it."""
        for target in self._members.live():
            self.drop_on(target, id)

    def drop_on(self, target: Target, id: CheckpointId) -> None:
        """Tell one target; what it proved of this generation counts no more."""
        if target.session is None:
            return

        def dropped(message: Message, _bulk: Buffer) -> None:
            if isinstance(message, Dropped):
                target.proved = {c for c in target.proved if c.payload.checkpoint != id}
                target.documents = {
                    d
                    for d in target.documents
                    if d.checkpoint != id or d.kind is DocumentKind.TOMBSTONE
                }
                self._forget_when_dropped(id)

        self._desk.ask(target.session, DropGeneration(self._members.term, id), dropped)

    def _forget_when_dropped(self, id: CheckpointId) -> None:
        checkpoint = self._checkpoints.get(id)
        if checkpoint is None:
            return
        for named in checkpoint.targets:
            target = self._members.targets.get(named)
            if target is None or target.session is None:
                return
            if any(column.payload.checkpoint == id for column in target.proved):
                return
        self._checkpoints.forget(checkpoint)
        self._desk.persist((catalog.CheckpointDeleted(id),), lambda: None)

    def reconcile(self, target: Target) -> None:
        """A target came back: drop what must not be there any more."""
        held = {column.payload.checkpoint for column in target.proved}
        held |= {d.checkpoint for d in target.documents if d.kind is not DocumentKind.TOMBSTONE}
        for id in sorted(held & self.gone.keys()):
            self.drop_on(target, id)
        for column in sorted(target.proved):
            if self._is_stray(column, target.id):
                self.drop_column(target, column)

    def drop_strays(self, checkpoint: Checkpoint) -> None:
        """After a commit: columns that the index does not name (replaced, late, or over the rule)."""
        for target in self._members.live():
            for column in sorted(target.proved):
                if column.payload.checkpoint == checkpoint.id and self._is_stray(column, target.id):
                    self.drop_column(target, column)

    def drop_column(self, target: Target, column: ColumnId) -> None:
        if target.session is None:
            return
        target.proved.discard(column)
        self._desk.ask(
            target.session, DropColumn(self._members.term, column), lambda _message, _bulk: None
        )

    def _is_stray(self, column: ColumnId, holder: TargetId) -> bool:
        checkpoint = self._checkpoints.get(column.payload.checkpoint)
        if checkpoint is None:
            return False
        columns = checkpoint.placement.get(column.payload.rank)
        return columns is None or columns[column.column] != holder
