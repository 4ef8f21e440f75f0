"""A coordinator process of the world: the real machine over a fake catalog that
crashes honestly.
"""

from __future__ import annotations

import copy

from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.targets import Reserve
from ckpt.plan.placement import Level
from ckpt.protocol.coordinator.catalog import AttemptDecided, CatalogEntry, Persist, Persisted
from ckpt.protocol.coordinator.desk import Worked, WorkLeft
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
from ckpt.testing.catalog_entries import apply_all
from tests.sim.clockwork import Clockwork
from tests.sim.conduct import Conduct
from tests.sim.network import Network
from tests.sim.oracles import Oracles
from tests.sim.windows import ASKED, TOLD, Window, Windows, kind_of

SECRET = b"simulated secret of 32 bytes ...!"
CLUSTER = "sim"
TICK_US = 500_000


class CoordinatorNode:
    """I restart with a new term from what was durable. `durable` outlives my crashes."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, code: Code,
        level: Level = "target", max_per_domain: int = 1, *, tick_us: int = TICK_US,
    ) -> None:  # fmt: skip
        self.name = "coordinator"
        self.up = False
        self.stopped = False
        self._tick_us = tick_us
        self.durable: list[CatalogEntry] = []
        #: What `durable` goes on from: nothing, or a catalog that was made from the targets.
        self._base = CatalogImage(0)
        self._clock = clock
        self._network = network
        self._oracles = oracles
        self.machine_policy = CoordinatorPolicy(
            CLUSTER,
            code,
            cell_bytes=4096,
            level=level,
            max_per_domain=max_per_domain,
            orphan_grace_us=1_000_000,
        )
        self._term = 0
        self._starts = 0
        #: Written but not yet synced; a crash keeps a prefix of them.
        self._pending: list[Persist] = []
        self.old_commands: list[Send] = []
        """Reservations that earlier terms asked for, for a message that comes very late."""
        self.windows = Windows(network)
        self.wall_jump_s = 0
        """By so much its wall clock is wrong."""
        self.machine: CoordinatorMachine

    def start(self) -> None:
        self._term += 1
        self._starts += 1
        image = self.image()
        image.process = f"{self.name}/{self._starts}".encode().ljust(16)[:16]
        self._oracles.coordinator_started(image)
        self.machine = self.machine_from(image)
        self._conduct = Conduct(self.name)
        self.up, self.stopped = True, False
        self._tick(self._term)

    @property
    def is_writing(self) -> bool:
        """Something is on its way to the catalog."""
        return bool(self._pending)

    def image(self) -> CatalogImage:
        """The catalog, as a start would find it now."""
        image = copy.deepcopy(self._base)
        image.term = self._term
        apply_all(image, self.durable)
        return image

    def machine_from(self, image: CatalogImage) -> CoordinatorMachine:
        return CoordinatorMachine(self.machine_policy, image, secret=SECRET, wall_s=self.wall_s)

    def wall_s(self) -> float:
        """As its machine reads it."""
        return self._clock.now_us / 1e6 + self.wall_jump_s

    def crash(self, kept: int | None = None) -> None:
        """Of what is written and not synced so many transactions are kept; any number when None."""
        if not self.up:
            return
        self.up, self._clock.changed = False, True
        if kept is None:
            kept = self._clock.rng.randint(0, len(self._pending))
        for persist in self._pending[:kept]:
            self.durable.extend(persist.entries)
            self._oracles.catalog_wrote(persist.entries)
        self._pending.clear()
        self._network.died(self)

    # ----------------------------------------------------------------------- its disk

    @property
    def term(self) -> int:
        return self._term

    def copy(self) -> tuple[list[CatalogEntry], int]:
        """Of the catalog, as a backup of its disk has it."""
        return list(self.durable), self._term

    def put_back(self, durable: list[CatalogEntry], term: int) -> None:
        """Another catalog lies there when I start again."""
        assert not self.up
        self.durable, self._term = list(durable), term

    def begin_from(self, image: CatalogImage) -> None:
        """One that was made from the targets."""
        self.put_back([], image.term)
        self._base = image

    # ----------------------------------------------------------------------- network

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self._handle(SessionOpened(self._clock.now_us, session, role, name))

    def session_closed(self, session: Session) -> None:
        self._handle(SessionClosed(self._clock.now_us, session))

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self._handle(Received(self._clock.now_us, session, request, message, bulk))

    # ----------------------------------------------------------------------- inside

    def _tick(self, term: int) -> None:
        if not self.up or self._term != term:
            return
        if not self.stopped:
            self._handle(Ticked(self._clock.now_us))
        self._clock.after(self._tick_us, self._tick, term)

    def _handle(self, event: Event) -> None:
        self._clock.changed = True
        actions = self.machine.handle(event)
        self._conduct.step(event, actions)
        for action in actions:
            if not self.up:
                return
            kind = type(action)
            if kind is Send:
                self._oracles.coordinator_says(action.message)
                if type(action.message) is Reserve and len(self.old_commands) < 64:
                    self.old_commands.append(action)
                self._network.send(action)
            elif kind is CloseSession:
                self._network.cut(action.session)
            elif kind is Persist:
                self._persist(action)
            elif kind is WorkLeft:
                self._clock.after(self._clock.between(1, 2000), self._go_on, self._term)

    def _go_on(self, term: int) -> None:
        if not self.up or self._term != term:
            return
        if self.stopped:
            self._clock.after(self._tick_us, self._go_on, term)
        else:
            self._handle(Worked(self._clock.now_us))

    def _persist(self, persist: Persist) -> None:
        self._pending.append(persist)
        for entry in persist.entries:
            if type(entry) is AttemptDecided:
                index = self.machine.book.attempts[entry.checkpoint].index
                self._oracles.coordinator_decides(entry, index)
        self._clock.after(self._clock.between(100, 2500), self._synced, self._term)

    def _synced(self, term: int) -> None:
        if not self.up or self._term != term or not self._pending:
            return
        persist = self._pending[0]
        of = kind_of(persist)
        if self.windows.passed(Window(of, ASKED, "durable"), self):
            return
        del self._pending[0]
        self.durable.extend(persist.entries)
        self._oracles.catalog_wrote(persist.entries)
        if self.windows.passed(Window(of, "durable", TOLD), self):
            return
        self._handle(Persisted(self._clock.now_us, persist.ticket))
        self.windows.told(of, self)
