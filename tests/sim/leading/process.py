"""One coordinator of several: the daemon's own contender, shell and catalog, on a loop of its own.

What it says goes over the world's network, what it stores into the world's etcd. I restart as
another incarnation; a stopped one goes on and finds that it is late.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.serving.server_limits import Pressure
from ckpt.base.errors import Unavailable
from ckpt.base.ids import BootId, Epoch
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import PROTOCOL_VERSION, CoordinatorsNamed, Failed, Role
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.coordinator.catalog import AttemptDecided, Persist
from ckpt.protocol.coordinator.desk import Action
from ckpt.protocol.coordinator.leading import LeadingState
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorView
from ckpt.protocol.events import Received, Send, Session
from ckpt.protocol.handshake import Established, Identity
from ckptd.catalog.etcd.catalog import OPEN_S
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.coordinator.contender import Contender
from ckptd.coordinator.front import Front
from ckptd.coordinator.process_end import ProcessEnd
from ckptd.coordinator.shell import CoordinatorShell
from tests.sim.clockwork import Clockwork
from tests.sim.conduct import Conduct
from tests.sim.coordinator_node import CLUSTER, SECRET
from tests.sim.leading.book import CatalogBook
from tests.sim.leading.client import SimEtcdClient
from tests.sim.leading.cluster import EtcdCluster
from tests.sim.leading.loop import ProcessLoop, running
from tests.sim.leading.roads import Coordinators, Roads, SimDialer
from tests.sim.oracles import Oracles, Violation

AGAIN_US = 1_000_000
"""Whoever runs the daemons starts one again that ended."""


@dataclass(frozen=True)
class SimConfig(CoordinatorConfig):
    """With the policy of the world."""

    of_the_world: CoordinatorPolicy | None = None

    def policy(self, cluster: str) -> CoordinatorPolicy:
        assert self.of_the_world is not None
        return self.of_the_world


class SimServer:
    """The port: sessions of the world's network."""

    port = 1

    def __init__(self, process: CoordinatorProcess) -> None:
        self.identity = Identity(CLUSTER, Role.COORDINATOR, "", BootId(1))
        self.epoch = Epoch(0)
        self._process = process

    def send(
        self, session: Session, request: int, message: Message, bulk: bytes = b"", *,
        sent: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        process = self._process
        # What looks for coordinators here knows all of them.
        if not (process.loop.ended or isinstance(message, CoordinatorsNamed)):
            process.oracles.coordinator_says(message)
            process.network.send(Send(session, request, message, bytes(bulk)))
        if sent is not None:
            sent()

    def close_session(self, session: Session, reason: str) -> None:
        if not self._process.loop.ended:
            self._process.network.cut(session)

    async def part(self, reason: str, *, linger_s: float = 0.0) -> None:
        for session in list(self._process.sessions):
            self.close_session(session, reason)

    def pressure(self) -> Pressure:
        return Pressure()

    def need(self) -> str:
        return ""


class SimShell(CoordinatorShell):
    """The daemon's, with somebody who looks on."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._process = process = running()
        process.book.begins(process.life, self._catalog.image)
        process.machine = self.machine
        conduct, handle = Conduct(process.life), self.machine.handle

        def watched(event: object) -> list[Action]:
            process.clock.changed = True
            if isinstance(event, Received) and isinstance(event.message, DeleteStep):
                process.book.asked_to_go.add((event.message.run, event.message.step))
            actions = handle(event)  # type: ignore[arg-type]
            conduct.step(event, actions)
            return actions

        self.machine.handle = watched  # type: ignore[method-assign]

    def _persist(self, action: Persist) -> None:
        for entry in action.entries:
            if type(entry) is AttemptDecided:
                index = self.machine.book.attempts[entry.checkpoint].index
                self._process.oracles.coordinator_decides(entry, index)
        super()._persist(action)

    def _perform(self, action: Action) -> None:
        if type(action) is Send and type(action.message) is Reserve:
            self._process.asked_of_targets.append(action)
        super()._perform(action)


class CoordinatorProcess:
    """I am a node of the network."""

    machine: CoordinatorMachine
    """Of its last term."""
    contender: Contender
    front: Front
    loop: ProcessLoop
    client: SimEtcdClient

    def __init__(
        self, clock: Clockwork, network: Roads, oracles: Oracles, etcd: EtcdCluster,
        book: CatalogBook, coordinators: Coordinators, number: int, policy: CoordinatorPolicy,
        rate: float,
    ) -> None:  # fmt: skip
        self.name = f"c{number}"
        self.address = f"{self.name}:1"
        self.up = False
        self.clock, self.network, self.oracles, self.book = clock, network, oracles, book
        self.coordinators = coordinators
        self.rate = rate
        """Of its clocks."""
        self.wall_jump_s = 0.0
        self.sessions: dict[Session, Role] = {}
        """Whom it has let in."""
        self.peers: dict[Session, SimDialer] = {}
        """To who leads."""
        self.asked_of_targets: list[Send] = []
        self.lines: list[tuple[str, dict[str, object]]] = []
        """Its log."""
        self.is_wanted = True
        """It is started again when it has ended."""
        self._policy, self._etcd = policy, etcd
        self._lives = self._tokens = 0
        coordinators.listening[self.address] = self

    # ----------------------------------------------------------------------- life

    @property
    def life(self) -> str:
        """This incarnation's own."""
        return f"{self.name}/{self._lives}"

    @property
    def stopped(self) -> bool:
        return self.up and self.loop.stopped

    def start(self) -> None:
        """Another incarnation."""
        if self.up:
            return
        self._lives += 1
        self.up = True
        self.loop = ProcessLoop(self.clock, self, self.rate)
        self.loop.wall_jump_s = self.wall_jump_s
        self.loop.within(self._begin)

    def _begin(self) -> None:
        config = SimConfig(
            Path("sim"), catalog="etcd://127.0.0.1:1/sim", id=self.name, listen=self.address,
            of_the_world=self._policy,
        )  # fmt: skip
        self.client = SimEtcdClient(self._etcd, self)
        self.front = Front(CLUSTER)
        self.front.server = SimServer(self)  # type: ignore[assignment]
        self.front.view = CoordinatorView(self.address, self._lives)
        self.end = ProcessEnd()
        self.contender = Contender(
            config, SECRET, self._report, self.end, self.front, self.client, CLUSTER
        )
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.contender.run(self.loop.time() + OPEN_S)
        finally:
            if not self.loop.ended:
                self.clock.after(0, self._ended, self._lives)

    def _ended(self, life: int) -> None:
        """The daemon has come to its end."""
        if self._lives != life or not self.up:
            return
        failure = self.end.failure
        if failure is not None and not isinstance(failure, Unavailable):
            raise Violation(f"P4: {self.life} ends: {failure.message}")
        self.crash()
        self.clock.after(AGAIN_US, self.start_if_wanted)

    def start_if_wanted(self) -> None:
        if self.is_wanted:
            self.start()

    def crash(self) -> None:
        """SIGKILL."""
        if self.up:
            self.up, self.clock.changed = False, True
            self.loop.kill()
            self.network.died(self)
            self.sessions.clear()
            self.peers.clear()

    def stop(self, for_us: int) -> None:
        """SIGSTOP; and SIGCONT later."""
        if self.up:
            self.loop.stop_for_now()
            self.clock.after(for_us, self.loop.go_on)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.up and SIGTERM in self.loop.signals:
            self.loop.call_soon(self.loop.signals[SIGTERM])

    def step_down(self) -> None:
        """A person asked for it."""
        if self.up:
            self.loop.call_soon(self.contender.step_down)

    def jump(self, seconds: float) -> None:
        """Its wall clock."""
        self.wall_jump_s += seconds
        if self.up:
            self.loop.wall_jump_s = self.wall_jump_s

    @property
    def leads(self) -> bool:
        """As it thinks."""
        return self.up and self.contender.state is LeadingState.LEADING

    @property
    def term(self) -> int:
        return self.contender.number if self.up else 0

    # ----------------------------------------------------------------------- its effects

    def draw(self) -> float:
        return self.clock.random()

    def token(self, size: int) -> bytes:
        self._tokens += 1
        seed = f"{self.life} {self._tokens}".encode()
        return hashlib.shake_128(seed).digest(size)

    def _report(self, level: str, text: str, fields: dict[str, object]) -> None:
        if not self.loop.ended:
            self.lines.append((text, fields))

    # ----------------------------------------------------------------------- network

    def turn_away(self, role: Role) -> Failed | None:
        """What a peer hears that may not stay."""
        found: Failed | None = self.loop.within(self.front.turn_away, role)
        return found

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self.sessions[session] = role
        peer = Established(role, name, CLUSTER, BootId(0), Epoch(0), PROTOCOL_VERSION)
        self.loop.within(self.front.opened, session, peer)

    def session_closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        dialer = self.peers.pop(session, None)
        if dialer is not None:
            self.loop.within(dialer.ended)
        else:
            self.loop.within(self.front.closed, session, "it ended")

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        came = Bulk(memoryview(bulk), None, None) if bulk else None
        self.loop.within(self.front.received, session, request, message, came)
