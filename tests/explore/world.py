"""The small world: parties, what is on its way among them and to their disks, and faults.

Whatever can happen next is the first item of some queue: the next frame of a link, the next
operation of a disk or of the catalog, a process that starts or calls. `step` lets one happen. What
is urgent happens at once after it, as far as it is first in its queue: that a target presents
itself and is listed by pages, renews its lease, gives an index.

Left out, to keep it small: frames of one link overtake each other never, and are lost only with the
power of who sent them; a disk does one thing after the other, never fails and never rots; only the
two directories of what is kept become durable at a time of their own; columns are read by nobody
but scrubs of a doubt, and their bytes are known to who makes them again; there is one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ckpt.base.ids import PayloadId
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget, DeleteStep
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.reading import DocumentData, ReadDocument
from ckpt.format.messages.repairs import LeaseRepair, RenewRepair, RepairLeased, RepairNoted
from ckpt.format.messages.targets import (
    Attest,
    Attested,
    KeepMap,
    KeepProtocol,
    LeaseRenewed,
    ListHoldings,
    MapKept,
    ProtocolKept,
    RegisterTarget,
    RenewLease,
    TargetRegistered,
)
from ckpt.format.messages.writing import ColumnAccepted, CreditGranted, Fragment
from ckpt.protocol.coordinator.catalog import CatalogEntry, Persist
from ckpt.protocol.events import Send, Session
from ckpt.protocol.target.core import DIRECTORIES
from ckpt.testing.disk import FakeDisk, Keep
from tests.explore.items import Item
from tests.explore.parties import (
    CATALOG,
    COORDINATOR,
    DISK_BYTES,
    CoordinatorParty,
    Party,
    TargetParty,
)

START_US = 1_000_000_000_000
TICK_US = 2_000_000
"""Below a lease: whoever is here renews it in time."""
URGENT = frozenset({
    RegisterTarget, TargetRegistered, ListHoldings, KeepMap, MapKept, KeepProtocol, ProtocolKept,
    RenewLease, LeaseRenewed, ReadDocument, DocumentData, LeaseRepair, RenewRepair, RepairNoted,
    Resolve, Resolved, ColumnAccepted, CreditGranted, Fragment, JoinLaunch, LaunchJoined, DeleteStep,
    ChangeTarget, ReleasePin,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beginning:
    """Disks and a catalog, of which a world begins."""

    code: Code
    disks: dict[str, dict[str, bytes]]
    """Of each target, file -> bytes."""
    entries: tuple[CatalogEntry, ...] = ()
    term: int = 0


class World:
    """I do what I am asked, one thing at a time."""

    def __init__(self, beginning: Beginning) -> None:
        self.now_us = START_US
        self.beginning = beginning
        self.queues: dict[str, deque[Item]] = {}
        """By where each is: `t0 disk`, `t0 > coordinator`."""
        self.slow: set[str] = set()
        """Queues of which nothing happens while anything else can."""
        self.stuck: set[str] = set()
        """Nor for longer than that, until somebody loosens them."""
        self.steps: list[str] = []
        """What happened, for people."""
        self.busy = 0
        """Things that happened and were not urgent."""
        self.wipes = 0
        """Disks that were emptied, and targets that were removed."""
        self.on_said: Callable[[Party, Send], None] = lambda _party, _action: None
        self.on_persist: Callable[[Persist], None] = lambda _persist: None
        self.on_received: Callable[[Party, Send], None] = lambda _party, _action: None
        self._count = 0
        self._sessions: dict[Session, tuple[Party, Party]] = {}
        self.parties: dict[str, Party] = {}
        self.coordinator = CoordinatorParty(
            0, self, beginning.code, beginning.entries, beginning.term
        )
        self.add(self.coordinator)
        self.targets: dict[str, TargetParty] = {}
        for number, (name, files) in enumerate(beginning.disks.items(), start=1):
            target = TargetParty(name, number, self, _disk(number, files))
            self.targets[name] = target
            self.add(target)

    def add(self, party: Party) -> None:
        self.parties[party.name] = party

    def start(self) -> None:
        """All are here, and taken in."""
        self.coordinator.start()
        for target in self.targets.values():
            target.start()
            self.call_later(target)
        self.run_dry()
        while not self.coordinator.machine.vouching.serves:
            self.tick()
            self.run_dry()

    # ----------------------------------------------------------------------- what parties do

    def put(self, source: str, item: Item) -> None:
        self._count += 1
        item.number = self._count
        self.queues.setdefault(source, deque()).append(item)

    def dial(self, dialer: Party, to: str, role: Role, answers_as: Role) -> Session | None:
        """A session, when somebody is there."""
        other = self.parties[to]
        if not other.up:
            return None
        dialer.dials += 1
        session = Session(100_000 * (dialer.index + 1) + dialer.dials)
        self._sessions[session] = dialer, other
        token = dialer.next_id()
        other.hear("opened", token)
        dialer.hear("called", to, other.history)
        other.opened(session, role, dialer.name)
        dialer.opened(session, answers_as, other.name)
        return session

    def send(self, sender: Party, action: Send) -> None:
        self.on_said(sender, action)
        ends = self._sessions.get(action.session)
        if ends is None:
            return
        to = ends[1] if ends[0] is sender else ends[0]
        message, bulk = action.message, bytes(action.bulk)

        def happen() -> None:
            to.hear(item.id)
            self.on_received(to, action)
            to.received(action.session, action.request, message, bulk)

        item = Item(sender.next_id(), happen, of=_named(message), urgent=_is_urgent(message, to))
        self.put(_link(sender, to, action.session), item)

    def cut(self, session: Session) -> None:
        """Both ends hear of it, after what was sent before."""
        for party, other in self._ends(session):
            self._close(party, other, session)
        self._sessions.pop(session, None)

    def coordinator_began(self) -> None:
        """Who is here calls it."""
        for target in self.targets.values():
            self.call_later(target)

    def call_later(self, target: TargetParty) -> None:
        """It calls the coordinator, unless it is connected, or nobody would take it in."""
        source = f"{target.name} calls"
        connects = target.up and self.coordinator.up and target.session is None
        calls = connects and target in self.members()
        if calls and source not in self.queues:
            self.put(source, Item(target.next_id(), target.dial))

    def persists(self, persist: Persist) -> None:
        self.on_persist(persist)

    def _ends(self, session: Session) -> list[tuple[Party, Party]]:
        ends = self._sessions.get(session)
        return [] if ends is None else [ends, (ends[1], ends[0])]

    def _close(self, party: Party, other: Party, session: Session) -> None:
        """`other` hears that `party` is gone."""

        def happen() -> None:
            other.hear(item.id)
            other.closed(session)

        item = Item(party.next_id(), happen, of="the session ends", urgent=True)
        if other.up:
            self.put(_link(party, other, session), item)

    # ----------------------------------------------------------------------- what happens

    def enabled(self) -> list[str]:
        """Queues of which something can happen now, the oldest first; slow ones if no other can."""
        ready = self._ready(self.slow | self.stuck)
        return ready or self._ready(self.stuck)

    def _ready(self, without: set[str]) -> list[str]:
        found = [(queue[0].number, name) for name, queue in self.queues.items() if queue]
        return [name for _, name in sorted(found) if name not in without]

    def step(self, source: str) -> None:
        """The next thing of this queue, and what is urgent after it."""
        item = self._pop(source)
        self.busy += 1
        self.steps.append(f"{source}: {item.of}" if item.of else source)
        if source in self.slow:
            self.slow.discard(source)
        item.happen()
        self.settle()

    def settle(self) -> None:
        """What is urgent happens."""
        while True:
            held = self.slow | self.stuck
            found = [
                (queue[0].number, name)
                for name, queue in self.queues.items()
                if queue and queue[0].urgent and name not in held
            ]
            if not found:
                return
            self._pop(min(found)[1]).happen()

    def _pop(self, source: str) -> Item:
        queue = self.queues[source]
        item = queue.popleft()
        if not queue:
            del self.queues[source]
        return item

    def run_dry(self) -> None:
        """Whatever can happen without time passing, the oldest first."""
        self.settle()
        while ready := self.enabled():
            self.step(ready[0])

    def tick(self) -> None:
        """Time passes for everybody."""
        self.now_us += TICK_US
        for party in (*self.targets.values(), *self._others()):
            if party.up:
                party.hear("ticked")
                party.ticked()
        self.settle()
        if self.coordinator.up:
            self.coordinator.hear("ticked")
            self.coordinator.ticked()
        self.settle()

    def _others(self) -> list[Party]:
        known = {COORDINATOR, *self.targets}
        return [party for name, party in self.parties.items() if name not in known]

    # ----------------------------------------------------------------------- faults

    def kill(self, name: str, *, power: bool = False) -> None:
        """The process ends. With its power goes what is not durable, and what it has sent."""
        party = self.parties[name]
        assert party.up
        self._leave(party, power=power)
        if isinstance(party, TargetParty):
            party.stop(Keep.NOTHING if power else Keep.ALL)
            self.put(f"{name} starts", Item(party.next_id(), party_start(self, party)))
        elif party is self.coordinator:
            self._end_catalog(land=not power)
            self.coordinator.stop()
            self.put(f"{name} starts", Item(party.next_id(), self.coordinator.start))
        self.settle()

    def wipe(self, name: str) -> None:
        """The disk of a target is emptied, and everybody knows that it is gone."""
        target = self.targets[name]
        self.wipes += 1
        if target.up:
            self.kill(name, power=True)
        target.wipe()

    def _end_catalog(self, *, land: bool) -> None:
        """Of what is on its way there, all may be durable, or nothing."""
        for item in self.queues.pop(CATALOG, ()):
            if land and item.land is not None:
                item.land()
                self.coordinator.hear(item.id)

    def _leave(self, party: Party, *, power: bool) -> None:
        """Its sessions end; nothing reaches it any more."""
        for source in [name for name in self.queues if name.startswith(f"{party.name} ")]:
            if power or " > " not in source:
                del self.queues[source]
        for source in [name for name in self.queues if f"> {party.name} " in name]:
            del self.queues[source]
        for session, ends in list(self._sessions.items()):
            if party in ends:
                other = ends[1] if ends[0] is party else ends[0]
                self._close(party, other, session)
                del self._sessions[session]
        held = {name for name in self.queues if name in self.slow | self.stuck}
        self.slow &= held
        self.stuck &= held

    # ----------------------------------------------------------------------- comparing

    def fingerprint(self) -> int:
        """Equal for worlds in which everybody has heard the same since it began, and the same is on
        its way: whatever order that came about in.
        """
        return hash((
            tuple(party.history for party in self.parties.values()),
            tuple(sorted((name, *(one.id for one in q)) for name, q in self.queues.items() if q)),
            tuple(sorted(self.slow)), tuple(sorted(self.stuck)), self.now_us, self.wipes,
        ))  # fmt: skip

    # ----------------------------------------------------------------------- what is true

    def members(self) -> list[TargetParty]:
        """Targets that nobody has removed, here or away."""
        removed = self.coordinator.removed()
        return [one for one in self.targets.values() if one.id not in removed]

    def can_read(self, payload: PayloadId, code: Code) -> bool:
        """Enough columns are on targets that are here."""
        held = (one.held().columns for one in self.targets.values() if one.up)
        return len({c.column for each in held for c in each if c.payload == payload}) >= code.k


def party_start(world: World, target: TargetParty) -> Callable[[], None]:
    def start() -> None:
        target.hear("starts", target.boots)
        target.start()
        world.call_later(target)

    return start


def _link(sender: Party, to: Party, session: Session) -> str:
    return f"{sender.name} > {to.name} {session}"


def _is_urgent(message: Message, to: Party) -> bool:
    match message:
        case Failed():
            return to.name != COORDINATOR
        case Attest(columns=()) | Attested(proofs=()) | RepairLeased(payload=None):
            return True
    return type(message) in URGENT


def _named(message: Message) -> str:
    kind = getattr(message, "kind", None)
    column = getattr(message, "column", None)
    detail = getattr(kind, "value", "") or (str(column) if column is not None else "")
    return f"{type(message).__name__} {detail}".rstrip()


def _disk(seed: int, files: dict[str, bytes]) -> FakeDisk:
    disk = FakeDisk(seed, DISK_BYTES)
    for directory in DIRECTORIES:
        disk.make_directory(directory)
    for file, content in files.items():
        folder = file.rpartition("/")[0]
        disk.write_at(file, 0, content)
        disk.sync_file(file)
        disk.sync_directory(folder)
    return disk
