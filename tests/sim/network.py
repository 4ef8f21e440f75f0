"""A fake network of connections: ordered like TCP, but slow, cut, half-open,
and stuttering on demand.

Faults: a cut tells both ends (late) and loses what was under way; a half-open connection swallows
one direction until it is cut; a stutter delivers a frame twice, as a repeated request would; a
stopped node receives nothing until it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import RangeData
from ckpt.format.messages.writing import Fragment
from ckpt.protocol.events import Send, Session
from tests.sim.clockwork import Clockwork

UNANSWERED_US = 1_000_000
"""Who dials and hears nothing gives up after so long."""
STOPPED_US = 100_000
"""A stopped process is looked at again after so long."""


class Node(Protocol):
    """What the network delivers to.

    `up` is False while the process is dead, `stopped` while SIGSTOPped.
    """

    name: str
    up: bool
    stopped: bool

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        """The handshake is done."""

    def session_closed(self, session: Session) -> None:
        """The connection is gone."""

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        """A frame."""


@dataclass(slots=True)
class _End:
    node: Node
    incarnation: int
    session: Session
    ready_us: int = 0
    """Nothing arrives here before this: frames keep their order."""
    swallowed: bool = False
    """Half open: what is sent to this end vanishes."""
    unread: list[tuple[Send, bytes]] = field(default_factory=list)
    """What came while the process was stopped, or was held on its way, in order; what comes after
    it waits as well."""


@dataclass(slots=True)
class Connection:
    """Two ends of one authenticated connection."""

    client: _End
    server: _End
    open: bool = True
    latency_us: int = 0

    def other(self, session: Session) -> _End:
        return self.server if self.client.session == session else self.client


@dataclass(slots=True)
class Weather:
    """How bad the network is now; the scenario changes it."""

    latency_us: int = 80
    jitter_us: int = 200
    stutter: float = 0.0
    """Probability that a frame arrives twice."""
    cut: float = 0.0
    """Probability that a frame cuts its connection instead."""


class Network:
    """I own every connection of the world."""

    def __init__(self, clock: Clockwork) -> None:
        self.clock = clock
        self.weather = Weather()
        self.slow: dict[str, int] = {}
        """Node name -> extra latency of everything it receives."""
        self.held: dict[tuple[str, str], int] = {}
        """(from, to) -> until when nothing that one says reaches the other."""
        self._sessions: dict[Session, Connection] = {}
        self._incarnations: dict[str, int] = {}
        self._next_session = 1
        self.corrupt_fragments = 0
        """So many of the next fragments arrive with one bit flipped."""
        self.unheard: frozenset[type[Message]] = frozenset()
        """Of these the next ones cut their connection instead of arriving."""
        self.unheard_left = 0
        self.remembered: frozenset[type[Message]] = frozenset()
        """Of these a copy is kept, to be sent again."""
        self.copies: list[Send] = []
        self.flipped_frames = self.repeated_frames = self.cut_frames = self.held_frames = 0
        """What bad weather has done so far."""
        self.unheard_frames = self.swallowed_frames = 0

    def incarnation(self, node: Node) -> int:
        return self._incarnations.get(node.name, 0)

    def ends_of(self, session: Session) -> tuple[str, str] | None:
        """Whose end that is, and who hears what is said there."""
        connection = self._sessions.get(session)
        if connection is None:
            return None
        hearer = connection.other(session)
        speaker = connection.server if hearer is connection.client else connection.client
        return speaker.node.name, hearer.node.name

    # ----------------------------------------------------------------------- connections

    def dial(
        self, client: Node, server: Node, role: Role, server_role: Role,
        failed: Callable[[], None], opened: Callable[[Session], None],
    ) -> None:  # fmt: skip
        """Connect after a round trip; `failed` when nobody answers there."""
        birth = self.incarnation(client)

        def arrive() -> None:
            if not client.up or self.incarnation(client) != birth:
                return
            if not server.up or server.stopped or client.stopped:
                failed()
                return
            if self._are_parted(client.name, server.name):
                self.clock.after(UNANSWERED_US, failed)
                return
            connection = self._connect(client, server)
            opened(connection.client.session)
            client.session_opened(connection.client.session, server_role, server.name)
            server.session_opened(connection.server.session, role, client.name)

        self.clock.after(2 * self._delay(server.name), arrive)

    def _connect(self, client: Node, server: Node) -> Connection:
        near = _End(client, self.incarnation(client), self._new_session())
        far = _End(server, self.incarnation(server), self._new_session())
        connection = Connection(near, far)
        self._sessions[near.session] = self._sessions[far.session] = connection
        return connection

    def _new_session(self) -> Session:
        self._next_session += 1
        return Session(self._next_session)

    def send(self, action: Send) -> None:
        """Deliver a frame to the other end, in order; dropped when the connection is gone."""
        connection = self._sessions.get(action.session)
        if connection is None or not connection.open:
            return
        weather = self.weather
        if self.unheard_left and type(action.message) in self.unheard:
            self.unheard_left -= 1
            self.unheard_frames += 1
            self.cut(action.session)
            return
        if type(action.message) in self.remembered:
            self.copies.append(action)
        if weather.cut and self.clock.rng.random() < weather.cut:
            self.cut_frames += 1
            self.cut(action.session)
            return
        bulk = bytes(action.bulk) if action.bulk else b""
        if self.corrupt_fragments and bulk and isinstance(action.message, Fragment | RangeData):
            self.corrupt_fragments -= 1
            self.flipped_frames += 1
            bulk = bytes([bulk[0] ^ 1]) + bulk[1:]
        client = connection.client
        end = connection.server if client.session == action.session else client
        self._deliver(weather, connection, end, action, bulk)
        if weather.stutter and self.clock.rng.random() < weather.stutter:
            self.repeated_frames += 1
            self._deliver(weather, connection, end, action, bulk)

    def _deliver(
        self, weather: Weather, connection: Connection, end: _End, action: Send, bulk: bytes
    ) -> None:
        clock = self.clock
        at_us = clock.now_us + weather.latency_us + int(clock.random() * weather.jitter_us)
        if self.slow:
            at_us += self.slow.get(end.node.name, 0)
        if at_us <= end.ready_us:
            at_us = end.ready_us + 1
        end.ready_us = at_us
        clock.at(at_us, self._arrive, connection, end, action, bulk)

    def _is_held(self, connection: Connection, end: _End) -> bool:
        """What is said to this end does not come through now; its kernel is sent it again."""
        sender = connection.other(end.session).node.name
        return self.held.get((sender, end.node.name), 0) > self.clock.now_us

    def _are_parted(self, one: str, other: str) -> bool:
        ways = (self.held.get((one, other), 0), self.held.get((other, one), 0))
        return max(ways) > self.clock.now_us

    def hold(self, one: str, other: str, until_us: int) -> None:
        """What one says to the other waits until then; no connection between them is made."""
        self.held[one, other] = until_us

    def _arrive(self, connection: Connection, end: _End, action: Send, bulk: bytes) -> None:
        node = end.node
        self.swallowed_frames += end.swallowed
        if not (connection.open and node.up) or end.swallowed:
            return
        if self._incarnations.get(node.name, 0) != end.incarnation:
            return
        held = bool(self.held) and self._is_held(connection, end)
        self.held_frames += held
        if node.stopped or end.unread or held:
            if not end.unread:
                self.clock.after(STOPPED_US, self._read_on, connection, end)
            end.unread.append((action, bulk))
            return
        node.received(end.session, action.request, action.message, bulk)

    def _read_on(self, connection: Connection, end: _End) -> None:
        waits = end.node.stopped or self._is_held(connection, end)
        if waits and connection.open and self._alive(end):
            self.clock.after(STOPPED_US, self._read_on, connection, end)
            return
        unread, end.unread = end.unread, []
        for action, bulk in unread:
            self._arrive(connection, end, action, bulk)

    def _delay(self, name: str) -> int:
        weather = self.weather
        jitter = int(self.clock.rng.random() * weather.jitter_us)
        return weather.latency_us + jitter + (self.slow.get(name, 0) if self.slow else 0)

    def _alive(self, end: _End) -> bool:
        node = end.node
        return node.up and self._incarnations.get(node.name, 0) == end.incarnation

    # ----------------------------------------------------------------------- faults

    def cut(self, session: Session) -> None:
        """End a connection; both ends hear of it a little later."""
        connection = self._sessions.get(session)
        if connection is None or not connection.open:
            return
        connection.open = False
        for end in (connection.client, connection.server):
            del self._sessions[end.session]
            self.clock.after(self._delay(end.node.name), self._tell_closed, connection, end)

    def _tell_closed(self, connection: Connection, end: _End) -> None:
        if not self._alive(end):
            return
        if end.node.stopped or self._is_held(connection, end):
            self.clock.after(STOPPED_US, self._tell_closed, connection, end)
            return
        end.node.session_closed(end.session)

    def died(self, node: Node) -> None:
        """A process ended: the kernel closes its connections."""
        self._incarnations[node.name] = self.incarnation(node) + 1
        for session, connection in list(self._sessions.items()):
            if connection.open and node in (connection.client.node, connection.server.node):
                self.cut(session)

    def sessions_of(self, node: Node) -> list[Session]:
        """Open connections of a node, oldest first."""
        return [
            session
            for session, connection in self._sessions.items()
            if connection.other(session).node is not node and connection.open
        ]

    def sessions_between(self, one: Node, other: Node) -> list[Session]:
        """Their open connections, each by one of its ends."""
        return [
            connection.client.session
            for session, connection in self._sessions.items()
            if session == connection.client.session
            and {connection.client.node.name, connection.server.node.name} == {one.name, other.name}
        ]

    def dialed_by(self, node: Node) -> list[Session]:
        """Its own ends of open connections that it made, oldest first."""
        return [
            session
            for session, connection in self._sessions.items()
            if connection.open and connection.client.node is node
            and connection.client.session == session
        ]  # fmt: skip

    def cut_half_open(self) -> None:
        """What is half open becomes wholly closed."""
        for session, connection in list(self._sessions.items()):
            if connection.client.swallowed or connection.server.swallowed:
                self.cut(session)

    def half_open(self, session: Session, cut_after_us: int) -> None:
        """The frames to the other end vanish; the connection dies later."""
        connection = self._sessions.get(session)
        if connection is not None:
            connection.other(session).swallowed = True
            self.clock.after(cut_after_us, lambda: self.cut(session))
