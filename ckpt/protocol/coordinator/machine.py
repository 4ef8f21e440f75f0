"""The coordinator: one pure machine, entered by `handle(event) -> list[Action]` alone.

    Membership      who is live, what each target has proved      (membership.py)
    Launches        which start of a run may save                 (launches.py)
    Preempting      where all its ranks stop, when one has to     (preempting.py, guards.py)
    Reservations    space before bytes                            (reservations.py)
    AttemptBook     what ranks handed over                        (attempts.py)
    Opening         plans for staged payloads                     (opening.py)
    Members         attempts whose payloads are files             (members.py)
    Certifying      spares and certificates                       (certifying.py, attesting.py)
    Ending          aborts and announcements                      (ending.py)
    Committer       from certified to committed                   (committing.py)
    Checkpoints     what is committed, readable, pinned           (checkpoints.py)
    Homes           whose bytes later generations refer to        (homes.py)
    Resolver, Asking  which generation to read; what people ask   (resolving.py, asking.py)
    Joining         which launch a process belongs to              (joining.py)
    LaunchRounds    what the ranks of a launch load together       (rounds.py)
    SharedReads     who of them reads what from the tier           (sharing.py)
    Retaining       what stays of a run, and why                  (retaining.py)
    Standings       how targets stand: in, draining, out, removed (standings.py)
    PlacementReader where the columns of recovered ones are        (placing.py)
    Deleter, Judge  tombstones; proved damage                     (deletion.py, judging.py)
    Upgrading       who speaks what, and whether columns may move  (upgrading.py)
    Vouching        whether the catalog is the newest              (vouching.py)
    Confirming      whether the targets still obey this process    (confirming.py)
    Labeling        names and pins                                (labeling.py)
    RollingBack     what came after a step is set aside           (rolling_back.py)
    DrainQueue      what goes to object stores, under leases      (draining.py)
    Evictor         room for saves from what was drained          (evicting.py)
    CoordinatorRest how long nothing needs to be looked at        (resting.py)

Each event goes to the part that it concerns, and what one part learns to those that act on it
(`_introduce`). A restart begins from the catalog's image: open attempts wait for their stagers,
decided ones are rolled forward, committed ones count again as their targets register.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId
from ckpt.format.messages.asking import Ask, DeleteStep, LabelStep, RollBack
from ckpt.format.messages.hello import Role
from ckpt.format.messages.keeping import KeepSteps
from ckpt.format.messages.launches import JoinLaunch, TrainerLeft
from ckpt.format.messages.loading import (
    AskMoves,
    ConfirmLoad,
    LoadBegan,
    ReleasePin,
    ReportDamage,
    Resolve,
)
from ckpt.format.messages.preempting import GuardStanding
from ckpt.format.messages.saving import (
    ClaimSpace,
    CommitMembers,
    OpenPayload,
    PayloadGivenUp,
)
from ckpt.format.messages.sharing import LeaveReads, NextReads, ShareReads
from ckpt.format.messages.speaking import refusal
from ckpt.format.messages.targets import RegisterTarget, RenewLease, Reserved
from ckpt.format.messages.upgrading import FinishUpgrade
from ckpt.protocol.coordinator import facts
from ckpt.protocol.coordinator.asking import Asking
from ckpt.protocol.coordinator.catalog import Persisted, RowState
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.cluster.map_keeping import MapKeeper
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.cluster.preempting import Preempting
from ckpt.protocol.coordinator.cluster.upgrading import Upgrading
from ckpt.protocol.coordinator.cluster.vouching import Vouching, is_of_people
from ckpt.protocol.coordinator.confirming import Confirming, is_confirmed
from ckpt.protocol.coordinator.desk import LATE_ANSWERS, Action, Desk, Then, Worked
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from ckpt.protocol.coordinator.keeping.draining import DrainQueue, DrainRequest
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.keeping.homes import Homes
from ckpt.protocol.coordinator.keeping.judging import Judge
from ckpt.protocol.coordinator.keeping.labeling import Labeling
from ckpt.protocol.coordinator.keeping.placing import PlacementReader
from ckpt.protocol.coordinator.keeping.retaining import Retaining
from ckpt.protocol.coordinator.keeping.rolling_back import RollingBack
from ckpt.protocol.coordinator.keeping.standings import StandingRequest, Standings
from ckpt.protocol.coordinator.policy import CoordinatorPolicy as CoordinatorPolicy
from ckpt.protocol.coordinator.reading.health import Health, Upkeep
from ckpt.protocol.coordinator.reading.joining import Joining
from ckpt.protocol.coordinator.reading.resolving import Resolver
from ckpt.protocol.coordinator.reading.sharing import ReaderGroups
from ckpt.protocol.coordinator.reading.views import Views
from ckpt.protocol.coordinator.recovering import recover
from ckpt.protocol.coordinator.repairing.context import RepairContext
from ckpt.protocol.coordinator.repairing.tasks import RepairRequest, Repairs
from ckpt.protocol.coordinator.repairing.traffic import Traffic
from ckpt.protocol.coordinator.resting import CoordinatorRest
from ckpt.protocol.coordinator.room import RoomSeen, changes_catalog, no_room
from ckpt.protocol.coordinator.saving.attempts import AttemptBook
from ckpt.protocol.coordinator.saving.certifying import Certifying, CertifyingRequest
from ckpt.protocol.coordinator.saving.committing import Committer
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.ending import Ending
from ckpt.protocol.coordinator.saving.generations import Generations
from ckpt.protocol.coordinator.saving.members import Members
from ckpt.protocol.coordinator.saving.opening import Opening
from ckpt.protocol.coordinator.saving.recorded import become_checkpoint
from ckpt.protocol.coordinator.saving.space.orphans import Orphans
from ckpt.protocol.coordinator.saving.space.reservations import Reserver
from ckpt.protocol.events import (
    Buffer,
    Received,
    Session,
    SessionClosed,
    SessionOpened,
    StoodStill,
    Ticked,
)

Event = (
    SessionOpened | SessionClosed | Received | StoodStill | Ticked | Persisted | RoomSeen | Worked
)


class CoordinatorMachine:
    """I am the only one who commits. Give me every event, and perform every action, in order."""

    def __init__(
        self, policy: CoordinatorPolicy, image: CatalogImage, *, secret: bytes,
        wall_s: Callable[[], float],
    ) -> None:  # fmt: skip
        """`wall_s`: only for the time that people see in a commit, and rules by age (P12)."""
        self.policy = policy
        self._desk = desk = Desk()
        self._roles: dict[Session, Role] = {}
        self.members = Membership(desk, cluster=policy.cluster, secret=secret, image=image)
        self.upgrading = Upgrading(desk, self.members, image.protocol)
        self.launches = Launches(image.term)
        self.preempting = Preempting(desk, self.launches)
        self.checkpoints = known = Checkpoints(self.members, policy.report_level)
        self.map_keeper = MapKeeper(desk, self.members, policy, lambda: bool(known.runs()))
        self._make_keeping_parts(image, wall_s)
        self.book = AttemptBook()
        orphans = Orphans(desk, self.members, self.book, policy.orphan_grace_us)
        self.reservations = Reserver(desk, self.members, policy.spread, self.evictor, orphans)
        generations = Generations(self.checkpoints, self.book, self.deleter)
        self.vouching = Vouching(desk, self.members, image, policy, generations)
        self.confirming = Confirming(desk, self.members, self.book, self.vouching)
        context = SavingContext(
            desk, policy, self.members, self.launches, self.book, self.reservations, self.homes,
            self.placing,
        )  # fmt: skip
        self._make_saving_parts(context, secret, wall_s)
        self.sharing = ReaderGroups(desk)
        self.resolver = Resolver(desk, self.checkpoints, self.launches, self.book, self.drains)
        traffic = Traffic(self.book, self.resolver.pins, self._roles)
        self.repairs = Repairs(RepairContext(
            desk, policy, self.members, self.checkpoints, self.adopter, self.reservations,
            self.drains, self.retaining, traffic, self.evictor, image.repair, wall_s,
        ))  # fmt: skip
        self.joining = Joining(desk, self.launches, self.resolver.rounds)
        health = Health(
            self.members, self.checkpoints, policy, self.vouching, self.evictor, self.retaining,
            Upkeep(self.repairs, self.upgrading, self.drains),
        )  # fmt: skip
        self.views = Views(
            context, known, self.files, self.drains, self.retaining, health, self.repairs
        )
        self.asking = Asking(desk, self.members, self.checkpoints, self.views)
        self.resting = CoordinatorRest(desk, self.members, self.vouching, self.book, self.asking)
        self._introduce()
        recover(
            image, self.launches, self.opening, self.book, self.checkpoints, self.homes,
            self.deleter, self.labeling, self.resolver.rounds,
        )  # fmt: skip
        self.retaining.begin()

    def _make_keeping_parts(self, image: CatalogImage, wall_s: Callable[[], float]) -> None:
        policy, desk, known = self.policy, self._desk, self.checkpoints
        self.placing = PlacementReader(desk, self.members, known)
        self.judge = Judge(desk, self.members, known, image.rebuilt_term)
        self.homes = Homes(desk, known)
        self.drains = DrainQueue(desk, known, image.stores, image.term)
        self.retaining = Retaining(
            desk, known, self.drains, image.retentions, keep=policy.keep, wall_s=wall_s
        )
        self.deleter = Deleter(
            desk, self.members, known, self.retaining, self.launches, cluster=policy.cluster
        )
        self.adopter = Adopter(desk, self.members, known, self.deleter, policy)
        self.standings = Standings(desk, self.members, known, self.map_keeper, policy)
        self.labeling = Labeling(desk, self.members, known, policy.cluster)
        self.rolling_back = RollingBack(desk, known, self.labeling)
        self.evictor = Evictor(
            desk, self.members, known, self.drains, policy.watermarks, self.deleter
        )

    def _make_saving_parts(
        self, context: SavingContext, secret: bytes, wall_s: Callable[[], float]
    ) -> None:
        self.ending = Ending(context, self.checkpoints)
        aged_at_s = self.retaining.aged_at_s
        self.committer = Committer(context, self.ending, self.confirming, wall_s, aged_at_s)
        self.opening = Opening(context, self.committer, self.ending)
        self.files = Members(context, self.opening, self.committer, self.ending)
        self.certifying = Certifying(context, self.committer, self.ending, secret)

    def _introduce(self) -> None:
        """Who hears which fact, and in which order."""
        hear = self._desk.hear
        hear(facts.TargetListed, self.vouching.listed)
        hear(
            facts.TargetVouched,
            self.placing.target_vouched,
            self.deleter.target_vouched,
            self.adopter.target_vouched,
            self.committer.target_vouched,
            self.confirming.target_vouched,
        )
        hear(facts.TargetLeft, self.reservations.target_left)
        hear(facts.TargetRemoved, self.adopter.target_removed, self.deleter.target_removed)
        hear(facts.CatalogVouched, self._begin_service)
        hear(facts.RequestConfirmed, self._confirmed)
        hear(facts.LoadUnconfirmed, self.resolver.resolve_unconfirmed)
        hear(facts.AttemptRecorded, self._recorded)
        hear(
            facts.CheckpointCommitted,
            self.homes.committed,
            self.resolver.rounds.committed,
            self.confirming.committed,
            self.ending.announce,
            self.adopter.committed,
            self.drains.committed,
            self.deleter.committed,
        )
        hear(facts.AttemptDropped, self.committer.attempt_dropped, self.deleter.attempt_dropped)
        hear(facts.FileDropped, self.deleter.file_dropped)
        hear(facts.CheckpointReleased, self.deleter.released, self.adopter.released)
        hear(facts.ReferencesDropped, self.homes.let_go)
        hear(facts.RunForgotten, self.resolver.rounds.run_forgotten, self.drains.run_forgotten)
        hear(facts.RunDrained, self.deleter.drained)
        hear(facts.RetentionDue, self.deleter.retention_due)
        hear(facts.CheckpointDoubted, self.placing.doubted, self.judge.doubted)
        hear(facts.CheckpointPlaced, self._placed)

    def handle(self, event: Event) -> list[Action]:
        """Everything that follows from one event."""
        self._desk.now_us = event.now_us
        match event:
            case SessionOpened():
                self._roles[event.session] = event.role
                self.upgrading.opened(event)
            case SessionClosed():
                self._closed(event.session)
            case Persisted():
                self._desk.persisted(event.ticket)
            case StoodStill():
                self.members.excuse(event.gap_us)
                self._desk.excuse(event.gap_us)
            case Ticked():
                self._tick()
            case RoomSeen():
                self._see_room(event)
            case Worked():
                self._desk.work()
            case Received():
                self._received(event)
        if self.vouching.serves:
            self.resolver.tick()
        actions = self._desk.take()
        self.resting.saw(event, actions)
        return actions

    # ----------------------------------------------------------------------- events

    def _received(self, event: Received) -> None:
        if event.session not in self._roles:
            return
        if self._desk.answered(event.session, event.request, event.message, event.bulk):
            return
        role = self._roles[event.session]
        from_target = role is Role.TARGET
        if (refused := refusal(role, event.message)) is not None:
            self._desk.fail(event.session, event.request, refused)
            return
        if not from_target and not self.vouching.serves and not is_of_people(event.message):
            self.vouching.hold(role, event)
            return
        if from_target and isinstance(event.message, Reserved):
            self.reservations.answered_late(event.session, event.message.reservation)
            return
        if from_target and isinstance(event.message, LATE_ANSWERS):
            return
        if is_confirmed(event.message):
            self.confirming.hold(event)
        else:
            self._do(event)

    def _see_room(self, event: RoomSeen) -> None:
        """What waits for its first entry waits no longer."""
        self._desk.full = full = no_room(self.policy.cluster, event)
        if full is None:
            return
        self.ending.refuse_unwritten(full)
        self.joining.full(full)

    def _do(self, event: Received) -> None:
        try:
            if changes_catalog(event.message):
                self._desk.check_room()
            self._dispatch(event.session, event.request, event.message, event.bulk)
        except CkptError as error:
            self._desk.fail(event.session, event.request, error)

    def _dispatch(self, session: Session, request: int, message: object, bulk: Buffer) -> None:
        # Not `Message`: mypy would take each case from a union of all, for seconds.
        match message:
            case RegisterTarget():
                self._register(session, request, message)
            case RenewLease():
                self.members.renew(session, request, message)
            case JoinLaunch():
                self.joining.join(session, request, message, self._roles[session])
            case GuardStanding():
                self.preempting.heard(session, message)
            case OpenPayload():
                self._open_payload(session, request, message)
            case ClaimSpace():
                self.opening.claim_space(session, message)
            case _ if isinstance(message, CertifyingRequest):
                self.certifying.handle(session, request, message, bulk)
            case PayloadGivenUp():
                if not self.files.given_up(session, request, message):
                    self.ending.given_up(session, request, message)
            case CommitMembers():
                self.files.commit(session, request, message, bulk)
            case TrainerLeft():
                self.ending.trainer_left(session, message)
            case Resolve():
                self.resolver.resolve(session, request, message)
            case AskMoves():
                self.resolver.tell_moves(session, request, message)
            case LoadBegan():
                self.resolver.load_began(session, message)
            case ConfirmLoad():
                self.resolver.confirm(session, request, message)
            case ShareReads() | NextReads() | LeaveReads():
                self.sharing.handle(session, request, message, bulk)
            case ReleasePin():
                self.resolver.release(session, message.pin)
            case ReportDamage():
                self._report_damage(session, request, message)
            case LabelStep():
                self.labeling.label_step(session, request, message)
            case RollBack():
                self._roll_back(session, request, message)
            case KeepSteps():
                self._keep(session, request, message)
            case DeleteStep():
                delete = partial(self.deleter.delete_step, session, request, message)
                self.labeling.in_turn(session, request, message.run, delete)
            case Ask():
                self.asking.ask(session, request, message)
            case FinishUpgrade():
                self.upgrading.finish(session, request, message)
            case _ if isinstance(message, StandingRequest):
                self.standings.handle(session, request, message)
            case _ if isinstance(message, RepairRequest):
                self.repairs.handle(session, request, message)
            case _ if isinstance(message, DrainRequest):
                self.drains.handle(session, request, message, bulk)
            case _:
                self._desk.close(session, f"{type(message).__name__} is no request")

    def _open_payload(self, session: Session, request: int, message: OpenPayload) -> None:
        if message.member:
            self.files.open_file(session, request, message)
            return
        homes = {home.id(message.run) for home in message.homes}
        act = partial(self.opening.open_payload, session, request, message)
        self._once_placed(session, request, homes, act)

    def _report_damage(self, session: Session, request: int, message: ReportDamage) -> None:
        act = partial(self.judge.report, session, request, message)
        self._once_placed(session, request, {message.payload.checkpoint}, act)

    def _roll_back(self, session: Session, request: int, message: RollBack) -> None:
        held = self.checkpoints.of_step(message.run, message.step, RowState.COMMITTED)
        act = partial(self.rolling_back.roll_back, session, request, message)
        self._once_placed(session, request, {one.id for one in held}, act)

    def _once_placed(
        self, session: Session, request: int, ids: Collection[CheckpointId], act: Then
    ) -> None:
        """Right after a start it is not known yet where what the catalog names lies."""

        def settled() -> None:
            try:
                if session in self._roles:
                    act()
            except CkptError as error:
                self._desk.fail(session, request, error)

        self.placing.settle(ids, settled)

    def _keep(self, session: Session, request: int, message: KeepSteps) -> None:
        if message.dry_run:
            self.asking.foretell(session, request, message)
        else:
            self.retaining.keep_steps(session, request, message)

    def _register(self, session: Session, request: int, message: RegisterTarget) -> None:
        # A copy under another name repeats what the original was sent: that proves nothing.
        renamed = self.members.seats.is_renamed(message)
        if not renamed and self.vouching.refuses(session, request, message):
            return
        target = self.members.register(session, request, message)
        if target is not None:
            self.upgrading.registered(session, message)
            self.vouching.registered(target, message.incarnation)
            self.map_keeper.registered(target, message)
            self.reservations.reconcile(target, message.reservations)

    def _closed(self, session: Session) -> None:
        self._roles.pop(session, None)
        self.joining.session_closed(session)
        self._desk.lost(session)
        self.upgrading.closed(session)
        self.vouching.session_closed(session)
        self.confirming.session_closed(session)
        self.members.session_closed(session)
        self.launches.session_closed(session, self._desk.now_us)
        self.preempting.session_closed(session)
        self.ending.session_closed(session)
        self.resolver.session_closed(session)
        self.sharing.session_closed(session)
        self.asking.session_closed(session)
        self.drains.session_closed(session)
        self.repairs.session_closed(session)

    def _tick(self) -> None:
        self._desk.tick()
        self.members.tick()
        self.placing.tick()
        self.vouching.tick()
        problem = self.vouching.problem()
        if problem is not None:
            self.confirming.refuse_all(problem)
            self.resolver.refuse_all(problem)
            self.asking.refuse_all(problem)
            return
        self.confirming.tick()
        self.map_keeper.tick()
        self.reservations.tick()
        self.labeling.tick()
        self.retaining.tick()
        self.deleter.tick()
        self.adopter.tick()
        self.committer.tick()
        self.opening.tick()
        self.files.tick()
        self.ending.tick()
        self.sharing.tick()
        self.asking.tick()
        self.drains.tick()
        self.repairs.tick()
        self.evictor.tick()

    # ------------------------------------------------------------ facts that concern all parts

    def _begin_service(self, _fact: facts.CatalogVouched) -> None:
        """What the catalog says is done, who waited is answered."""
        for attempt in self.book.open():
            # Recovered ones have all their time from now on.
            attempt.opened_us = self._desk.now_us
        here = self.members.live()
        self.deleter.reconcile(*here)
        self.adopter.reconcile(*here)
        self.committer.tick()
        for event in self.vouching.release():
            self._received(event)
        self.placing.begin()

    def _confirmed(self, fact: facts.RequestConfirmed) -> None:
        self._do(fact.event)

    def _placed(self, fact: facts.CheckpointPlaced) -> None:
        """Until the catalog is vouched for nothing is dropped; then all is looked at."""
        if self.vouching.serves:
            self.adopter.placed(fact)

    def _recorded(self, fact: facts.AttemptRecorded) -> None:
        """An attempt becomes a checkpoint."""
        attempt = self.book.attempts[fact.checkpoint]
        info, written_by = become_checkpoint(attempt, self.checkpoints)
        self._desk.tell(facts.CheckpointCommitted(info.checkpoint, info, written_by))
