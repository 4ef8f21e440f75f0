"""The target's machine: everything a `ckptd target` decides.

    start      load(DirectoryLoaded) -> serving
    sessions   stagers write columns (columns.py), readers read (reading/),
               the coordinator, which this target dials, commands
    term       NONE --TargetRegistered(term >= seen)--> PERSISTING --durable--> ACCEPTED(term)
                                               every TERM_RETRY_US ^ `-- disk refused --> HELD OUT

Held out, it renews its lease and is read, so that what it holds counts; it obeys no command.

Invariants: a command of a term below the highest that is durable here is refused; a command of the
term that is being persisted waits until it is durable, so that any answered command proves it.
Remote input never raises. `check()` asserts the parts' invariants after any event.
"""

from __future__ import annotations

from ckpt.base.ids import Epoch, TargetId
from ckpt.format.messages.hello import CancelRequest, Failed, Role
from ckpt.format.messages.lending import LendColumn, ReturnColumn
from ckpt.format.messages.reading import ReadDocument, ReadManifest, ReadRanges, VerifyColumn
from ckpt.format.messages.scrubbing import AskScrub
from ckpt.format.messages.targets import (
    AskMap,
    Attest,
    DropColumn,
    DropGeneration,
    KeepMap,
    KeepProtocol,
    LeaseRenewed,
    ListColumns,
    ListHoldings,
    PutDocument,
    ReleaseReservation,
    Reserve,
    TargetRegistered,
)
from ckpt.format.messages.writing import AbandonColumn, AskPace, BeginColumn, Fragment, SealColumn
from ckpt.protocol.events import (
    Buffer,
    CloseSession,
    Received,
    Session,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from ckpt.protocol.target.at_rest.scrub import Scrub
from ckpt.protocol.target.at_rest.verifying import Verifying
from ckpt.protocol.target.columns import Columns
from ckpt.protocol.target.core import STAGING, Core, TargetAction, TargetIdentity, TargetLimits
from ckpt.protocol.target.dead_device import DeadDevice
from ckpt.protocol.target.device import DeviceHealth
from ckpt.protocol.target.directory import DirectoryLoaded, adopt, is_aside
from ckpt.protocol.target.disk_events import (
    DiskDone,
    DiskFailed,
    SessionDrained,
    SpaceMeasured,
)
from ckpt.protocol.target.documents import Documents
from ckpt.protocol.target.listing import Listing
from ckpt.protocol.target.notes.catalog_note import CatalogNote
from ckpt.protocol.target.notes.map_note import MapNote
from ckpt.protocol.target.notes.needs import Needs
from ckpt.protocol.target.presenting import Presenting, TargetRest
from ckpt.protocol.target.reading.document_reads import DocumentReads
from ckpt.protocol.target.reading.pieces import TableCache
from ckpt.protocol.target.reading.reads import Reads
from ckpt.protocol.target.space import Reservations, Space
from ckpt.protocol.target.terms import Terms
from ckpt.protocol.target.workers import Workers

TargetEvent = (
    SessionOpened | SessionClosed | Received | Ticked | DiskDone | DiskFailed | SpaceMeasured
    | SessionDrained | DirectoryLoaded
)  # fmt: skip

Command = (
    Reserve | ReleaseReservation | Attest | KeepMap | KeepProtocol | PutDocument | DropGeneration
    | DropColumn
)  # fmt: skip
"""What only the coordinator may ask, under its term."""

COMMANDS_HELD_MAX = 256  # While a term is made durable.
TERM_RETRY_US = 100_000  # Between two tries, while the device counts as well.


class TargetMachine:
    """I am one target. My shell performs my actions and tells me what happened."""

    def __init__(
        self, identity: TargetIdentity, secret: bytes, limits: TargetLimits | None = None
    ) -> None:
        self._core = Core(identity, secret, limits or TargetLimits())
        self._space = Space(self._core)
        self._reservations = Reservations(self._core, self._space)
        self._tables = TableCache(self._core)
        self._columns = Columns(self._core, self._reservations, self._tables)
        self._workers = Workers(self._core)
        self._workers.writing = self._columns.sessions
        self._reads = Reads(self._core, self._tables, self._workers)
        self._documents = Documents(
            self._core, self._space, self._reservations, self._columns, self._tables
        )
        self._document_reads = DocumentReads(self._core, self._reads)
        self._listing = Listing(self._core, self._columns)
        self._verifying = Verifying(self._core, self._reads)
        self._scrub = Scrub(self._core, self._reservations, self._reads)
        self._dead_device = DeadDevice(self._core)
        self._note = CatalogNote(self._core, self._reservations)
        self._needs = Needs(self._core, self._reservations)
        self._map = MapNote(self._core, self._reservations)
        self._presenting = Presenting(
            self._core, self._space, self._reservations, self._note, self._map, self._scrub
        )
        self.resting = TargetRest(self._core, self._reads, self._scrub, self._presenting)
        self._terms = Terms(self._core, self._reservations, self._needs, self._term_written)
        #: Commands held until the offered term is durable, in order; at most COMMANDS_HELD_MAX.
        self._held: list[Received] = []

        self._coordinator: Session | None = None  # The one that was dialed.
        self._registered = False  # Its commands are obeyed.
        #: What TargetRegistered said on that session; 0 before that came.
        self._offered_term, self._offered_process, self._offered_protocol = 0, b"", 0
        #: When the disk last kept the offered term from being durable; None while it does not.
        #: Then no command is obeyed, but the lease is renewed: what lies here is read.
        self._held_out_us: int | None = None
        self._refusal = ""  # Why it is not taken in, last: that is reported once.
        self._request_count = 0
        self.epoch = Epoch(0)

    # ----------------------------------------------------------------------- for shells and tests

    @property
    def term(self) -> int:
        """The highest term on stable storage here."""
        return self._terms.durable

    @property
    def needs(self) -> int:
        """What one has to speak here, durably."""
        return self._needs.version

    @property
    def registered(self) -> bool:
        """Whether a coordinator has taken this target in, on the present session."""
        return self._registered

    @property
    def counters(self) -> dict[str, int]:
        """Cumulative since boot."""
        return self._core.counters.as_dict()

    def note_peers(
        self, *, full: bool, descriptor_limit: int, turned_away: int, evicted: int
    ) -> None:
        """How it stands at the shell's port; the next renewal tells it."""
        counters = self._core.counters
        counters.connections_full = int(full)
        counters.descriptor_limit = descriptor_limit
        counters.peers_turned_away = turned_away
        counters.strangers_evicted = evicted

    @property
    def target(self) -> TargetId:
        return self._core.identity.target

    @property
    def refusals(self) -> dict[str, int]:
        """Columns refused since boot, by the code of the answer."""
        return dict(self._core.refusals)

    @property
    def device(self) -> DeviceHealth:
        """What the device refused; to be read only."""
        return self._core.device

    @property
    def is_device_dead(self) -> bool:
        """Whether it neither takes nor gives anything: this process is of no use any more."""
        return self._dead_device.is_dead

    @property
    def space(self) -> Space:
        """The device's budget; to be read only."""
        return self._space

    @property
    def column_count(self) -> int:
        return len(self._core.columns)

    @property
    def bytes_used(self) -> int:
        return self._core.bytes_used

    @property
    def operations_open(self) -> int:
        """Disk operations that are not answered."""
        return self._core.operations_open

    def check(self) -> None:
        """Assert the invariants of all parts."""
        self._columns.check()
        self._reads.check()
        self._scrub.check()

    # ----------------------------------------------------------------------- events

    def handle(self, event: TargetEvent) -> list[TargetAction]:
        """What to do about it, in this order."""
        core = self._core
        core.turn_to(event.now_us)
        match event:
            case Received():
                self._received(event)
            case DiskDone() | DiskFailed():
                core.complete(event)
                self._documents.retry_drops()
                self._listing.look()
                if self._presenting.has_turned and self._may_renew:
                    self._renew()
            case SessionDrained(session=session):
                self._reads.drained(session)
            case Ticked():
                self._tick()
            case SpaceMeasured():
                self._space.measured(event)
            case SessionOpened():
                self._session_opened(event)
            case SessionClosed(session=session):
                self._session_closed(session)
            case DirectoryLoaded():
                self._terms.load(event.term, event.coordinator)
                self._note.stored = event.catalog
                self._map.load(event.map)
                self._needs.kept(event.protocol)
                self._scrub.load(event.scrub, event.wall_us)
                self._reservations.begin_behind(one.file for one in event.files if is_aside(one))
                adopt(core, event)
                self._scrub.loaded(event.scrub)
        self._reads.pump()
        out, core.out = core.out, []
        self.resting.saw(event, out)
        return out

    def _session_opened(self, event: SessionOpened) -> None:
        stays = self._needs.opened(event)
        self._reads.session_opened(event)
        if event.role is Role.DRAIN:
            self._workers.opened(event.session)
        if event.role is not Role.COORDINATOR:
            self._core.counters.sessions_opened += 1
        elif stays:
            self._coordinator_came(event.session)

    def _session_closed(self, session: Session) -> None:
        self._needs.closed(session)
        self._columns.session_closed(session)
        self._reads.session_closed(session)
        self._workers.closed(session)
        self._documents.session_closed(session)
        self._listing.session_closed(session)
        self._held = [each for each in self._held if each.session != session]
        if session == self._coordinator:
            self._coordinator, self._registered, self._held_out_us = None, False, None
            self._offered_term = 0

    # ----------------------------------------------------------------------- messages

    def _received(self, event: Received) -> None:
        session, request, bulk = event.session, event.request, event.bulk
        # Not `Message`: mypy would take each case from a union of all, for seconds.
        message: object = event.message
        match message:
            case Fragment():
                self._columns.fragment(session, request, message, bulk, event.sums)
            case BeginColumn():
                self._columns.begin(session, request, message)
            case SealColumn():
                self._columns.seal(session, request, message, bulk)
            case AskPace():
                self._columns.asked(session, request)
            case AbandonColumn():
                self._columns.abandon(session, request)
            case ReadRanges():
                self._reads.read_ranges(session, request, message)
            case ReadManifest():
                self._reads.read_manifest(session, request, message)
            case LendColumn():
                self._reads.lend(session, request, message)
            case ReturnColumn():
                self._reads.returned(session, request, message)
            case VerifyColumn():
                self._verifying.verify(session, request, message)
            case AskScrub(begin=begin):
                if begin:
                    self._scrub.begin_pass()
                self._core.send(session, request, self._scrub.state)
            case ReadDocument():
                self._document_reads.read(session, request, message)
            case CancelRequest():
                self._reads.cancel(session, request)
            case AskMap():
                self._map.tell(session, request)
            case ListColumns() | ListHoldings():
                self._listing.asked(session, request, message)
            case _ if isinstance(message, Command):
                self._command(event, message)
            case TargetRegistered():
                self._register(session, message)
            case LeaseRenewed(epoch, position, repair_bytes) if session == self._coordinator:
                self._workers.bytes_per_s = repair_bytes
                self.epoch = epoch
                self._note.told(position)
            case Failed(message=text, hint=remedy, retry_after_us=after_us) if (
                session == self._coordinator
            ):
                if text != self._refusal:
                    self._core.report("error", "the coordinator refused", why=text, remedy=remedy)
                self._refusal = text
                self._core.out.append(CloseSession(session, f"refused: {text}", after_us))
            case _:
                reason = f"{type(message).__name__} is nothing that is sent to a target"
                self._core.out.append(CloseSession(session, reason))

    def _command(self, event: Received, message: Command) -> None:
        core, session, request = self._core, event.session, event.request
        if session != self._coordinator:
            core.out.append(CloseSession(session, "a command from another than the coordinator"))
            return
        pending = self._terms.pending
        if pending is not None and message.term >= pending:
            if len(self._held) >= COMMANDS_HELD_MAX:
                core.fail(session, request, "unavailable", "the term is not durable yet")
                return
            self._held.append(Received(event.now_us, session, request, message, bytes(event.bulk)))
            return
        if self._held_out_us is not None:
            if isinstance(message, ReleaseReservation) and len(self._held) < COMMANDS_HELD_MAX:
                self._held.append(event)  # Nobody would hear that it was not done.
                return
            text = f"term {message.term} cannot be made durable: {core.device.latest}"
            core.fail(session, request, "unavailable", text)
            return
        if message.term < self.term or not self._registered:
            text = f"term {message.term} is not the one in force here, {self.term}"
            core.fail(session, request, "refused", text)
            return
        self._obey(session, request, message, event.bulk)

    def _obey(self, session: Session, request: int, message: Command, bulk: Buffer) -> None:
        match message:
            case Reserve():
                self._reservations.reserve(session, request, message)
            case ReleaseReservation():
                self._reservations.release(message)
            case Attest():
                self._listing.attest(session, request, message)
            case KeepMap():
                self._map.keep(session, request, bulk)
            case PutDocument():
                self._documents.put(session, request, message, bulk)
            case DropGeneration() | DropColumn():
                self._documents.drop(session, request, message)
            case KeepProtocol():
                self._needs.keep(session, request, message)

    # ----------------------------------------------------------------------- coordinator

    def _coordinator_came(self, session: Session) -> None:
        """The dialed session stands: present this process."""
        if self._coordinator is not None:
            self._core.out.append(CloseSession(self._coordinator, "a newer session replaces it"))
            self._session_closed(self._coordinator)
        self._coordinator, self._registered, self._offered_term = session, False, 0
        register = self._presenting.registration(self.term, self._terms.process, self.needs)
        self._core.send(session, self._next_request(), register)

    def _register(self, session: Session, message: TargetRegistered) -> None:
        if session != self._coordinator:
            self._core.out.append(CloseSession(session, "not the session that was dialed"))
            return
        highest = self._terms.highest
        why = ""
        if message.term < highest:
            why = f"coordinator of term {message.term}, {highest} was seen"
        elif message.term == highest and self._terms.is_anothers(message.coordinator):
            why = f"another coordinator of term {message.term}: its catalog is a copy"
        if why:
            if why != self._refusal:
                self._core.report("error", "stale coordinator", why=why)
            self._refusal = why
            self._core.out.append(CloseSession(session, why))
            return
        self._presenting.begin_lease()
        self.epoch, self._offered_term = message.epoch, message.term
        self._offered_process, self._offered_protocol = message.coordinator, message.protocol
        if message.term == self.term and message.protocol <= self.needs:
            self._accept()
        else:
            self._terms.persist(message.term, message.coordinator, message.protocol)

    def _term_written(self, term: int, failure: DiskFailed | None) -> None:
        if failure is not None:
            self._hold_out(failure)
        elif self._coordinator is not None and self._offered_term == term:
            self._accept()

    def _hold_out(self, failure: DiskFailed) -> None:
        """No command is obeyed under a term that is not durable; what lies here is read all the
        same.
        """
        if self._coordinator is None or not self._offered_term:
            return  # Whoever offered it is gone; the next one's is tried again.
        if self._held_out_us is None:
            self._core.report("error", "term not persisted", error=failure.errno_name)
        self._registered, self._held_out_us = False, self._core.now_us
        held, self._held = self._held, []
        for each in held:
            self._received(each)

    def _try_term_again(self) -> None:
        """While the device fails its probe goes first."""
        since, pending = self._held_out_us, self._terms.pending
        if since is None or pending is not None or not self._offered_term:
            return
        if self._core.now_us - since >= TERM_RETRY_US and not self._core.device.is_failing:
            process, protocol = self._offered_process, self._offered_protocol
            self._terms.persist(self._offered_term, process, protocol)

    def _accept(self) -> None:
        """The term is durable: the commands that waited for it are obeyed in order."""
        self._registered, self._held_out_us, self._refusal = True, None, ""
        self._presenting.taken_in()
        held, self._held = self._held, []
        for each in held:
            self._received(each)

    def _tick(self) -> None:
        self._reads.ticked(self._coordinator)
        self._columns.ticked()
        self._scrub.ticked()
        self._listing.look()
        if self._core.device.begin_probe(self._core.now_us):
            self._core.probe(self._reservations.new_file("probe"))
        self._try_term_again()
        if self._renewal_is_due():
            self._renew()

    def _renewal_is_due(self) -> bool:
        """Also while a slow disk makes the term durable: it obeys nothing yet, and is read."""
        if self._may_renew:
            return self._presenting.renewal_is_due()
        return self._offered_term > 0 and self._presenting.is_overdue()

    @property
    def _may_renew(self) -> bool:
        """It was taken in, or is held out and read."""
        return self._coordinator is not None and (self._registered or self._held_out_us is not None)

    def _renew(self) -> None:
        assert self._coordinator is not None
        renewal = self._presenting.renewal()
        self._core.send(self._coordinator, self._next_request(), renewal)

    def _next_request(self) -> int:
        self._request_count += 1
        return self._request_count


assert STAGING == "staging", "aside files of a term lie where a start removes them"
