"""What people ask of steps waits for targets that are on their way; all else is answered at once.

A coordinator serves when enough of its targets vouch for the catalog, not when all have come: what
lies on the others would be called unreachable, or lost by so many columns, for a moment. So a
question of a step waits while a target that the answer speaks of is being listed, or is still given
to come after the coordinator's start; or while the index that says where the step lies is read. It
waits no longer than targets have to come. A load does the same (resolving.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.errors import CkptError
from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.keeping import KeepSteps
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.membership import (
    GATHERING_US,
    Membership,
    TargetState,
)
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.holding import HeldRequest, HeldRequests
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.reading.views import Views
from ckpt.protocol.events import Received, Session

OF_STEPS = ("steps", "show")
"""Questions whose answers say what can be read now."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked(HeldRequest):
    question: Ask
    due_us: int


class Asking:
    """I answer an Ask, or hold it. My owner ticks me."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, views: Views
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._views = views
        #: Questions that wait.
        self._held: HeldRequests[_Asked] = HeldRequests()

    @property
    def waits(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._held)

    def ask(self, session: Session, request: int, question: Ask) -> None:
        """Answer now or later, also why there is no answer."""
        now_us = self._desk.now_us
        event = Received(now_us, session, request, question)
        asked = _Asked(event, question, now_us + GATHERING_US)
        if self._should_wait(asked):
            self._held.add(asked)
        else:
            self._answer(asked)

    def foretell(self, session: Session, request: int, message: KeepSteps) -> None:
        """What would stay under other rules. Raises Refused."""
        answer = self._views.retention_under(message.run, message.retention)
        self._desk.send(session, request, Answer(), answer)

    def tick(self) -> None:
        """Answer those that wait for nothing more."""
        for asked in self._held:
            if not self._should_wait(asked):
                self._held.take(asked)
                self._answer(asked)

    def session_closed(self, session: Session) -> None:
        self._held.session_closed(session)

    def refuse_all(self, problem: CkptError) -> None:
        """Nobody is served any more."""
        for asked in self._held.take_all():
            self._desk.fail(asked.event.session, asked.event.request, problem)

    def _answer(self, asked: _Asked) -> None:
        question, event = asked.question, asked.event
        try:
            answer = self._views.answer(
                question.what, question.run, question.step, question.generation
            )
        except CkptError as error:
            self._desk.fail(event.session, event.request, error)
        else:
            self._desk.send(event.session, event.request, Answer(), answer)

    def _should_wait(self, asked: _Asked) -> bool:
        question = asked.question
        if question.what not in OF_STEPS or question.run is None:
            return False
        if self._desk.now_us >= asked.due_us:
            return False
        arriving = self._arriving()
        # The oldest are placed last.
        of_run = self._checkpoints.of_run(question.run, RowState.COMMITTED)
        of_step = (one for one in of_run if question.step in (None, one.id.step))
        return any(self._is_unsettled(one, arriving) for one in of_step)

    def _arriving(self) -> set[TargetId]:
        """Targets that are listed now, or have not come since this coordinator's start."""
        members = self._members
        if not members.gathering:
            return set()
        return {
            target.id
            for target in members.all()
            if target.state is TargetState.RECONCILING or members.is_expected(target)
        }

    def _is_unsettled(self, checkpoint: KeptCheckpoint, arriving: set[TargetId]) -> bool:
        if self._checkpoints.is_about_to_be_placed(checkpoint):
            return True
        return bool(arriving) and not arriving.isdisjoint(self._checkpoints.unreachable(checkpoint))
