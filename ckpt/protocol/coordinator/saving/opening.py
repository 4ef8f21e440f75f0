"""From a staged payload to its plan: attempts open here,
and are found again by stagers that come back.

An attempt opens with the first rank that hands over; its generation is durable before any rank
learns it, and space is held before any byte is sent.
"""

from __future__ import annotations

from ckpt.base.errors import Aborted, CkptError, Refused, Unavailable
from ckpt.base.ids import (
    CheckpointId,
    Generation,
    LaunchNumber,
    PayloadId,
    RunName,
    Step,
    check_run_name,
    check_step,
)
from ckpt.base.limits import CELL_BYTES_DEFAULT, LEASE_US, PAYLOAD_BYTES_MAX
from ckpt.format.documents.record import decode_record
from ckpt.format.layout import Layout, usual_cell_bytes
from ckpt.format.messages.hello import MOVES_VERSION
from ckpt.format.messages.metrics import check_metrics
from ckpt.format.messages.saving import ClaimSpace, HomesRefused, OpenPayload, PayloadPlanned
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.launch import Saved
from ckpt.protocol.coordinator.image import CatalogRow
from ckpt.protocol.coordinator.keeping.homes import TOO_MANY
from ckpt.protocol.coordinator.saving.attempts import (
    ENDED,
    Attempt,
    AttemptState,
    Payload,
)
from ckpt.protocol.coordinator.saving.committing import Committer
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.ending import Ending
from ckpt.protocol.coordinator.saving.refusing import Refusing, is_past
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.coordinator.saving.stranded import Stranded
from ckpt.protocol.events import Session

LATE_WAIT_US = 2 * LEASE_US
"""A payload without a plan waits no longer for targets that are late: one may have been heard just
before the payload came, be silent for its lease, and late for another.
"""


class Opening:
    """I answer OpenPayload: the same request twice gets the same answer."""

    def __init__(self, context: SavingContext, committer: Committer, ending: Ending) -> None:
        self._desk = context.desk
        self._book = context.book
        self._members = context.members
        self._launches = context.launches
        self._reservations = context.reservations
        self._homes = context.homes
        self._code = context.policy.code
        self._cell_bytes = context.policy.cell_bytes
        self._committer = committer
        self._ending = ending
        self._counter = 0
        #: Payloads without a plan while targets gather after a start, or are late; tried again on
        #: every tick.
        self._postponed: list[tuple[Attempt, Payload]] = []
        self._stranded = Stranded(context, ending)
        self._refusing = Refusing(context.desk, context.book, ending, self._refuse_alone)

    def tick(self) -> None:
        """Plan what waited for targets to come; end what has too few."""
        self._stranded.tick()
        self._refusing.tick()
        postponed, self._postponed = self._postponed, []
        for attempt, payload in postponed:
            if attempt.state not in ENDED:
                self.plan(attempt, payload)

    # ----------------------------------------------------------------------- open

    def open_payload(self, session: Session, request: int, message: OpenPayload) -> None:
        """A rank has staged. Raises Refused, Fenced or NoSpace, and holds nothing of it then;
        otherwise answers when the plan stands.
        """
        self._check(message)
        if message.resume is not None:
            self._resume(session, request, message, message.resume)
            return
        repeated = self._repeated(message)
        if repeated is not None:
            self._abort_if_it_differs(*repeated, message)
            self.answer_again(session, request, *repeated)
            return
        self._ending.abort_of_earlier_start(message)
        joinable = self._joinable(message)
        user = joinable.checkpoint if joinable is not None else None
        problem = self._homes.problem(message.run, message.homes, user)
        if problem:
            self._desk.send(session, request, HomesRefused(message.homes, problem))
            return
        if joinable is None:
            self._desk.check_room()
        self._ending.abort_what_lacks(message)
        if self._launches.begin(message.run, message.launch):
            self._ending.fence_older(message.run, message.launch)
        attempt = self._joinable(message) or self._new(message)
        payload = self.enter(attempt, session, message)
        payload.request = request
        if attempt.state in ENDED:
            self._ending.tell_end(attempt, payload)
            return
        if message.refused:
            self._refusing.refuse(attempt, payload, message)
            return
        self._ending.abort_passed_by(attempt)
        if attempt.state not in ENDED:
            self.plan(attempt, payload)

    def claim_space(self, session: Session, message: ClaimSpace) -> None:
        """A stager says what waits for its next save. Raises Refused or Unavailable for a launch
        that is not known, and Refused for what no coordinator has said."""
        launch = self._launches.joined(message.space.run, message.launch)
        member = launch.members.get(message.rank)
        if member is not None and session in member.stagers:
            self._reservations.claims.heard(session, message)

    def _check(self, message: OpenPayload) -> None:
        check_run_name(message.run)
        check_step(message.step)
        if not 0 <= message.payload_bytes <= PAYLOAD_BYTES_MAX:
            raise Refused(f"payload of {message.payload_bytes} bytes is out of bounds")
        check_metrics(message.metrics)
        launch = self._launches.joined(message.run, message.launch)
        if message.world_size != launch.world_size or not 0 <= message.rank < launch.world_size:
            raise Refused(
                f"rank {message.rank} of {message.world_size} does not fit launch {launch.key!r} "
                f"with world size {launch.world_size}"
            )

    def _repeated(self, message: OpenPayload) -> tuple[Attempt, Payload] | None:
        """The same save of the same process, asked again."""
        for attempt in self._book.of_step(message.run, message.step):
            payload = attempt.payloads.get(message.rank)
            if (
                payload is not None
                and payload.process == message.process
                and payload.save == message.save
            ):
                return attempt, payload
        return None

    def _joinable(self, message: OpenPayload) -> Attempt | None:
        """The oldest attempt of this launch at this step that lacks this rank.

        So the n-th save of a step by one rank meets the n-th of every other. One that was aborted
        before this rank came ends its save too, unless this process joined only afterwards. One
        that a rank refused does so as well when this is the rank's first process: it was on its
        way to that very save. A refusal that comes late ends no later save of the step.
        """
        launch = self._launches.joined(message.run, message.launch)
        joined_us, member = launch.joined_us(message.rank), launch.members.get(message.rank)
        first = member is None or not member.came_again
        mine = message.rank, message.process
        for attempt in self._book.of_step(message.run, message.step):
            if attempt.launch != message.launch or message.rank in attempt.payloads:
                continue
            if attempt.state not in ENDED:
                meets = not (message.refused and is_past(attempt, message)) and not any(
                    launch.are_two_starts(mine, (rank, payload.process))
                    for rank, payload in attempt.payloads.items()
                )
            elif 0 < attempt.refused_nth < message.nth:
                meets = False
            else:
                meets = attempt.opened_us >= joined_us or (attempt.refused and first)
            if meets:
                return attempt
        return None

    def _refuse_alone(self, payload: Payload, message: OpenPayload) -> None:
        """What it was entered in is a later save."""
        if payload.session is None:
            return  # Its stager says it again.
        attempt = self._new(message)
        alone = self.enter(attempt, payload.session, message)
        alone.request = payload.request
        self._ending.refuse(attempt, message)

    def _new(self, message: OpenPayload) -> Attempt:
        launch = self._launches.get(message.run, message.launch)
        assert launch is not None
        return self.new_attempt(
            message.run, message.step, launch.number, launch.key, launch.world_size
        )

    def new_attempt(
        self, run: RunName, step: Step, launch: LaunchNumber, key: str | None, world_size: int
    ) -> Attempt:
        """Open an attempt; its row must be durable before anything of it is sent."""
        self._counter += 1
        generation = Generation(self._members.term, self._counter)
        checkpoint = CheckpointId(run, step, generation)
        attempt = Attempt(checkpoint, launch, world_size, self._desk.now_us)
        self._book.add(attempt)
        entry = catalog.AttemptOpened(checkpoint, launch, key, world_size)

        def durable() -> None:
            if attempt.state is AttemptState.OPENING:
                attempt.state = AttemptState.OPEN
            for payload in list(attempt.payloads.values()):
                self._tell_plan(attempt, payload)
            self._committer.proceed(attempt)

        self._desk.persist((entry,), durable)
        return attempt

    def _layout(self, payload_bytes: int) -> Layout:
        cell_bytes = self._cell_bytes
        if cell_bytes is None and self._desk.needs >= MOVES_VERSION:
            cell_bytes = usual_cell_bytes(self._code, payload_bytes)
        return Layout.plan(self._code, payload_bytes, cell_bytes or CELL_BYTES_DEFAULT)

    def enter(self, attempt: Attempt, session: Session, message: OpenPayload) -> Payload:
        """What was handed over belongs to the attempt from here on."""
        payload = Payload(
            PayloadId(attempt.checkpoint, message.rank),
            message.process,
            message.save,
            message.replicas,
            session,
            self._layout(message.payload_bytes),
            opened_us=self._desk.now_us,
            member=message.member,
            homes=message.homes,
            metrics={} if message.member else message.metrics,
            nth=message.nth,
        )
        attempt.payloads[message.rank] = payload
        self._book.speaks(attempt, payload, session)
        if attempt.state not in ENDED:
            self._homes.hold(attempt.checkpoint, (home.id(message.run) for home in message.homes))
        launch = self._launches.get(message.run, message.launch)
        if launch is not None and not message.member:
            saved = Saved(message.process, message.step, self._desk.now_us)
            launch.handed_over(message.rank, saved, again=message.resume is not None)
        if not message.refused:
            self._refusing.came(attempt, payload)
        return payload

    def plan(self, attempt: Attempt, payload: Payload) -> None:
        """Hold space for the payload, then tell its places."""

        def done(result: Allotment | CkptError) -> None:
            if isinstance(result, Unavailable) and self._may_wait(payload):
                self._postponed.append((attempt, payload))
                return
            if isinstance(result, CkptError):
                self._ending.cannot_plan(attempt, payload, result)
                return
            if attempt.state in ENDED or not attempt.has(payload):
                self._reservations.release(result)
                return
            payload.allotment = result
            self._tell_plan(attempt, payload)

        key = attempt.checkpoint.run, payload.id.rank
        self._reservations.allot(key, payload.session, payload.layout, done)

    def _may_wait(self, payload: Payload) -> bool:
        """Whether enough targets are about to count; what was live a moment ago, not for ever."""
        members = self._members
        if members.gathering:
            return True
        coming = members.coming()
        patient = self._desk.now_us - payload.opened_us < LATE_WAIT_US
        patient = patient or any(map(members.is_powering_up, coming))
        enough = len(members.live()) + len(coming) >= payload.layout.code.floor
        return patient and enough and bool(coming)

    def _tell_plan(self, attempt: Attempt, payload: Payload) -> None:
        """Announce the generation: only when its row is durable and the space is held."""
        if attempt.state is AttemptState.OPENING or payload.allotment is None:
            return
        allotment = payload.allotment
        if payload.planned is None:
            payload.planned = PayloadPlanned(
                payload.id,
                str(payload.layout.code),
                payload.layout.cell_bytes,
                tuple(place for _, place in sorted(allotment.columns.items())),
                tuple(allotment.spares),
                allotment.absent,
            )
        if payload.session is not None:
            self._desk.send(payload.session, payload.request, payload.planned)
            payload.request = 0

    # ----------------------------------------------------------------------- again

    def answer_again(
        self, session: Session, request: int, attempt: Attempt, payload: Payload
    ) -> None:
        """The same question from a stager that may have missed the answer."""
        if not self._book.speaks(attempt, payload, session):
            return
        payload.away_since_us = None
        payload.request = request
        if attempt.state in ENDED:
            self._ending.tell_end(attempt, payload)
        else:
            self._tell_plan(attempt, payload)
            self._committer.ask_again(attempt, payload)

    def _resume(
        self, session: Session, request: int, message: OpenPayload, checkpoint: CheckpointId
    ) -> None:
        """A stager comes back to an attempt whose generation it knows."""
        attempt = self._book.attempts.get(checkpoint)
        if attempt is None:
            self._ending.tell_unknown(session, request, checkpoint)
            return
        payload = attempt.payloads.get(message.rank)
        if payload is None and attempt.state in ENDED:
            payload = self.enter(attempt, session, message)
        if payload is None:
            if attempt.launch != message.launch:
                raise Refused(f"{checkpoint} belongs to launch {attempt.launch}")
            if self._homes.too_many(message.run, message.homes, checkpoint):
                raise Refused(f"{checkpoint}: {TOO_MANY}")
            payload = self.enter(attempt, session, message)
            self._ending.abort_passed_by(attempt)
            self._abort_if_homeless(attempt, message)
        if payload.process != message.process:
            raise Refused(f"{payload.id} was handed over by another process")
        self.answer_again(session, request, attempt, payload)
        if payload.planned is None and attempt.state not in ENDED:
            self._desk.send(session, request, self.resumed_plan(payload))

    def _abort_if_it_differs(
        self, attempt: Attempt, payload: Payload, message: OpenPayload
    ) -> None:
        """A question that was answered by HomesRefused came once more, and found its homes whole
        again: the rank has chosen other bytes meanwhile.
        """
        if payload.homes != message.homes:
            text = f"{payload.id} was opened twice, with other homes"
            self._ending.abort(attempt, Aborted(text, hint="save again"))

    def _abort_if_homeless(self, attempt: Attempt, message: OpenPayload) -> None:
        """While no coordinator held them for it, what it refers to may have gone."""
        gone = self._homes.gone(message.run, message.homes)
        if gone:
            text = f"{attempt.checkpoint} refers to {gone[0]}, which was deleted meanwhile"
            self._ending.abort(attempt, Aborted(text, hint="save again"))

    def resumed_plan(self, payload: Payload) -> PayloadPlanned:
        """The stager has its plan; after a restart this one only says: go on with it."""
        return PayloadPlanned(
            payload.id, str(payload.layout.code), payload.layout.cell_bytes, (), ()
        )

    def recover(self, row: CatalogRow) -> None:
        """An attempt that the catalog knows at start: open ones wait, decided ones go on."""
        attempt = Attempt(
            row.checkpoint, row.launch, row.world_size, self._desk.now_us, recovered=True
        )
        attempt.state = AttemptState.OPEN
        attempt.closed = not attempt.of_members or row.state is RowState.DECIDED
        attempt.next_number = row.world_size
        self._book.add(attempt)
        if row.state is RowState.DECIDED:
            attempt.record_bytes = row.record
            attempt.record = decode_record(row.record)
            attempt.info = attempt.record.info
            attempt.state = AttemptState.RECORDING
            self._committer.stall(attempt)
