"""Who takes part in the small world: targets and a coordinator, which are the real machines, over
disks and a catalog in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Protocol, get_args

from ckpt.aio.directory_scan import scan
from ckpt.aio.disk_actions import perform
from ckpt.base.ids import BootId, PayloadId, TargetId
from ckpt.base.limits import INCARNATION_BYTES
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role
from ckpt.protocol.coordinator.catalog import (
    CatalogEntry,
    CatalogReached,
    Persist,
    Persisted,
    TargetSeen,
    TargetStanding,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy, Event
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from ckpt.protocol.target.core import COLUMNS, DIRECTORIES, DOCUMENTS, TargetIdentity, TargetLimits
from ckpt.protocol.target.disk_events import (
    DiskAction,
    SessionDrained,
    SpaceMeasured,
    SyncDirectory,
)
from ckpt.protocol.target.machine import TargetEvent, TargetMachine
from ckpt.testing.catalog_entries import apply_all
from ckpt.testing.disk import FakeDisk, Keep
from tests.explore.held import Held, held_on
from tests.explore.items import Item

SECRET = b"explored secret of 32 bytes ....!"
CLUSTER = "explored"
DISK_BYTES = 1 << 23
COORDINATOR = "coordinator"
CATALOG = "catalog"
_DISK_ACTIONS = frozenset(get_args(DiskAction))


class Surroundings(Protocol):
    """What a party sees of its world."""

    now_us: int

    def send(self, sender: Party, action: Send) -> None: ...
    def cut(self, session: Session) -> None: ...
    def dial(self, dialer: Party, to: str, role: Role, answers_as: Role) -> Session | None: ...
    def put(self, source: str, item: Item) -> None: ...
    def coordinator_began(self) -> None: ...
    def persists(self, persist: Persist) -> None: ...
    def call_later(self, target: TargetParty) -> None: ...
    def can_read(self, payload: PayloadId, code: Code) -> bool: ...


class Party:
    """One process. What it is follows from what it began with and what it has heard since: that is
    `history`, by which states are compared.
    """

    def __init__(self, name: str, index: int, world: Surroundings) -> None:
        self.name = name
        self.index = index
        self.up = False
        self.history = hash(name)
        self.dials = 0
        self._world = world
        self._said = 0

    def hear(self, *token: int | str) -> None:
        """The next thing that it heard, or began with."""
        self.history = hash((self.history, *token))
        self._said = 0

    def next_id(self) -> int:
        """Of what follows from that: the same in every order of what others heard."""
        self._said += 1
        return hash((self.history, self._said))

    def opened(self, session: Session, role: Role, name: str) -> None:
        """Somebody is connected, or I am, with my own call."""

    def closed(self, session: Session) -> None:
        """Nothing comes on it any more."""

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        """A frame."""

    def ticked(self) -> None:
        """Time has passed."""


class TargetParty(Party):
    """A target over its disk. Only a directory of names takes its time to become durable: whatever
    is written before is seen by nobody.
    """

    def __init__(self, name: str, index: int, world: Surroundings, disk: FakeDisk) -> None:
        super().__init__(name, index, world)
        self.id = TargetId(name)
        self.disk = disk
        self.boots = 0
        self.disks = 0
        """How many were put in the place of the first one."""
        self.session: Session | None = None
        """With the coordinator."""
        self.machine: TargetMachine
        #: What was found on the disk after so many operations.
        self._held: tuple[int, Held] | None = None

    def start(self) -> None:
        self.boots += 1
        self.up, self.session = True, None
        identity = TargetIdentity(
            CLUSTER, self.id, BootId(1000 * self.index + self.boots),
            f"power/rack/host{self.index}/device", f"{self.name}:1",
            incarnation=(self.index + 1).to_bytes(INCARNATION_BYTES, "big"), place=self.name,
        )  # fmt: skip
        self.machine = TargetMachine(identity, SECRET, TargetLimits())
        self._handle(scan(self.disk, self._world.now_us))
        self._measure()

    def stop(self, keep: Keep) -> None:
        """The process is gone; `keep` says what is left of what was not durable."""
        self.up, self.session = False, None
        self.disk.crash(keep)
        self._held = None
        files = ((file, hash(self.disk.durable(file))) for file in self.disk.files())
        self.history = hash((self.name, self.boots, self.disks, self.dials, tuple(files)))

    def wipe(self) -> None:
        """All files are gone but the one that says which directory it is."""
        assert not self.up
        self.disks += 1
        self.disk = FakeDisk(self.index, DISK_BYTES)
        for directory in DIRECTORIES:
            self.disk.make_directory(directory)
        self._held = None
        self.hear("wiped")

    def held(self) -> Held:
        """What no loss of power takes away."""
        if self._held is None or self._held[0] != self.disk.operation_count:
            self._held = self.disk.operation_count, held_on(self.disk)
        return self._held[1]

    def dial(self) -> None:
        """Call the coordinator."""
        if self.up and self.session is None:
            self.session = self._world.dial(self, COORDINATOR, Role.TARGET, Role.COORDINATOR)

    def opened(self, session: Session, role: Role, name: str) -> None:
        self._handle(SessionOpened(self._world.now_us, session, role, name))

    def closed(self, session: Session) -> None:
        if session == self.session:
            self.session = None
        self._handle(SessionClosed(self._world.now_us, session))

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self._handle(Received(self._world.now_us, session, request, message, bulk))

    def ticked(self) -> None:
        self._world.call_later(self)
        self._measure()
        self._handle(Ticked(self._world.now_us))

    def _measure(self) -> None:
        space = self.disk.space()
        self._handle(SpaceMeasured(self._world.now_us, space.bytes_total, space.bytes_free))

    def _handle(self, event: TargetEvent) -> None:
        events: list[TargetEvent] = [event]
        for each in events:
            drained: dict[Session, None] = {}
            for action in self.machine.handle(each):
                match action:
                    case Send():
                        if len(action.bulk):
                            drained[action.session] = None
                        self._world.send(self, action)
                    case CloseSession():
                        self._world.cut(action.session)
                    case SyncDirectory(directory=directory) if directory in (COLUMNS, DOCUMENTS):
                        self._sync_later(action)
                    case _ if type(action) in _DISK_ACTIONS:
                        events.append(perform(self.disk, action, self._world.now_us))
            events += [SessionDrained(self._world.now_us, session) for session in drained]
        self.machine.check()

    def _sync_later(self, action: SyncDirectory) -> None:
        def happen() -> None:
            self.hear("synced")
            self._handle(perform(self.disk, action, self._world.now_us))

        item = Item(self.next_id(), happen, of=f"{action.directory}/ is durable")
        self._world.put(f"{self.name} disk", item)


class CoordinatorParty(Party):
    """A coordinator over its catalog."""

    def __init__(
        self, index: int, world: Surroundings, code: Code, entries: Iterable[CatalogEntry],
        term: int,
    ) -> None:  # fmt: skip
        super().__init__(COORDINATOR, index, world)
        self.policy = CoordinatorPolicy(
            CLUSTER, code, cell_bytes=4096, level="target", orphan_grace_us=1_000_000,
            rebuild_after_us=1_000_000,
        )  # fmt: skip
        self.base = CatalogImage(0, protocol=PROTOCOL_VERSION)
        """What `durable` goes on from."""
        self.durable = list(entries)
        self.term = term
        self.starts = 0
        self.machine: CoordinatorMachine
        #: Which base, so many entries of it: who is removed by them.
        self._removed: tuple[tuple[int, int], frozenset[TargetId]] | None = None

    def image(self) -> CatalogImage:
        """The catalog as a start would find it now."""
        image = copy.deepcopy(self.base)
        image.term = self.term
        return apply_all(image, self.durable)

    def removed(self) -> frozenset[TargetId]:
        """By what is durable."""
        key = id(self.base), len(self.durable)
        if self._removed is None or self._removed[0] != key:
            seen = {**self.base.targets}
            seen.update((e.target, e) for e in self.durable if isinstance(e, TargetSeen))
            gone = (id for id, e in seen.items() if e.standing is TargetStanding.REMOVED)
            self._removed = key, frozenset(gone)
        return self._removed[1]

    def start(self) -> None:
        self.term += 1
        self.starts += 1
        image = self.image()
        image.process = f"coordinator/{self.term}".encode().ljust(16)[:16]
        self.machine = CoordinatorMachine(
            self.policy, image, secret=SECRET, wall_s=lambda: self._world.now_us / 1e6
        )
        self.up = True
        self._handle(Ticked(self._world.now_us))
        self._world.coordinator_began()

    def stop(self) -> None:
        """The process is gone, and with it whatever is not durable."""
        self.up = False
        self.hear("stopped")

    def begin_from(self, image: CatalogImage) -> None:
        """A catalog that was made from the targets."""
        assert not self.up
        self.base, self.durable, self.term = image, [], image.term
        self.hear("another catalog")

    def opened(self, session: Session, role: Role, name: str) -> None:
        self._handle(SessionOpened(self._world.now_us, session, role, name))

    def closed(self, session: Session) -> None:
        self._handle(SessionClosed(self._world.now_us, session))

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self._handle(Received(self._world.now_us, session, request, message, bulk))

    def ticked(self) -> None:
        self._handle(Ticked(self._world.now_us))

    def _handle(self, event: Event) -> None:
        for action in self.machine.handle(event):
            match action:
                case Send():
                    self._world.send(self, action)
                case CloseSession():
                    self._world.cut(action.session)
                case Persist():
                    self._persist(action)

    def _persist(self, persist: Persist) -> None:
        self._world.persists(persist)

        def happen() -> None:
            self.durable.extend(persist.entries)
            self.hear("persisted")
            self._handle(Persisted(self._world.now_us, persist.ticket))

        def land() -> None:
            self.durable.extend(persist.entries)

        names = [type(entry).__name__ for entry in persist.entries]
        text = f"{', '.join(names[:-1] or names)} is durable"
        urgent = all(map(_says_little, persist.entries))
        self._world.put(CATALOG, Item(self.next_id(), happen, of=text, urgent=urgent, land=land))


def _says_little(entry: CatalogEntry) -> bool:
    """Nothing is done because of it."""
    return isinstance(entry, CatalogReached) or (
        isinstance(entry, TargetSeen) and entry.standing is TargetStanding.IN
    )
