"""How a stager stands in its runs' launches: it joins them, says what waits for its next save, and
how its trainer left.
"""

from __future__ import annotations

from ckpt.format.messages.launches import Departure, LaunchJoined
from ckpt.format.messages.saving import PayloadPlanned, SpaceStands
from ckpt.protocol.events import Send, Session
from ckpt.protocol.stager import requests
from ckpt.protocol.stager.endings import StagerEndings
from ckpt.protocol.stager.records import Launched, RankSave


class StagerLaunches(StagerEndings):
    """What the launches of all runs have in common. StagerMachine decides when it is due."""

    def _launch_joined(self, request: int, joined: LaunchJoined) -> None:
        """Under another number than before it is the same launch: a catalog that was made from the
        targets did not know the old one. What was saved under that is resumed, or unknown there.
        """
        for run in self.runs.values():
            if run.errand.request != request:
                continue
            if run.number is None:
                run.came_us = self._now_us
                run.counts = joined.counts if run.counts is None else run.counts
            run.number, run.joined_on = joined.launch, self.session
            run.references = joined.references
            if joined.claims and run.space is not None:
                assert self.session is not None
                self._do(
                    Send(self.session, 0, requests.claim_space(self.identity, run, self._now_us))
                )

    def _must_join(self, run: Launched) -> bool:
        if run.refused or run.joined_on == self.session:
            return False
        if self._is_busy(run):
            return True
        return run.error is None and run.left_told is not Departure.ENDED

    def _space_stands(self, space: SpaceStands) -> None:
        """Of one run the newest counts: the coordinator holds no other."""
        run = self.runs.get(space.run)
        if run is not None:
            run.space, run.stands_since_us = space, self._now_us

    def _note_planned(self, save: RankSave, plan: PayloadPlanned) -> None:
        """What a plan names waits no more: it is the save's."""
        run = self.runs.get(save.run)
        if run is not None and run.names_space_of(plan):
            run.space = None

    def _tell_left(self, run: Launched, session: Session, how: Departure) -> None:
        assert run.number is not None, "said on a session where the launch was joined"
        run.left_told_on, run.left_told = session, how
        self._do(Send(session, 0, requests.trainer_left(self.identity, run.run, run.number, how)))

    def _leave_unwatched(self) -> None:
        """A trainer that only closed its store is not missed when its stager goes."""
        if self.session is None or self.trainer_ended:
            return
        for run in self.runs.values():
            if run.joined_on == self.session:
                self._tell_left(run, self.session, Departure.UNWATCHED)
