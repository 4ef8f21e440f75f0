"""How attempts end: aborted for a named reason, or announced as committed;
and what each leaves.

Who aborts an attempt: a newer launch that begins while a rank is missing; a later save of a rank
that is missing; a rank that refused the step; a trainer that ended before it staged, and did not
come again; a stager that stays away too long; a rank without a store that nobody watches, for
longer still; a payload that can never be certified. Nobody aborts a decided one. Whoever asks gets
the end as an answer, as often as he asks, so a lost message costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from msgspec.structs import replace

from ckpt.base.errors import Aborted, CkptError, Fenced
from ckpt.base.ids import CheckpointId, LaunchNumber, PayloadId, Rank, RunName
from ckpt.base.units import US_PER_S
from ckpt.format.messages.launches import TrainerLeft
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    OpenPayload,
    PayloadGivenUp,
    SpaceStands,
)
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.cluster.launches import OLDER_HINT, check_not_fenced
from ckpt.protocol.coordinator.desk import Then
from ckpt.protocol.coordinator.facts import AttemptDropped, CheckpointCommitted, FileDropped
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.saving.abandoned import why_abandoned
from ckpt.protocol.coordinator.saving.attempts import (
    ABORTABLE,
    ENDED,
    Attempt,
    AttemptState,
    Payload,
)
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.forms import TableForms
from ckpt.protocol.events import Session

STAND_AT_ONCE: Final = 64
"""Ranks whose next save gets its space before others have their turn: ten targets are asked for
each."""

ENDED_KEPT = 1024
"""Ended attempts remembered for stagers that ask again; older ones are answered by their rows."""
ENDED_PAYLOADS_KEPT = 16_384
"""Of all of them, about 1.5 KiB each: a thousand ended saves of thousands of ranks would be GBs."""


def discarded(payload: PayloadId) -> Aborted:
    """The answer to the writer of a file without which its attempt goes on, or went on."""
    return Aborted(
        f"{payload} was discarded: it was replaced, given up, or not named when its attempt closed",
        hint="write the file again",
    )


class Ending:
    """I end attempts."""

    def __init__(self, context: SavingContext, checkpoints: Checkpoints) -> None:
        self._desk = context.desk
        self._book = context.book
        self._members = context.members
        self._launches = context.launches
        self._reservations = context.reservations
        self._placing = context.placing
        self._checkpoints = checkpoints
        #: Who asked how one ended, and hears of it once more targets are here.
        self._waiting: dict[CheckpointId, dict[Session, set[int]]] = {}

    # ----------------------------------------------------------------------- reasons to abort

    def abort_what_lacks(self, message: OpenPayload) -> None:
        """A rank that saves a later step will never hand over the earlier ones that
        it is missing in.
        """
        check_not_fenced(message.run, message.launch, self._launches.begun(message.run))
        for attempt in self._book.of_run(message.run):
            earlier = attempt.checkpoint.step < message.step
            if (
                attempt.launch == message.launch
                and earlier
                and message.rank not in attempt.payloads
            ):
                reason = f"rank {message.rank} went on to step {message.step} without saving it"
                self.abort(attempt, Aborted(f"{attempt.checkpoint}: {reason}"))

    def abort_of_earlier_start(self, message: OpenPayload) -> None:
        """What processes have left that had ended when this rank's came is completed by none that
        came since: they trained again from an earlier step, and their state may be another one.
        """
        launch = self._launches.get(message.run, message.launch)
        if launch is None:
            return
        mine = message.rank, message.process
        for attempt in list(self._book.of_step(message.run, message.step)):
            if attempt.launch != launch.number or message.rank in attempt.payloads:
                continue
            for rank, payload in attempt.payloads.items():
                if launch.are_two_starts((rank, payload.process), mine):
                    reason = (
                        f"rank {rank} saved it and ended before rank {message.rank} was started: "
                        "they are of two starts of the run"
                    )
                    self.abort(attempt, Aborted(f"{attempt.checkpoint}: {reason}"))
                    break

    def abort_passed_by(self, passing: Attempt) -> None:
        """Attempts that will never be whole: a rank that they lack is at a later step already.

        `abort_what_lacks` ends those that were there when that rank came. This ends those that came
        later: opened by a rank that is slower, or recovered after a restart. They would hold arenas
        that everybody's next save waits for. A payload has come to `passing`: between others
        nothing is new.
        """
        for peer in self._book.of_run(passing.checkpoint.run):
            if peer.launch == passing.launch and peer is not passing:
                self._abort_if_passed(peer, passing)
                self._abort_if_passed(passing, peer)

    def _abort_if_passed(self, attempt: Attempt, later: Attempt) -> None:
        step = later.checkpoint.step
        if attempt.handed_over or step <= attempt.checkpoint.step:
            return
        gone = later.payloads.keys() - attempt.payloads.keys()
        if gone:
            reason = f"rank {min(gone)} went on to step {step} without saving it"
            self.abort(attempt, Aborted(f"{attempt.checkpoint}: {reason}"))

    def fence_older(self, run: RunName, launch: LaunchNumber) -> None:
        """A new launch begins: what older ones have wholly handed over may finish,
        the rest ends.
        """
        for attempt in self._book.of_run(run):
            if attempt.launch < launch and not attempt.handed_over and not attempt.of_members:
                reason = f"launch {launch} of the run has begun"
                error = Fenced(f"{attempt.checkpoint}: {reason}", hint=OLDER_HINT)
                self.abort(attempt, error)

    def refuse(self, attempt: Attempt, message: OpenPayload) -> None:
        """A rank staged nothing: its peers hear why, and the next save of the step is another
        attempt for all of them.
        """
        attempt.refused, attempt.refused_nth = True, message.nth
        reason = f"rank {message.rank} refused step {message.step}: {message.refused}"
        self.abort(attempt, Aborted(f"{attempt.checkpoint}: {reason}", hint="save again"))

    def given_up(self, session: Session, request: int, message: PayloadGivenUp) -> None:
        """Abort the attempt of a payload that can never be certified, as its stager says."""
        found = self._book.find(message.payload)
        if found is None or found[0].state in ENDED:
            self.tell_end_of(session, request, message.payload)
            return
        attempt, payload = found
        if not self._book.speaks(attempt, payload, session):
            return
        payload.request = request
        if attempt.state in ABORTABLE:
            from_wire = Aborted(f"rank {payload.id.rank}: {message.message}", hint=message.hint)
            self.abort(attempt, from_wire)

    def trainer_left(self, session: Session, message: TrainerLeft) -> None:
        """Attempts that still lack the payload of a process that has ended will never be whole.
        Those that its peers open later wait a little: it may be started again.
        """
        if not self._launches.trainer_left(session, message, self._desk.now_us):
            return
        for attempt in self._book.of_run(message.run):
            if attempt.launch == message.launch and message.rank not in attempt.payloads:
                reason = (
                    f"the trainer of rank {message.rank} ended before it handed over its payload"
                )
                self.abort(attempt, Aborted(f"{attempt.checkpoint}: {reason}", hint="save again"))

    def cannot_plan(self, attempt: Attempt, payload: Payload, error: CkptError) -> None:
        """End an attempt of ranks that has no places for a payload; a file is refused alone."""
        if not payload.member:
            self.abort(attempt, error)
            return
        self.drop_file(attempt, payload)
        if payload.session is not None:
            self._desk.fail(payload.session, payload.request, error)

    def drop_file(self, attempt: Attempt, payload: Payload) -> None:
        """Continue the attempt without a file: its space and its columns are freed."""
        del attempt.payloads[payload.id.rank]
        attempt.left.pop(payload.id.rank, None)
        self._book.let_go(payload)
        if payload.allotment is not None:
            self._reservations.release(payload.allotment)
        self._desk.tell(FileDropped(payload.id))

    def abort(self, attempt: Attempt, error: CkptError) -> None:
        """End an attempt for good: durable first, then announced, then its columns go.

        Decided ones stay.
        """
        if attempt.state not in ABORTABLE:
            return
        attempt.state = AttemptState.ABORTING
        self._note_failure(attempt, error)

        self._persist_abort(attempt, error, lambda: self._announce_abort(attempt))

    def refuse_unwritten(self, error: CkptError) -> None:
        """Attempts that the catalog has no row of yet end, and their ranks hear it at once: nobody
        has a plan of one, so it cannot commit, whether or not the row is stored in the end.
        """
        for attempt in self._book.open():
            if attempt.state is AttemptState.OPENING:
                self._note_failure(attempt, error)
                self._persist_abort(attempt, error, lambda: None)
                self._announce_abort(attempt)

    def _note_failure(self, attempt: Attempt, error: CkptError) -> None:
        launch = self._launches.get(attempt.checkpoint.run, attempt.launch)
        if launch is not None and not attempt.refused:
            launch.counted = None
        after = error.retry_after_s
        after_us = None if after is None else round(after * US_PER_S)
        attempt.failure = AttemptAborted(
            attempt.checkpoint, error.code, error.message, error.hint, after_us
        )
        self._desk.report(
            "warning", "attempt aborted", checkpoint=str(attempt.checkpoint), reason=error.message
        )

    def _announce_abort(self, attempt: Attempt) -> None:
        attempt.state = AttemptState.ABORTED
        self._let_go(attempt)
        self._tell_everybody(attempt)
        self._desk.tell(AttemptDropped(attempt.checkpoint))

    def _persist_abort(self, attempt: Attempt, error: CkptError, then: Then) -> None:
        entry = catalog.RowAborted(attempt.checkpoint, error.code, error.message)
        self._desk.persist((entry,), then)

    def announce(self, fact: CheckpointCommitted) -> None:
        """Announce a commit that is durable, and hold space for the next save."""
        attempt = self._book.attempts[fact.checkpoint]
        self._let_go(attempt)
        self._tell_everybody(attempt)
        self._stand_some(attempt.checkpoint.run, iter(sorted(attempt.payloads.items())))

    def _stand_some(self, run: RunName, left: Iterator[tuple[Rank, Payload]]) -> None:
        """Of so many ranks at once; then others have their turn."""
        some = list(islice(left, STAND_AT_ONCE))
        for rank, payload in some:
            if payload.planned is not None and not payload.member:
                self._stand(run, rank, payload)
        if len(some) == STAND_AT_ONCE:
            self._desk.later(partial(self._stand_some, run, left))

    def _stand(self, run: RunName, rank: Rank, payload: Payload) -> None:
        """Its stager hears where, so that it can say so to another coordinator."""

        def stands(space: SpaceStands) -> Session | None:
            session = payload.session
            if session is None or not self._desk.knows(session, space):
                return None
            self._desk.send(session, 0, space)
            return session

        self._reservations.stand((run, rank), payload.session, payload.layout, stands)

    def tell_end(self, attempt: Attempt, payload: Payload) -> None:
        """Say how it ended: as the answer to a stager that waits for one, as its plan may have been
        lost, else unasked.
        """
        if payload.session is not None:
            self.tell_asker(attempt, payload.session, payload.request)

    def tell_asker(self, attempt: Attempt, session: Session, request: int) -> None:
        """The end of an attempt, once it is durable."""
        end = self._end_of(attempt)
        if end is not None:
            self._desk.send(session, request, end)

    def _end_of(self, attempt: Attempt) -> AttemptCommitted | AttemptAborted | None:
        if attempt.state is AttemptState.COMMITTED and attempt.info is not None:
            return AttemptCommitted(self._checkpoints.info_told(attempt.checkpoint) or attempt.info)
        return attempt.failure if attempt.state is AttemptState.ABORTED else None

    def _tell_everybody(self, attempt: Attempt) -> None:
        """All ranks and askers in one word: what it survives is counted once, not once for each.
        A writer of many files hears it once."""
        askers, attempt.askers = attempt.askers, []
        for _, payload in sorted(attempt.payloads.items()):
            if payload.session is not None:
                askers.append((payload.session, payload.request))
        end = self._end_of(attempt)
        assert end is not None
        for session, request in dict.fromkeys(askers):
            self._desk.send(session, request, end)

    def _let_go(self, attempt: Attempt) -> None:
        for payload in attempt.payloads.values():
            self._book.let_go(payload)
            if payload.allotment is not None:
                self._reservations.used(payload.allotment, payload.proofs.values())
                payload.allotment = None
            payload.table, payload.certify, payload.fingerprints = None, None, None
            payload.table_bytes.clear()
            payload.proofs = {}
            if payload.planned is not None:
                # Only that there was one counts now; its places are the bulk of what would stay.
                payload.planned = replace(payload.planned, places=(), absent=())
        attempt.forms = TableForms()
        attempt.index, attempt.record, attempt.record_bytes, attempt.placement = b"", None, b"", {}
        self._book.trim(ENDED_KEPT, ENDED_PAYLOADS_KEPT)

    # ----------------------------------------------------------------------- time and sessions

    def session_closed(self, session: Session) -> None:
        for askers in self._waiting.values():
            askers.pop(session, None)
        for attempt in self._book.open():
            attempt.askers = [asker for asker in attempt.askers if asker[0] != session]
        for payload in self._book.gone(session):
            payload.session, payload.away_since_us = None, self._desk.now_us

    def tick(self) -> None:
        """Stagers that stay away end their attempts; who waits is answered as soon as can be."""
        for checkpoint in [each for each in self._waiting if not self._is_early(each)]:
            for session, requests in self._waiting.pop(checkpoint).items():
                for request in sorted(requests):
                    self.tell_unknown(session, request, checkpoint)
        for attempt in self._book.open():
            launch = self._launches.get(attempt.checkpoint.run, attempt.launch)
            reason = why_abandoned(attempt, launch, self._desk.now_us)
            if reason:
                self.abort(attempt, Aborted(f"{attempt.checkpoint}: {reason}", hint="save again"))

    # ----------------------------------------------------------------------- telling

    def tell_end_of(self, session: Session, request: int, payload: PayloadId) -> None:
        """How it ended for a payload that is in no open attempt.

        Raises Aborted for a file that an attempt does without: the attempt itself, and the writer's
        other files in it, may go on.
        """
        found = self._book.find(payload)
        if found is not None:
            attempt, mine = found
            mine.session, mine.request = session, request
            self.tell_end(attempt, mine)
            return
        attempt_left = self._book.attempts.get(payload.checkpoint)
        if attempt_left is not None and attempt_left.of_members:
            raise discarded(payload)
        self.tell_unknown(session, request, payload.checkpoint)

    def tell_unknown(self, session: Session, request: int, checkpoint: CheckpointId) -> None:
        """Once it is known where the checkpoint lies, if it is one."""
        tell = partial(self._tell_unknown, session, request, checkpoint)
        self._placing.settle({checkpoint}, tell)

    def _tell_unknown(self, session: Session, request: int, checkpoint: CheckpointId) -> None:
        if self._is_early(checkpoint):
            askers = self._waiting.setdefault(checkpoint, {})
            askers.setdefault(session, set()).add(request)
            return
        info = self._checkpoints.info_told(checkpoint)
        if info is None:
            text = f"{checkpoint} is not known: it was aborted, or deleted long ago"
            aborted = AttemptAborted(checkpoint, Aborted.code, text, "save again")
            self._desk.send(session, request, aborted)
        else:
            self._desk.send(session, request, AttemptCommitted(info))

    def _is_early(self, checkpoint: CheckpointId) -> bool:
        """It is committed, and too little would be promised of it while targets gather after a
        start.
        """
        if not self._members.gathering:
            return False
        held, info = self._checkpoints.get(checkpoint), self._checkpoints.info_told(checkpoint)
        if held is None or info is None:
            return False
        return info.targets_survivable < held.info.targets_survivable
