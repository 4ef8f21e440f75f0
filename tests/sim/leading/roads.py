"""How everybody finds who leads: the network of the simulator, with the daemons' own search.

A coordinator that stands by, or loads, turns away whoever comes and says who leads, as far as it
knows; a search (`ckpt.protocol.finding`) goes there. One that was found and says nothing for long
is pinged and given up (`ckpt.protocol.pulse`): a stopped process keeps its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import BootId, Epoch
from ckpt.format.messages.hello import PROTOCOL_VERSION, Failed, Ping, Pong, Role
from ckpt.protocol.events import Send, Session, Ticked
from ckpt.protocol.finding import (
    AddressFailed,
    AddressProved,
    LeaderFound,
    Roster,
    Search,
    SearchEvent,
    SearchFailed,
    TryAddress,
)
from ckpt.protocol.handshake import Caller, Elsewhere, Established
from ckpt.protocol.pulse import Beat, Pulse
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CLUSTER
from tests.sim.leading.loop import running
from tests.sim.network import UNANSWERED_US, Connection, Network, Node, _End

FEEL_US = 250_000
WAITING_ROLES = (Role.STAGER, Role.READER)
"""They nearly always wait for something."""


class ListeningNode(Node, Protocol):
    """A coordinator, as who dials it sees it."""

    def turn_away(self, role: Role) -> Failed | None:
        """What a peer hears that may not stay."""


class Coordinators:
    """Where they listen: what nodes dial instead of one of them."""

    name = "coordinators"

    def __init__(self) -> None:
        self.listening: dict[str, ListeningNode] = {}
        """By address."""
        self.rosters: dict[str, Roster] = {}
        """What each node knows of them, by its name."""

    def roster_of(self, node: Node) -> Roster:
        return self.rosters.setdefault(node.name, Roster(tuple(self.listening)))


class Roads(Network):
    """I take whoever dials the coordinators to the one that leads."""

    def __init__(self, clock: Clockwork) -> None:
        super().__init__(clock)
        self._pulses: dict[Session, Pulse] = {}
        self.given_up = 0
        """Sessions to a coordinator that was silent."""

    def dial(
        self, client: Node, server: Node | Coordinators, role: Role, server_role: Role,
        failed: Callable[[], None], opened: Callable[[Session], None],
    ) -> None:  # fmt: skip
        if isinstance(server, Coordinators):
            LeaderSearch(self, client, server, role, failed, opened).begin()
        else:
            super().dial(client, server, role, server_role, failed, opened)

    # ----------------------------------------------------------------------- one coordinator

    def approach(
        self, client: Node, server: ListeningNode, role: Role,
        proved: Callable[[], None], failed: Callable[[CkptError], None],
    ) -> None:  # fmt: skip
        """Ask it to let one in; `join` makes the session, at once, of who proved itself."""
        birth = self.incarnation(client)

        def arrive() -> None:
            if not client.up or self.incarnation(client) != birth:
                return
            if client.stopped or server.stopped or self._are_parted(client.name, server.name):
                silent = Unavailable("no answer in time")
                self.clock.after(UNANSWERED_US, failed, silent)
            elif not server.up:
                failed(Unavailable("connection refused"))
            elif (turned := server.turn_away(role)) is not None:
                failed(Elsewhere(turned) if turned.leader else Unavailable(turned.message))
            else:
                proved()

        self.clock.after(2 * self._delay(server.name), arrive)

    def join(self, client: Node, server: ListeningNode, role: Role) -> Session:
        """The other end hears of it; returns this end's."""
        connection = self._connect(client, server)
        server.session_opened(connection.server.session, role, client.name)
        return connection.client.session

    # ----------------------------------------------------------------------- pulses

    def feel(self, session: Session, role: Role) -> None:
        """From now on: its other end leads, as it says."""
        pulse = self._pulses[session] = Pulse()
        pulse.expect(self.clock.now_us, role in WAITING_ROLES)
        self.clock.after(FEEL_US, self._beat, session, pulse)

    def _beat(self, session: Session, pulse: Pulse) -> None:
        connection = self._sessions.get(session)
        if connection is None or not connection.open:
            self._pulses.pop(session, None)
            return
        self.clock.after(FEEL_US, self._beat, session, pulse)
        if connection.client.node.stopped:
            return
        beat = pulse.beat(self.clock.now_us)
        if beat is Beat.PING:
            self.send(Send(session, 0, Ping()))
        elif beat is Beat.GIVE_UP:
            self.given_up += 1
            self.cut(session)

    def send(self, action: Send) -> None:
        pulse = self._pulses.get(action.session)
        if pulse is not None:
            pulse.asked(self.clock.now_us)
        super().send(action)

    def _arrive(self, connection: Connection, end: _End, action: Send, bulk: bytes) -> None:
        pulse = self._pulses.get(end.session)
        if pulse is not None and not (end.swallowed or self._is_held(connection, end)):
            pulse.heard(self.clock.now_us)
            if type(action.message) is Pong:
                return
        super()._arrive(connection, end, action, bulk)


class LeaderSearch:
    """One node's search for who leads, to its end."""

    def __init__(
        self, roads: Roads, client: Node, coordinators: Coordinators, role: Role,
        failed: Callable[[], None], opened: Callable[[Session], None],
    ) -> None:  # fmt: skip
        self._roads, self._client, self._coordinators = roads, client, coordinators
        self._role, self._failed, self._opened = role, failed, opened
        self._birth = roads.incarnation(client)
        self._search = Search(coordinators.roster_of(client), roads.clock.random)

    def begin(self) -> None:
        self._pursue(Ticked(self._roads.clock.now_us))

    def _pursue(self, event: SearchEvent) -> None:
        alive = self._client.up and self._roads.incarnation(self._client) == self._birth
        if not alive:
            return
        for action in self._search.handle(event):
            match action:
                case TryAddress(address):
                    self._try(address)
                case LeaderFound(address):
                    self._found(address)
                case SearchFailed():
                    self._failed()
        self._sleep()

    def _sleep(self) -> None:
        wake_us = self._search.wake_us
        if wake_us is not None:
            clock = self._roads.clock
            clock.after(wake_us - clock.now_us, self._wake, wake_us)

    def _wake(self, wake_us: int) -> None:
        if self._search.wake_us == wake_us:
            self._pursue(Ticked(self._roads.clock.now_us))

    def _try(self, address: str) -> None:
        clock, server = self._roads.clock, self._coordinators.listening[address]

        def proved() -> None:
            peer = Established(
                Role.COORDINATOR, "", CLUSTER, BootId(1), Epoch(0), PROTOCOL_VERSION,
                coordinators=tuple(self._coordinators.listening),
            )  # fmt: skip
            self._pursue(AddressProved(clock.now_us, address, peer))

        def failed(error: CkptError) -> None:
            self._pursue(AddressFailed(clock.now_us, address, error))

        self._roads.approach(self._client, server, self._role, proved, failed)

    def _found(self, address: str) -> None:
        server = self._coordinators.listening[address]
        connection = self._roads._connect(self._client, server)
        session = connection.client.session
        self._roads.feel(session, self._role)
        self._opened(session)
        self._client.session_opened(session, Role.COORDINATOR, server.name)
        server.session_opened(connection.server.session, self._role, self._client.name)


class SimDialer:
    """A standby's session to the leader, in the place of the daemon's dialer."""

    def __init__(self, handler: object, caller: Caller, *, address: str) -> None:
        self.session: Session | None = None
        self._handler, self._address = handler, address
        self._process = running()
        self._closed = False

    def start(self) -> None:
        self._dial()

    async def close(self) -> None:
        self._closed = True
        if self.session is not None:
            self._process.network.cut(self.session)
            self._process.peers.pop(self.session, None)
            self.session = None

    def ended(self) -> None:
        """The process calls this."""
        self.session = None
        if not self._closed:
            self._handler.closed(Session(0), "ended")  # type: ignore[attr-defined]
            self._later()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(0.05 + 0.45 * self._process.draw(), self._dial)

    def _dial(self) -> None:
        process = self._process
        if self._closed or self.session is not None:
            return
        leader = process.coordinators.listening[self._address]

        def proved() -> None:
            session = process.network.join(process, leader, Role.COORDINATOR)
            if self._closed:
                process.network.cut(session)
                return
            self.session, process.peers[session] = session, self

        def failed(_error: CkptError) -> None:
            process.loop.within(self._later)

        process.network.approach(process, leader, Role.COORDINATOR, proved, failed)


async def refuses(address: str) -> bool:
    """Whether the process at that address is gone, as its kernel says."""
    process, probed = running(), asyncio.get_running_loop().create_future()
    network, leader = process.network, process.coordinators.listening[address]

    def arrive() -> None:
        parted = network._are_parted(process.name, leader.name)
        answer = not leader.up and not parted
        if not process.loop.ended:
            process.loop.call_soon(lambda: probed.done() or probed.set_result(answer))

    network.clock.after(2 * network._delay(leader.name), arrive)
    return await probed
