"""What it means for a stager's saves when the coordinator says no.

Failed answers any request; `_refused` finds what was asked. With a retry-after, or a retryable
code, it is asked again; else the save, or all of its launch, end with what was said.
"""

from __future__ import annotations

from ckpt.base.errors import error_from_wire
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Place
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager import requests
from ckpt.protocol.stager.launching import StagerLaunches
from ckpt.protocol.stager.records import RETRY_US, Errand, Launched, RankSave, SaveState


class StagerRefusals(StagerLaunches):
    """Each question's own way on after a refusal. StagerMachine asks them."""

    def _refused(self, request: int, failed: Failed) -> None:
        """Failed answers any request.

        With a retry-after, or a retryable code, it is asked again.
        """
        after_us = failed.retry_after_us
        failure = e.SaveFailed(failed.code, failed.message, failed.hint, after_us)
        again_us = None if after_us is None else self._now_us + after_us
        for run in self.runs.values():
            if run.errand.request == request:
                self._join_refused(run, failure, again_us)
        for save in list(self.saves.values()):
            if not save.pending:
                continue
            if request == save.open.request:
                self._open_refused(save, failure, again_us)
            elif request == save.certify.request:
                self._certify_refused(save, failure, again_us)
            elif request == save.spares.request and save.wanted:
                if again_us is None:
                    self._spares_named(save, ())
                else:
                    save.spares.renew(again_us)
            elif request == save.give_up.request:
                self._finish(save, failure)

    def _join_refused(self, run: Launched, failure: e.SaveFailed, again_us: int | None) -> None:
        if failure.code in ("corrupt", "no_space"):
            # The catalog is at fault, and somebody is about to mend it: what waits now hears of it,
            # what comes after joins again.
            self._end_saves(run, failure)
        elif failure.code != "unavailable" and again_us is None:
            self._fence(run, failure)
            return
        run.errand.renew(self._now_us + RETRY_US if again_us is None else again_us)

    def _open_refused(self, save: RankSave, failure: e.SaveFailed, again_us: int | None) -> None:
        patient = (
            save.plan is not None or self._now_us - save.opening_since_us < self.config.open_us
        )
        if again_us is not None and patient:
            save.open.renew(again_us)
            return
        if failure.code == "fenced" and not save.member:
            # Of earlier saves, what all ranks had handed over may still commit: each hears its own.
            self.runs[save.run].error = failure
        self._finish_outside(save, failure)

    def _certify_refused(self, save: RankSave, failure: e.SaveFailed, again_us: int | None) -> None:
        """A coordinator that lost the payload from sight hears of it again;
        any other refusal is final.
        """
        if again_us is not None:
            save.certify.renew(again_us)
        elif failure.code == "not_found" or error_from_wire(failure.code, "").retryable:
            save.planned_on = None
            save.open.renew(self._now_us + self.config.dial_us)
        elif failure.code in ("aborted", "fenced"):
            self._finish(save, failure)
        else:  # The peers wait for this rank: the attempt has to end for all.
            save.failed = requests.failed_certify(save, failure, self._now_us)
            save.sealed = None

    def _fence(self, run: Launched, failure: e.SaveFailed) -> None:
        """The coordinator does not know this launch, or will not have it: all its saves end."""
        run.error, run.refused = failure, True
        self._end_saves(run, failure)

    def _end_saves(self, run: Launched, failure: e.SaveFailed) -> None:
        """All that were asked for or handed over; one that is being staged is asked for then."""
        for save in list(self.saves.values()):
            if not self._is_of(save, run) or save.state is SaveState.STAGING:
                continue
            if save.state is SaveState.ASKED:
                self._do(e.RefuseSave(save.number, failure.code, failure.message, failure.hint))
                self._drop(save)
            elif save.pending:
                self._finish_outside(save, failure)

    def _finish_outside(self, save: RankSave, failure: e.SaveFailed) -> None:
        """It may have been in no attempt."""
        if save.run in self.runs and not save.member:
            self.runs[save.run].counts = False
        self._finish(save, failure)

    def _spares_named(self, save: RankSave, spares: tuple[Place, ...]) -> None:
        wanted = save.wanted.pop(0)
        save.spares = Errand(next(self._numbers))
        self._do(e.AddSpares(wanted.payload, wanted.column, spares))
