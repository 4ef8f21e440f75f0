"""How a save leaves the stager: its half goes back, the trainer hears, and it is forgotten."""

from __future__ import annotations

from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RankSave, SaveState
from ckpt.protocol.stager.state import StagerState


class StagerEndings(StagerState):
    """Steps that all ends of a save have in common. StagerMachine decides which one it is."""

    def _finish(self, save: RankSave, outcome: e.Outcome) -> None:
        """The coordinator's last word on this save."""
        if not save.pending:
            return
        if not (save.refused or (save.failed is not None and not save.ever_certified)):
            self._tell(save, outcome)  # Else it was sent already.
        if save.plan is None or save.refused:
            self._end(save)
            return
        if isinstance(outcome, e.SaveCommitted) and save.half is not None:
            self.contents[save.half] = outcome.info.checkpoint
        save.state = SaveState.STOPPING
        self._do(e.StopPayload(save.plan.payload))

    def _drop(self, save: RankSave) -> None:
        """Nobody but the trainer has heard of this save."""
        save.state = SaveState.ENDED
        self._release(save)
        self._forget(save)

    def _end(self, save: RankSave) -> None:
        save.state = SaveState.ENDED
        self._release(save)
        self._forget(save)

    def _release(self, save: RankSave) -> None:
        assert self.may_release(save)
        if save.half is not None:
            self.halves[save.half] = None
            self._do(e.ReleaseHalf(save.half))
            save.half = None
        save.table = None

    def _forget(self, save: RankSave) -> None:
        if save.state is SaveState.ENDED and save.outcome is None:
            self.saves.pop(save.number, None)

    def _tell(self, save: RankSave, outcome: e.Outcome) -> None:
        save.outcome = outcome
        if self.trainer_attached:
            self._do(e.TellTrainer(save.number, outcome))
