"""Which generations hold bytes of later ones, and stay for them.

A save refers to bytes that did not change since an earlier commit of its run: that is their home.

    OpenPayload.homes --held by the attempt--> commit --held by the checkpoint--> gone --let go-->
                              '--> abort --let go-->

Invariants: a home was whole when it was referred to; its columns stay while anyone refers to it,
also when it is deleted; what refers to it promises no more than it can keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from ckpt.base.ids import CheckpointId, Home, PayloadId, RunName
from ckpt.base.limits import HOMES_MAX
from ckpt.format.table import HomePiece
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import (
    CheckpointCommitted,
    CheckpointReleased,
    ReferencesDropped,
)
from ckpt.protocol.coordinator.keeping.checkpoints import (
    Checkpoints,
    KeptCheckpoint,
)
from ckpt.protocol.coordinator.keeping.redundancy import GONE, Redundancy

TOO_MANY: Final = f"a checkpoint may refer to {HOMES_MAX} earlier ones"


class Homes:
    """I record who refers to whom, in both directions."""

    def __init__(self, desk: Desk, checkpoints: Checkpoints) -> None:
        self._desk = desk
        self._checkpoints = checkpoints
        #: What each user, an attempt or a checkpoint, holds; `Checkpoint.users` of a home is the
        #: other direction.
        self._homes: dict[CheckpointId, set[CheckpointId]] = {}

    def problem(
        self, run: RunName, homes: Collection[Home], user: CheckpointId | None = None
    ) -> str:
        """Why an attempt (None: a new one) cannot refer to these; empty when it can."""
        if self.too_many(run, homes, user):
            return TOO_MANY
        for home in sorted(homes):
            checkpoint = self._checkpoints.get(home.id(run))
            if checkpoint is None or not _stays(checkpoint):
                return f"{home.id(run)} is not there any more"
            if checkpoint.placement is None:
                return f"the index of {checkpoint.id} is not read yet: it is written again"
            if self._checkpoints.own_redundancy(checkpoint).columns_missing:
                return f"{checkpoint.id} has lost columns: what it holds is written again"
            if len(self._checkpoints.index_copies(checkpoint)) < len(checkpoint.index_targets):
                return f"{checkpoint.id} has lost copies of its index: it is written again"
        return ""

    def too_many(
        self, run: RunName, homes: Iterable[Home], user: CheckpointId | None = None
    ) -> bool:
        """Whether an attempt that held these as well would pass HOMES_MAX."""
        held = self._homes.get(user, set()) if user is not None else set()
        return len(held | {home.id(run) for home in homes}) > HOMES_MAX

    def misfit(self, payload: PayloadId, pieces: Iterable[HomePiece]) -> str:
        """Why pieces of its table cannot lie in the homes that its attempt holds; empty when they
        can. Only its index knows which rank holds what of a home: the whole home is the bound.
        """
        ids = self._homes.get(payload.checkpoint, set())
        held = {id.generation: self._checkpoints.get(id) for id in ids}
        for piece in pieces:
            home = held.get(piece.home)
            if home is None:
                continue
            end = piece.payload_offset + piece.length
            if not home.may_have(payload.rank) or end > home.info.payload_bytes:
                return f"{home.id} has no byte {end - 1} of rank {payload.rank}"
        return ""

    def gone(self, run: RunName, homes: Iterable[Home]) -> list[CheckpointId]:
        """Which of them can no longer be held, because a restart has let go of them."""
        ids = sorted(home.id(run) for home in homes)
        known = [(id, self._checkpoints.get(id)) for id in ids]
        return [id for id, one in known if one is None or not _stays(one)]

    def hold(self, user: CheckpointId, homes: Iterable[CheckpointId]) -> None:
        """Hold them for this user, except those whose columns are already being dropped."""
        for id in homes:
            home = self._checkpoints.get(id)
            if home is not None and not home.dropping:
                home.users.add(user)
                self._homes.setdefault(user, set()).add(id)

    def keep_only(self, user: CheckpointId, homes: Collection[CheckpointId]) -> None:
        """Let go of the others that this user holds."""
        for id in sorted(self._homes.get(user, set()) - set(homes)):
            self._homes[user].discard(id)
            self._release(user, id)
        if not self._homes.get(user):
            self._homes.pop(user, None)

    def committed(self, fact: CheckpointCommitted) -> None:
        """Let go of what the attempt held and the checkpoint does not refer to."""
        checkpoint = self._checkpoints.get(fact.checkpoint)
        assert checkpoint is not None
        self.keep_only(checkpoint.id, checkpoint.homes)

    def let_go(self, fact: ReferencesDropped) -> None:
        """Let go of all that this user holds."""
        self.keep_only(fact.checkpoint, ())

    def _release(self, user: CheckpointId, id: CheckpointId) -> None:
        home = self._checkpoints.get(id)
        if home is None:
            return
        home.users.discard(user)
        if not home.users and home.state is RowState.TOMBSTONED:
            self._desk.tell(CheckpointReleased(id))

    # ----------------------------------------------------------------------- what they promise

    def redundancy(self, run: RunName, homes: Iterable[Home]) -> list[Redundancy]:
        """The redundancy of each home by itself, now; one that is lost or gone has none."""
        ids = [home.id(run) for home in sorted(homes)]
        known = [self._checkpoints.get(id) for id in ids]
        return [
            GONE if one is None or not _stays(one) else self._checkpoints.own_redundancy(one)
            for one in known
        ]


def _stays(checkpoint: KeptCheckpoint) -> bool:
    """Whether it has its bytes, and nothing takes them away at this moment."""
    deleted_but_held = checkpoint.state is RowState.TOMBSTONED and bool(checkpoint.users)
    return checkpoint.state is RowState.COMMITTED or deleted_but_held
