"""Who is in the cluster, and which columns count: leases, boot ids and reconciliation of targets.

    UNKNOWN --register--> RECONCILING --listing complete--> LIVE --session lost, lease over--> DOWN
                 ^                                                                              |
                 +------------------------------- register (new boot id) -----------------------+
                                                                               --> REMOVED, for good

A target whose session ended is dead. One whose lease ran out was silent on a session that stood:
for one lease more it is *late*, since on a host that is out of breath it comes back.

A target that registers is asked for everything it holds, page by page: only then do its columns
count. A column counts when its target is LIVE, its checkpoint names that target, and the target has
proved it in its current boot, with the manifest of its payload (P10, P13). Invariants: at most one
boot id of a target is current; a proof under another boot id counts nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from msgspec import UNSET, UnsetType

from ckpt.base.errors import CkptError
from ckpt.base.ids import BootId, ColumnId, Domain, Epoch, TargetId
from ckpt.base.limits import DEVICE_FAILURES_MAX, LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.targets import (
    DEVICE_ERROR_KINDS,
    DeviceReport,
    DocumentSummary,
    LeaseRenewed,
    RegisterTarget,
    RenewLease,
    ScrubReport,
    TargetRegistered,
)
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.cluster.claims import Claim, Claims
from ckpt.protocol.coordinator.cluster.holdings import HeldDocuments, ProvedColumns
from ckpt.protocol.coordinator.cluster.listing import Lister
from ckpt.protocol.coordinator.cluster.reserving import Reserving
from ckpt.protocol.coordinator.cluster.slowness import Slowness
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import TargetLeft, TargetListed
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.events import Session
from ckpt.protocol.service_time import MEMORY_US

GATHERING_US = 2 * LEASE_US
"""How long a coordinator waits for targets after its start before it says that they are missing."""
POWER_UP_US: Final = 60_000_000
"""How long it waits for targets of its catalog while a save would fail without them: after a loss
of power, many machines with disks start more slowly than one coordinator.
"""

WELL = DeviceReport({}, 0)
"""The report of a target without any failure."""
DEVICE_TEXT_MAX = 200
"""Characters that are kept of what a target says of its device."""


class TargetState(Enum):
    """What a report shows."""

    RECONCILING = "reconciling"
    LIVE = "live"
    DOWN = "down"
    REMOVED = "removed"


@dataclass(slots=True)
class Target:
    """One target as its current boot presents it. `session` is None while it is away."""

    id: TargetId
    domain: Domain
    directory: str
    state: TargetState = TargetState.DOWN
    standing: catalog.TargetStanding = catalog.TargetStanding.IN
    """What people have said of it, durable. Membership alone changes it."""
    session: Session | None = None
    boot: BootId = BootId(0)
    address: str = ""
    unix: str = ""
    pid: int = 0
    wire: str = ""
    bytes_total: int = 0
    bytes_free: int = 0
    device_bytes_free: int = 0
    """Of its device, for all targets there together."""
    bytes_used: int = 0
    lease_ends_us: int = 0
    left_us: int | None = None
    """When it went down; None when that is not known, of one that has not come yet."""
    silent_since_us: int | None = None
    """When it was last heard, of one that is away because its lease ran out."""
    counters: dict[str, int] = field(default_factory=dict)
    reserving: Reserving = field(default_factory=Reserving)
    """How long it takes to reserve space."""
    slowness: Slowness = field(default_factory=Slowness)
    """Whether saves found it slow beside its peers; another boot is not blamed for it."""
    device: DeviceReport = WELL
    """What its device refused, as this boot reported last."""
    scrub: ScrubReport | None = None
    """What it knows of the bytes that it keeps; None: nothing was heard."""
    load_bytes: int = 0
    """Planned onto it by attempts that have not ended; the balance of a burst."""
    proved: ProvedColumns = field(default_factory=ProvedColumns)
    """Columns that this boot has proved, sealed or listed. Certifying adds to them; who has some
    dropped takes them away; emptied at every registration."""
    dropping: set[ColumnId] = field(default_factory=set)
    """Columns that it was asked to drop on this session and has not: an older proof of one says
    nothing. Deleter adds and takes away; emptied at every registration."""
    documents: HeldDocuments = field(default_factory=HeldDocuments)
    """Documents that this boot listed or stored. Each put adds one, Deleter takes away what was
    dropped; emptied at every registration."""

    @property
    def is_failing(self) -> bool:
        """Whether the target's device refuses requests. Then it gets no new columns while there are
        enough other targets; what it holds counts, and can be read.
        """
        return self.device.failures >= DEVICE_FAILURES_MAX

    @property
    def stays(self) -> bool:
        """It takes new columns, and keeps those that it has."""
        return self.standing is catalog.TargetStanding.IN

    @property
    def where(self) -> TargetAddress:
        return TargetAddress(self.id, self.boot, self.address, self.unix)


class Membership:
    """I hold the cluster map. My owner calls me with sessions and time."""

    def __init__(self, desk: Desk, *, cluster: str, secret: bytes, image: CatalogImage) -> None:
        self._desk = desk
        self._lister = Lister(desk, cluster=cluster, secret=secret)
        self.term = image.term
        self.process = image.process
        """This one among all that began from a copy of the same catalog."""
        self.version = self.repair_bytes = 0
        """Of the map; and what a target gives to repair beside others, as `Repairs` has set it."""
        self.rot_version = 0
        """Another one whenever a target tells of other damage."""
        self.targets: dict[TargetId, Target] = {
            id: _known_target(seen) for id, seen in sorted(image.targets.items())
        }
        """All that there ever were, also those that were removed; see `all`."""
        self.groups: Mapping[TargetId, int] = image.groups
        """The placement group of each, durable (grouping.py); empty while there are none."""
        #: How often one came with another domain, and how many of them are in each state.
        self._moved, self._states = 0, Counter(one.state for one in self.targets.values())
        self._by_session: dict[Session, TargetId] = {}
        self.refused: set[Session] = set()
        """Sessions that stand, of processes that may not have the seat they asked for."""
        self.seats = Claims(image.targets)
        """Which directory is which target."""
        #: When the first tick came; None before. Targets have GATHERING_US from here to come.
        self._born_us: int | None = None
        #: When what is known of the targets' service times last faded.
        self._faded_us = 0

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.term << 32 | self.version)

    @property
    def now_us(self) -> int:
        return self._desk.now_us

    # ----------------------------------------------------------------------- questions

    @property
    def gathering(self) -> bool:
        """Whether more targets are about to count: this coordinator is new, and its catalog may
        not know them all, or one is being listed.
        """
        return self._is_young or self._states[TargetState.RECONCILING] > 0

    @property
    def _is_young(self) -> bool:
        return self._began_within(GATHERING_US)

    def _began_within(self, span_us: int) -> bool:
        return self._born_us is None or self._desk.now_us - self._born_us < span_us

    def is_expected(self, target: Target) -> bool:
        """Whether this coordinator is new, and knows the target only from its catalog."""
        return self._is_young and target.boot == BootId(0)

    def is_powering_up(self, target: Target) -> bool:
        """As `is_expected`, for as long as a machine takes to start."""
        return self._began_within(POWER_UP_US) and target.boot == BootId(0)

    def is_late(self, target: Target) -> bool:
        """Whether its lease ran out on an open session, less than another lease ago."""
        since = target.silent_since_us
        return since is not None and self._desk.now_us - since < 2 * LEASE_US

    def may_return(self, target: Target) -> bool:
        """Whether its session ended within its lease: unless its process ended as well, it will
        dial soon.
        """
        return target.state is TargetState.DOWN and self._desk.now_us < target.lease_ends_us

    def is_coming(self, target: Target) -> bool:
        """Whether it does not count now, and probably will soon."""
        return target.state is not TargetState.REMOVED and (
            target.state is TargetState.RECONCILING
            or self.is_late(target)
            or self.is_powering_up(target)
            or self.may_return(target)
        )

    def away_since_us(self, target: Target) -> int:
        """Since when a target has been down; since this coordinator's start if no more is known."""
        if target.left_us is not None:
            return target.left_us
        return self._desk.now_us if self._born_us is None else self._born_us

    def coming(self) -> list[Target]:
        return [target for target in self.all() if self.is_coming(target)]

    def silence(self) -> str:
        """Which targets are away without a word, and for how long; empty if none is."""
        now, away = self._desk.now_us, [t for t in self.all() if t.silent_since_us is not None]
        texts = [f"{t.id} for {(now - (t.silent_since_us or 0)) / US_PER_S:.0f} s" for t in away]
        return f"; silent: {', '.join(texts)}" if texts else ""

    def all(self) -> list[Target]:
        """Targets that belong to the cluster, here or away, by id."""
        return [t for t in self.targets.values() if t.state is not TargetState.REMOVED]

    def live(self) -> list[Target]:
        """Targets that count now, by id."""
        return [t for t in self.targets.values() if t.state is TargetState.LIVE]

    @property
    def live_count(self) -> int:
        """Of targets that count now."""
        return self._states[TargetState.LIVE]

    @property
    def count(self) -> int:
        """Of those that belong to the cluster."""
        return len(self.targets) - self._states[TargetState.REMOVED]

    @property
    def roster(self) -> tuple[int, int, int]:
        """Another one whenever it is another whole: a target is new, moved, or was removed."""
        return self.seats.version, self._states[TargetState.REMOVED], self._moved

    def holds(self, target: TargetId, column: ColumnId, manifest_digest: bytes) -> bool:
        """Whether this column counts now, with the bytes that the manifest describes."""
        held = self.targets.get(target)
        if held is None or held.state is not TargetState.LIVE:
            return False
        return held.proved.digest(column) == manifest_digest

    def index_holders(self, index: Set[DocumentSummary], first: Iterable[TargetId]) -> list[Target]:
        """Live targets that list this index (ckpt.protocol.coordinator.cluster.holdings): of the
        first ones, and where one of these has none, or is to be emptied, of all others too.
        """
        named = [self.targets.get(each) for each in first]
        here = [one for one in named if one is not None and one.state is TargetState.LIVE]
        having = [one for one in here if one.documents.holds_any(index)]
        if len(having) == len(named) and all(one.stays for one in having):
            return having
        others = [one for one in self.live() if one not in named and one.documents.holds_any(index)]
        return having + others

    def failing(self) -> list[Target]:
        """Live targets whose device fails, by id."""
        return [target for target in self.live() if target.is_failing]

    def failing_text(self) -> str:
        """Which targets fail, and why; empty if none does."""
        texts = [f"{target.id} ({target.device.latest})" for target in self.failing()]
        return f"; the device fails of {', '.join(texts)}" if texts else ""

    def leaving_text(self) -> str:
        """Which live targets take nothing, since somebody has said so; empty if none is."""
        leaving = [target.id for target in self.live() if not target.stays]
        return f"; drained or out: {', '.join(leaving)}" if leaving else ""

    def note_slow(self, id: TargetId) -> None:
        """A save went on without it, or elsewhere; the next ones begin where it ended."""
        target = self.targets.get(id)
        if target is not None:
            target.slowness.noted(self._desk.now_us)

    def is_busy(self, target: Target) -> bool:
        """Whether it has not answered yet, but is no slower than others are."""
        others = (one.reserving for one in self.live() if one is not target)
        is_live = target.state is TargetState.LIVE
        return is_live and target.reserving.is_busy(self._desk.now_us, others)

    def target_of(self, session: Session) -> Target | None:
        id = self._by_session.get(session)
        return self.targets[id] if id is not None else None

    def accepts(self, proof_target: TargetId, boot: BootId) -> bool:
        """Whether a proof by this target and boot may count: only one by the process that is
        here.
        """
        target = self.targets.get(proof_target)
        return target is not None and target.session is not None and target.boot == boot

    def claims(self) -> list[Claim]:
        """Processes that ask for a target's seat and were refused it, by target."""
        return self.seats.standing(self._desk.now_us)

    def replacing(self, id: TargetId) -> list[Claim]:
        """Those of them that would be this target as soon as somebody says so."""
        return self.seats.replacements(id, self._desk.now_us)

    # ----------------------------------------------------------------------- events

    def register(self, session: Session, request: int, message: RegisterTarget) -> Target | None:
        """A target presents itself; an older session of the same process, or of the one before it
        in the same place, is replaced. None: it may not have the seat, and was answered why.
        """
        target = self.targets.get(message.target)
        seated = target is not None and target.session is not None and target.boot != message.boot
        try:
            domain = Domain.parse(message.domain)
        except CkptError as error:
            self._desk.fail(session, request, error)
            return None
        refusal = self.seats.judge(message, seated=seated, now_us=self._desk.now_us)
        if refusal is not None:
            self.refused.add(session)
            self.seats.report(message, refusal, self._desk)
            self._desk.fail(session, request, refusal)
            return None
        if target is not None and target.session not in (None, session):
            assert target.session is not None
            self._desk.close(target.session, f"target {target.id} registered again")
            self._take_down(target)
        self._note_seen(self.seats.seen(message))
        if target is None:
            target = self.targets[message.target] = Target(
                message.target, domain, message.directory
            )
            self._states[target.state] += 1
            self.targets = dict(sorted(self.targets.items()))
        self._adopt(target, session, domain, message)
        said = TargetRegistered(self.term, self.epoch, LEASE_US, self.process, self._desk.needs)
        self._desk.send(session, request, said)
        self._lister.list_all(target, lambda: self._listed(target))
        return target

    def stand(self, id: TargetId, standing: catalog.TargetStanding) -> None:
        """Set its standing, which is durable already."""
        target = self.targets[id]
        target.standing = standing
        if standing is catalog.TargetStanding.REMOVED:
            assert target.session is None
            target.silent_since_us = None
            target.proved, target.documents = ProvedColumns(), HeldDocuments()
            self._become(target, TargetState.REMOVED)
        self.version += 1

    def renew(self, session: Session, request: int, message: RenewLease) -> None:
        """The lease starts again now, by the coordinator's clock alone (P12)."""
        target = self.target_of(session)
        if target is None or target.boot != message.boot:
            self._desk.close(session, "lease renewed without a registration")
            return
        target.lease_ends_us = self._desk.now_us + LEASE_US
        target.bytes_free, target.bytes_used = message.bytes_free, message.bytes_used
        target.device_bytes_free = _of_device(message)
        target.counters = message.counters
        target.reserving.heard(self._desk.now_us, message.counters)
        self._note_device(target, message.device)
        if message.scrub is not UNSET:
            was, target.scrub = target.scrub, message.scrub
            self.rot_version += (was and was.rot) != (message.scrub and message.scrub.rot)
        renewed = LeaseRenewed(self.epoch, self._desk.position, self.repair_bytes)
        self._desk.send(session, request, renewed)

    def session_closed(self, session: Session) -> None:
        """Note that its session ended: it does not count now, but may register again at once."""
        self.refused.discard(session)
        target = self.target_of(session)
        if target is not None:
            self._take_down(target)

    def excuse(self, gap_us: int) -> None:
        """This coordinator stood still for so long: no lease ran meanwhile, since nobody could have
        renewed it. Leases end later by it, never sooner (P12).
        """
        for target in self.targets.values():
            target.lease_ends_us += gap_us
        self.seats.excuse(gap_us)

    def tick(self) -> None:
        """End leases that have run out."""
        if self._born_us is None:
            self._born_us = self._desk.now_us
        if self._desk.now_us - self._faded_us >= MEMORY_US:
            self._faded_us = self._desk.now_us
            for target in self.targets.values():
                target.reserving.fade()
        for target in list(self.targets.values()):
            if target.session is not None and self._desk.now_us >= target.lease_ends_us:
                self._desk.close(target.session, f"lease of target {target.id} ran out")
                self._take_down(target)
                target.silent_since_us = target.lease_ends_us - LEASE_US

    def due_us(self) -> int | None:
        """When the first lease ends that is not renewed; None: there is none."""
        ends = (one.lease_ends_us for one in self.targets.values() if one.session is not None)
        return min(ends, default=None)

    # ----------------------------------------------------------------------- inside

    def _adopt(
        self, target: Target, session: Session, domain: Domain, message: RegisterTarget
    ) -> None:
        if target.boot != message.boot:
            target.device, target.slowness = WELL, Slowness()
        target.session, target.boot = session, message.boot
        self._become(target, TargetState.RECONCILING)
        target.silent_since_us = None
        self._moved += target.domain != domain
        target.domain, target.directory = domain, message.directory
        target.address, target.unix, target.pid = message.address, message.unix, message.pid
        target.wire, target.scrub = message.wire, message.scrub
        target.bytes_total, target.bytes_free = message.bytes_total, message.bytes_free
        target.bytes_used, target.device_bytes_free = message.bytes_used, _of_device(message)
        target.lease_ends_us = self._desk.now_us + LEASE_US
        target.proved, target.dropping = ProvedColumns(), set()
        target.documents, target.counters = HeldDocuments(), {}
        target.reserving = Reserving()
        self._by_session[session] = target.id

    def _note_seen(self, seen: catalog.TargetSeen) -> None:
        """Before anything is decided that names this target: entries are stored in their order."""
        if self.seats.took(seen):
            self._desk.persist((seen,), lambda: None)

    def _note_device(self, target: Target, told: DeviceReport | UnsetType) -> None:
        was_failing = target.is_failing
        if told is UNSET:
            target.device = WELL
        else:
            errors = {kind: told.errors.get(kind, 0) for kind in DEVICE_ERROR_KINDS}
            kept = told.latest[:DEVICE_TEXT_MAX]
            latest = "".join(each if each.isprintable() else "?" for each in kept)
            target.device = DeviceReport(errors, told.failures, latest)
        if target.is_failing and not was_failing:
            why = target.device.latest
            self._desk.report("error", "target's device fails", target=target.id, why=why)
        elif was_failing and not target.is_failing:
            self._desk.report("info", "target's device is well again", target=target.id)

    def _become(self, target: Target, state: TargetState) -> None:
        self._states[target.state] -= 1
        self._states[state] += 1
        target.state = state
        self.version += 1

    def _listed(self, target: Target) -> None:
        self._become(target, TargetState.LIVE)
        self._desk.report("info", "target is live", target=target.id, columns=len(target.proved))
        self._desk.tell(TargetListed(target.id))

    def _take_down(self, target: Target) -> None:
        session = target.session
        assert session is not None
        target.session = None
        self._become(target, TargetState.DOWN)
        target.left_us = self._desk.now_us
        self._by_session.pop(session, None)
        self.seats.left(target.id, self._desk.now_us)
        self._desk.report("warning", "target is down", target=target.id)
        self._desk.lost(session)
        self._desk.tell(TargetLeft(target.id))


def _known_target(seen: catalog.TargetSeen) -> Target:
    standing, state = seen.standing, TargetState.DOWN
    if standing is catalog.TargetStanding.REMOVED:
        state = TargetState.REMOVED
    elif standing is catalog.TargetStanding.ABSENT:
        standing = catalog.TargetStanding.IN
    return Target(seen.target, Domain.parse(seen.domain), seen.directory, state, standing)


def _of_device(message: RegisterTarget | RenewLease) -> int:
    return message.bytes_free if (given := message.device_bytes_free) is None else given
