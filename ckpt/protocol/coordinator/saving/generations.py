"""How far each generation has come, as far as anything is known of it."""

from __future__ import annotations

from ckpt.base.ids import CheckpointId, Generation
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from ckpt.protocol.coordinator.saving.attempts import ABORTABLE, ENDED, AttemptBook


class Generations:
    """See ckpt.protocol.coordinator.cluster.vouching.KnownGenerations."""

    def __init__(self, checkpoints: Checkpoints, book: AttemptBook, deleter: Deleter) -> None:
        self._checkpoints = checkpoints
        self._book = book
        self._deleter = deleter

    @property
    def forgotten(self) -> Generation:
        return self._deleter.forgotten

    def state_of(self, id: CheckpointId) -> RowState | None:
        checkpoint = self._checkpoints.get(id)
        if checkpoint is not None:
            return checkpoint.state
        attempt = self._book.attempts.get(id)
        if attempt is None:
            return self._deleter.gone.get(id)
        # It is no checkpoint; that it is aborted is being written.
        if attempt.state in ENDED:
            return self._deleter.gone.get(id, RowState.ABORTED)
        return RowState.OPEN if attempt.state in ABORTABLE else RowState.DECIDED
