"""Sessions without sockets: servers and dialers in one thread, delivered one frame at a time.

What `ckpt.aio.net.serving.server` and `ckpt.aio.net.dial` promise to their handlers holds here too;
one contract suite (`ckpt.testing.session_contract`) runs against both. Frames are really encoded
and checked. A bulk is read when it is delivered, so a sender that changes it before its `sent` was
called fails its checksum here, as it would on a socket.

Which connection moves next is drawn from the seed; within one direction of one connection the order
is kept.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.channel import SessionHandler, next_session
from ckpt.aio.net.send_queue import Sent
from ckpt.base.ids import BootId, Epoch
from ckpt.format.frame import PREFIX_BYTES, FrameReader, FrameWriter
from ckpt.format.messages import Message
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import Established, Identity

_KEY = b"fake session key".ljust(32, b".")


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame as a handler got it."""

    session: Session
    request: int
    message: Message
    bulk: bytes


@dataclass(slots=True)
class RecordingHandler:
    """A SessionHandler that remembers everything; `answer` may reply."""

    opened_: list[tuple[Session, Established]] = field(default_factory=list)
    received_: list[Heard] = field(default_factory=list)
    closed_: list[tuple[Session, str]] = field(default_factory=list)
    answer: Callable[[Heard], None] | None = None
    on_event: Callable[[], None] | None = None
    """Called after every event."""

    def opened(self, session: Session, peer: Established) -> None:
        """Remember it."""
        self.opened_.append((session, peer))
        self._tell()

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        """Remember it with a copy of the bulk, which is released."""
        heard = Heard(session, request, message, b"" if bulk is None else bytes(bulk.view))
        if bulk is not None:
            bulk.release()
        self.received_.append(heard)
        if self.answer is not None:
            self.answer(heard)
        self._tell()

    def closed(self, session: Session, reason: str) -> None:
        """Remember it."""
        self.closed_.append((session, reason))
        self._tell()

    def _tell(self) -> None:
        if self.on_event is not None:
            self.on_event()


@dataclass(slots=True)
class _Parcel:
    """A frame on its way; `frame` empty: the other end's opening or closing."""

    frame: bytes
    bulk: memoryview
    sent: Sent | None


class _End:
    """One end of a connection."""

    def __init__(self, handler: SessionHandler, peer: Established) -> None:
        self.session = next_session()
        self.handler = handler
        self.peer = peer
        self.writer = FrameWriter(_KEY)
        self.reader = FrameReader(_KEY)
        self.inbox: deque[_Parcel] = deque()
        """What the other end sent and this one has not received."""
        self.open = False
        """`opened` was called, `closed` was not."""


@dataclass(slots=True)
class _Connection:
    client: _End
    server: _End
    dialer: FakeEndpoint
    cut_reason: str | None = None

    def other(self, end: _End) -> _End:
        return self.server if end is self.client else self.client


class FakeEndpoint:
    """What a handler sends through: a listening server, or a dialer that keeps one session up."""

    def __init__(self, network: FakeNetwork, handler: SessionHandler, identity: Identity) -> None:
        self.handler = handler
        self.identity = identity
        self.epoch = Epoch(0)
        self.closed = False
        self._network = network

    def send(
        self,
        session: Session,
        request: int,
        message: Message,
        bulk: Buffer = b"",
        *,
        sent: Sent | None = None,
    ) -> None:
        """As `Server.send`."""
        self._network.queue(session, request, message, bulk, self.epoch, sent)

    def queued_bytes(self, session: Session) -> int:
        """As `Server.queued_bytes`."""
        return self._network.queued_bytes(session)

    def close_session(self, session: Session, reason: str) -> None:
        """As `Server.close_session`."""
        self._network.cut(session, reason)

    def close(self) -> None:
        """Listen or dial no more; every session ends."""
        self.closed = True
        self._network.cut_all(self)


class FakeNetwork:
    """See the module."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._servers: dict[str, FakeEndpoint] = {}
        #: Dialers without a session, with the address that they want.
        self._dialing: list[tuple[str, FakeEndpoint]] = []
        #: What every dialer wants, with a session or without.
        self._addresses: dict[FakeEndpoint, str] = {}
        self._connections: list[_Connection] = []

    def listen(self, address: str, handler: SessionHandler, identity: Identity) -> FakeEndpoint:
        """A server at any text that serves as an address; it takes the place of a closed one."""
        endpoint = FakeEndpoint(self, handler, identity)
        self._servers[address] = endpoint
        return endpoint

    def dial(
        self, address: str, handler: SessionHandler, *, role: Role, name: str, cluster: str = ""
    ) -> FakeEndpoint:
        """A dialer; it connects when somebody listens, and again after each loss."""
        endpoint = FakeEndpoint(self, handler, Identity(cluster, role, name, BootId(0)))
        self._addresses[endpoint] = address
        self._dialing.append((address, endpoint))
        return endpoint

    def run(self) -> None:
        """Step until nothing moves."""
        while self.step():
            continue

    def step(self) -> bool:
        """One connection made, ended, or one frame delivered; False when all is quiet."""
        moves: list[Callable[[], None]] = []
        for address, dialer in self._dialing:
            server = self._servers.get(address)
            if server is not None and not server.closed:
                moves.append(partial(self._connect, dialer, server))
        for connection in self._connections:
            if connection.cut_reason is not None:
                moves.append(partial(self._end, connection))
                continue
            for end in (connection.client, connection.server):
                if end.inbox:
                    moves.append(partial(self._deliver, end))
        if not moves:
            return False
        self._random.choice(moves)()
        return True

    def cut(self, session: Session, reason: str = "cut") -> None:
        """The connection breaks: what is on its way is lost, both ends hear of it later."""
        found = self._find(session)
        if found is not None and found[0].cut_reason is None:
            found[0].cut_reason = reason

    def cut_all(self, endpoint: FakeEndpoint) -> None:
        """Every session of an endpoint breaks; a closed dialer dials no more."""
        self._dialing = [each for each in self._dialing if each[1] is not endpoint]
        for connection in self._connections:
            if endpoint is connection.dialer or endpoint.handler is connection.server.handler:
                connection.cut_reason = connection.cut_reason or "closed"

    def queue(
        self,
        session: Session,
        request: int,
        message: Message,
        bulk: Buffer,
        epoch: Epoch,
        sent: Sent | None,
    ) -> None:
        """Endpoints call this."""
        found = self._find(session)
        if found is None or found[0].cut_reason is not None:
            if sent is not None:
                sent()
            return
        connection, end = found
        frame = end.writer.encode(message, request, bulk, epoch)
        connection.other(end).inbox.append(_Parcel(frame, memoryview(bulk).cast("B"), sent))

    def queued_bytes(self, session: Session) -> int:
        """Endpoints call this."""
        found = self._find(session)
        if found is None:
            return 0
        connection, end = found
        return sum(len(each.frame) + len(each.bulk) for each in connection.other(end).inbox)

    # ----------------------------------------------------------------------- moves

    def _connect(self, dialer: FakeEndpoint, server: FakeEndpoint) -> None:
        self._dialing = [each for each in self._dialing if each[1] is not dialer]
        mine, theirs = dialer.identity, server.identity
        as_client = Established(
            mine.role, mine.name, mine.cluster, BootId(0), Epoch(0), PROTOCOL_VERSION
        )
        as_server = Established(
            theirs.role, theirs.name, theirs.cluster, theirs.boot, server.epoch, PROTOCOL_VERSION
        )
        connection = _Connection(
            client=_End(dialer.handler, as_server),
            server=_End(server.handler, as_client),
            dialer=dialer,
        )
        self._connections.append(connection)
        connection.client.inbox.append(_Parcel(b"", memoryview(b""), None))
        connection.server.open = True
        connection.server.handler.opened(connection.server.session, as_client)

    def _deliver(self, end: _End) -> None:
        parcel = end.inbox.popleft()
        if not parcel.frame:
            end.open = True
            end.handler.opened(end.session, end.peer)
            return
        head = end.reader.prefix(parcel.frame)
        message = end.reader.message(head, memoryview(parcel.frame)[PREFIX_BYTES:])
        bulk = None
        if head.bulk_bytes:
            copy = memoryview(bytearray(parcel.bulk))
            bulk = Bulk(copy, None, None)
            end.reader.check_bulk(head, message, bulk.crc())
        if parcel.sent is not None:
            parcel.sent()
        end.handler.received(end.session, head.request, message, bulk)

    def _end(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        dialer = connection.dialer
        if not dialer.closed:
            self._dialing.append((self._addresses[dialer], dialer))
        for end in (connection.client, connection.server):
            for parcel in end.inbox:
                if parcel.sent is not None:
                    parcel.sent()
            end.inbox.clear()
        for end in (connection.client, connection.server):
            if end.open:
                end.handler.closed(end.session, connection.cut_reason or "")

    def _find(self, session: Session) -> tuple[_Connection, _End] | None:
        for connection in self._connections:
            for end in (connection.client, connection.server):
                if end.session == session:
                    return connection, end
        return None
