"""The coordinator: one pure machine, entered by `handle(event) -> list[Action]` alone.

    Membership      who is live, what each target has proved      (membership.py)
    Launches        which start of a run may save                 (launches.py)
    Reservations    space before bytes                            (reservations.py)
    AttemptBook     what ranks handed over                        (attempts.py)
    Opening         plans for staged payloads                     (opening.py)
    Members         attempts whose payloads are files             (members.py)
    Certifying      spares and certificates                       (certifying.py, attesting.py)
    Ending          aborts and announcements                      (ending.py)
    Committer       from certified to committed                   (committing.py)
    Checkpoints     what is committed, readable, pinned           (checkpoints.py)
    Homes           whose bytes later generations refer to        (homes.py)
    Resolver        which generation to read                      (resolving.py)
    LaunchRounds    what the ranks of a launch load together       (rounds.py)
    SharedReads     who of them reads what from the tier           (sharing.py)
    Deleter, Judge  tombstones, retention; proved damage          (deletion.py, judging.py,
                    index_inquiry.py)
    Vouching        whether the catalog is the newest              (vouching.py)
    Confirming      whether the targets still obey this process    (confirming.py)
    DrainQueue      what goes to object stores, under leases      (draining.py)
    Evictor         room for saves from what was drained          (evicting.py)

Here each event goes to the part that it concerns; nothing is decided here. A restart begins from
the catalog's image: open attempts wait for their stagers, decided ones are rolled forward with the
same record, committed ones count again as their targets register.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask, DeleteStep, ReplaceTarget
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.loading import ConfirmLoad, LoadBegan, ReleasePin, ReportDamage, Resolve
from ckpt.format.messages.reading import DocumentData
from ckpt.format.messages.saving import (
    BoxesCompared,
    Certify,
    CommitMembers,
    OpenPayload,
    PayloadGivenUp,
    RequestSpares,
)
from ckpt.format.messages.sharing import LeaveReads, NextReads, ShareReads
from ckpt.format.messages.targets import DocumentStored, RegisterTarget, RenewLease, Reserved
from ckpt.protocol.coordinator.catalog import CatalogImage, Persisted, RowState
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.cluster.vouching import Vouching, is_of_people
from ckpt.protocol.coordinator.confirming import Confirming, is_confirmed
from ckpt.protocol.coordinator.desk import Action, Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoint, Checkpoints
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from ckpt.protocol.coordinator.keeping.draining import DrainQueue, DrainRequest
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.keeping.homes import Homes
from ckpt.protocol.coordinator.keeping.judging import Judge
from ckpt.protocol.coordinator.policy import CoordinatorPolicy as CoordinatorPolicy
from ckpt.protocol.coordinator.reading.drain_views import store_statuses
from ckpt.protocol.coordinator.reading.resolving import Resolver
from ckpt.protocol.coordinator.reading.sharing import SharedReads
from ckpt.protocol.coordinator.reading.views import Views
from ckpt.protocol.coordinator.recovering import recover
from ckpt.protocol.coordinator.saving.attempts import ABORTABLE, ENDED, Attempt, AttemptBook
from ckpt.protocol.coordinator.saving.certifying import Certifying
from ckpt.protocol.coordinator.saving.committing import CommitPolicy, Committer
from ckpt.protocol.coordinator.saving.ending import Ending
from ckpt.protocol.coordinator.saving.members import Members
from ckpt.protocol.coordinator.saving.opening import Opening
from ckpt.protocol.coordinator.saving.reservations import Reservations
from ckpt.protocol.events import (
    Buffer,
    Received,
    Session,
    SessionClosed,
    SessionOpened,
    StoodStill,
    Ticked,
)

Event = SessionOpened | SessionClosed | Received | StoodStill | Ticked | Persisted

TARGET_MESSAGES = (RegisterTarget, RenewLease)
LATE_ANSWERS = (Failed, DocumentStored, DocumentData)
"""What a target may still say when nobody waits for it any more."""


class CoordinatorMachine:
    """I am the only one who commits.

    Give me every event in order; perform every action in order.
    """

    def __init__(
        self,
        policy: CoordinatorPolicy,
        image: CatalogImage,
        *,
        secret: bytes,
        wall_s: Callable[[], float],
    ) -> None:
        """`wall_s` is asked only for the time that people see in a commit (P12)."""
        self.policy = policy
        self._desk = Desk()
        self._roles: dict[Session, Role] = {}
        self.members = Membership(
            self._desk,
            cluster=policy.cluster,
            secret=secret,
            term=image.term,
            process=image.process,
            known=image.targets,
            came=self._target_came,
            left=self._target_left,
        )
        self.launches = Launches(image.term)
        self.checkpoints = Checkpoints(self.members, policy.report_level)
        self._make_keeping_parts(image)
        self._make_saving_parts(secret, wall_s)
        self.vouching = Vouching(
            self._desk,
            self.members,
            image,
            policy,
            state_of=self._state_of,
            forgotten=lambda: self.deleter.forgotten,
            vouched=self._begin_service,
        )
        self.resolver = Resolver(
            self._desk,
            self.checkpoints,
            self.launches,
            self.book.of_run,
            self.deleter.released,
            self.judge.suspect,
            self.drains.holders,
            self.drains.holding,
        )
        self.views = Views(
            policy.cluster,
            self.members,
            self.checkpoints,
            self.book,
            self.files,
            policy.code,
            lambda: store_statuses(self.drains, self._desk.now_us),
            lambda: self._desk.now_us,
            self.vouching,
        )
        recover(
            image, self.launches, self.opening, self.book, self.checkpoints, self.homes,
            self.deleter, self.resolver.rounds,
        )  # fmt: skip

    def _make_keeping_parts(self, image: CatalogImage) -> None:
        policy = self.policy
        self.judge = Judge(self._desk, self.members, self.checkpoints)
        self.sharing = SharedReads(self._desk)
        self.book = AttemptBook()
        self.confirming = Confirming(
            self._desk,
            self.members,
            self.book,
            lambda ids, allowed: self.vouching.is_majority(ids, allowed),
            self._do,
            lambda *unanswered: self.resolver.resolve_unconfirmed(*unanswered),
        )
        self.homes = Homes(self.checkpoints, lambda home: self.deleter.released(home))
        self.drains = DrainQueue(
            self._desk,
            self.checkpoints,
            image.stores,
            lambda run: self.deleter.expire(run),
            image.term,
        )
        self.deleter = Deleter(
            self._desk,
            self.members,
            self.checkpoints,
            cluster=policy.cluster,
            keep=policy.keep,
            let_go=self.homes.let_go,
            needed=self.drains.needed,
        )
        self.evictor = Evictor(
            self._desk,
            self.members,
            self.checkpoints,
            self.drains,
            policy.watermarks,
            self.deleter.evict,
        )
        self.reservations = Reservations(
            self._desk, self.members, policy.spread, self.evictor.no_room
        )

    def _make_saving_parts(self, secret: bytes, wall_s: Callable[[], float]) -> None:
        policy = self.policy
        self.ending = Ending(
            self._desk,
            self.book,
            self.members,
            self.launches,
            self.reservations,
            self.checkpoints,
            self._aborted,
        )
        self.committer = Committer(
            self._desk,
            self.members,
            self.reservations,
            CommitPolicy(policy.cluster, policy.spread, policy.report_level),
            self.homes,
            wall_s=wall_s,
            confirm=self.confirming.confirm,
            is_in_force=self.confirming.is_in_force,
            committed=self._committed,
            abort=self.ending.abort,
        )
        self.opening = Opening(
            self._desk,
            self.book,
            self.members,
            self.launches,
            self.reservations,
            self.committer,
            self.ending,
            self.homes,
            code=policy.code,
            cell_bytes=policy.cell_bytes,
        )
        self.files = Members(
            self._desk,
            self.book,
            self.opening,
            self.reservations,
            self.committer,
            self.ending,
            self.deleter.drop_payload,
        )
        self.certifying = Certifying(
            self._desk,
            self.book,
            self.members,
            self.reservations,
            self.committer,
            self.ending,
            self.homes,
            cluster=policy.cluster,
            secret=secret,
        )

    def handle(self, event: Event) -> list[Action]:
        """Everything that follows from one event."""
        self._desk.now_us = event.now_us
        match event:
            case SessionOpened():
                self._roles[event.session] = event.role
            case SessionClosed():
                self._closed(event.session)
            case Persisted():
                self._desk.persisted(event.ticket)
            case StoodStill():
                self.members.excuse(event.gap_us)
                self._desk.excuse(event.gap_us)
            case Ticked():
                self._tick()
            case Received():
                self._received(event)
        if self.vouching.serves:
            self.resolver.tick()
        return self._desk.take()

    # ----------------------------------------------------------------------- events

    def _received(self, event: Received) -> None:
        if event.session not in self._roles:
            return
        if self._desk.answered(event.session, event.request, event.message, event.bulk):
            return
        role = self._roles[event.session]
        from_target = role is Role.TARGET
        if not from_target and not self.vouching.serves and not is_of_people(event.message):
            self.vouching.hold(role, event)
            return
        if from_target and isinstance(event.message, Reserved):
            self.reservations.answered_late(event.session, event.message.reservation)
            return
        if from_target is not isinstance(event.message, TARGET_MESSAGES):
            name = type(event.message).__name__
            if not from_target or not isinstance(event.message, LATE_ANSWERS):
                self._desk.close(event.session, f"{name} does not belong on this session")
            return
        if is_confirmed(event.message):
            self.confirming.hold(event)
        else:
            self._do(event)

    def _do(self, event: Received) -> None:
        try:
            self._dispatch(event.session, event.request, event.message, event.bulk)
        except CkptError as error:
            self._desk.fail(event.session, event.request, error)

    def _dispatch(self, session: Session, request: int, message: Message, bulk: Buffer) -> None:
        match message:
            case RegisterTarget():
                self._register(session, request, message)
            case RenewLease():
                self.members.renew(session, request, message)
            case JoinLaunch():
                self._join(session, request, message)
            case OpenPayload() if message.member:
                self.files.open_file(session, request, message)
            case OpenPayload():
                self.opening.open_payload(session, request, message)
            case RequestSpares():
                self.certifying.request_spares(session, request, message)
            case Certify():
                self.certifying.certify(session, request, message, bulk)
            case PayloadGivenUp():
                if not self.files.given_up(session, request, message):
                    self.ending.given_up(session, request, message)
            case CommitMembers():
                self.files.commit(session, request, message, bulk)
            case BoxesCompared():
                self.certifying.compared(message)
            case TrainerLeft():
                self.ending.trainer_left(session, message)
            case Resolve():
                self.resolver.resolve(session, request, message)
            case LoadBegan():
                self.resolver.load_began(session, message)
            case ConfirmLoad():
                self.resolver.confirm(session, request, message)
            case ShareReads():
                self.sharing.share(session, request, message, bulk)
            case NextReads():
                self.sharing.next(session, request)
            case LeaveReads():
                self.sharing.leave(session, request, message.timeout_us)
            case ReleasePin():
                self.resolver.release(session, message.pin)
            case ReportDamage():
                self.judge.report(session, request, message)
            case ReplaceTarget():
                self.members.replace(session, request, message)
            case DeleteStep():
                self.deleter.delete_step(session, request, message)
            case Ask():
                answer = self.views.answer(message.what, message.run, message.step)
                self._desk.send(session, request, Answer(), answer)
            case _ if isinstance(message, DrainRequest):
                self.drains.handle(session, request, message, bulk)
            case _:
                self._desk.close(session, f"{type(message).__name__} is no request")

    def _register(self, session: Session, request: int, message: RegisterTarget) -> None:
        # A copy under another name repeats what the original was sent: that proves nothing.
        renamed = self.members.is_renamed(message)
        if not renamed and self.vouching.refuses(session, request, message):
            return
        target = self.members.register(session, request, message)
        if target is not None:
            self.vouching.registered(target, message.incarnation)
            self.reservations.reconcile(target, message.reservations)

    def _join(self, session: Session, request: int, message: JoinLaunch) -> None:
        """Answered when a restart would find the same launch."""
        from_stager = self._roles[session] is Role.STAGER
        launch, entries = self.launches.join(
            session, message, self._desk.now_us, from_stager=from_stager
        )
        turn = self.resolver.rounds.next_turn(message.run, launch, message.rank)
        joined = LaunchJoined(launch.number, turn, references=True, by_number=True)
        if not entries and not launch.unwritten:
            self._desk.send(session, request, joined)
            return

        def durable() -> None:
            launch.unwritten -= 1
            self._desk.send(session, request, joined)

        launch.unwritten += 1
        self._desk.persist(entries, durable)

    def _closed(self, session: Session) -> None:
        self._roles.pop(session, None)
        self._desk.lost(session)
        self.vouching.session_closed(session)
        self.confirming.session_closed(session)
        self.members.session_closed(session)
        self.launches.session_closed(session, self._desk.now_us)
        self.ending.session_closed(session)
        self.resolver.session_closed(session)
        self.sharing.session_closed(session)
        self.drains.session_closed(session)

    def _tick(self) -> None:
        self._desk.tick()
        self.members.tick()
        self.vouching.tick()
        problem = self.vouching.problem()
        if problem is not None:
            self.confirming.refuse_all(problem)
            self.resolver.refuse_all(problem)
            return
        self.confirming.tick()
        self.reservations.tick()
        self.deleter.tick()
        self._tick_attempts()
        self.opening.tick()
        self.files.tick()
        self.ending.tick()
        self.sharing.tick()
        self.drains.tick()
        self.evictor.tick()

    def _tick_attempts(self) -> None:
        for attempt in self.book.open():
            self.committer.tick(attempt)

    # ------------------------------------------------------------ what parts tell each other

    def _target_came(self, target: Target) -> None:
        served = self.vouching.serves
        self.vouching.listed(target)
        if served and self.vouching.serves:
            self.deleter.reconcile(target)
            self._tick_attempts()
            self.confirming.target_came()

    def _begin_service(self) -> None:
        """The catalog is the newest: what it says is done, who waited is answered."""
        for attempt in self.book.open():
            attempt.opened_us = self._desk.now_us  # Recovered ones have all their time from now on.
        for target in self.members.live():
            self.deleter.reconcile(target)
        self._tick_attempts()
        for event in self.vouching.release():
            self._received(event)

    def _state_of(self, id: CheckpointId) -> RowState | None:
        """How far a generation has come, as far as is known of it."""
        checkpoint = self.checkpoints.get(id)
        if checkpoint is not None:
            return checkpoint.state
        attempt = self.book.attempts.get(id)
        if attempt is None:
            return self.deleter.gone.get(id)
        if attempt.state in ENDED:  # It is no checkpoint; that it is aborted is being written.
            return self.deleter.gone.get(id, RowState.ABORTED)
        return RowState.OPEN if attempt.state in ABORTABLE else RowState.DECIDED

    def _target_left(self, target: Target) -> None:
        self.reservations.forget_target(target)

    def _committed(self, attempt: Attempt) -> None:
        assert attempt.info is not None
        assert attempt.record is not None
        record = attempt.record
        checkpoint = Checkpoint(
            attempt.info, attempt.record_bytes, record.index_targets, record.index_bytes,
            attempt.placement,
        )  # fmt: skip
        attempt.info = self.checkpoints.info_now(checkpoint)
        self.checkpoints.add(checkpoint)
        self.homes.keep_only(checkpoint.id, checkpoint.homes)
        self.resolver.rounds.written(checkpoint.id, sorted(attempt.written_by))
        self.confirming.committed(attempt.info)
        self.ending.announce(attempt)
        self.deleter.drop_strays(checkpoint)
        self.deleter.expire(checkpoint.id.run)

    def _aborted(self, attempt: Attempt) -> None:
        self.committer.forget(attempt)
        self.deleter.aborted(attempt.checkpoint)
