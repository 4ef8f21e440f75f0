"""One framed, authenticated connection over a non-blocking socket.

I know no loop, no thread and no clock: whoever watches my socket (asyncio in `server` and `dial`,
selectors in `link`) calls `receive` when it is readable and `flush` when it is writable.

Goals: bulks go from the kernel straight into the memory where they are wanted and from the memory
where they lie straight into the kernel; a stranger costs 4 KiB; a peer can only hurt itself.

Plan for receiving: bytes first land in a buffer of one page, which takes prefix and meta, and
several small frames at once. When a frame has a bulk, the owner names its landing; what of the bulk
came along with the page (less than 4 KiB) is moved there, the rest is received in place.

Plan for sending: a queue of views; `sendmsg` gathers them. A bulk is not copied: it must stay as it
is until its `sent` is called, which happens exactly once, also when the connection dies first.

Invariants: `sent` and `Bulk` callbacks come in order; after `close` no callback of the owner comes.
"""

from __future__ import annotations

import errno
import itertools
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ckpt.aio.slots import Slot
from ckpt.base.errors import CkptError, PeerError, Refused, Unavailable
from ckpt.base.ids import Epoch
from ckpt.base.limits import PAGE_BYTES, UNAUTHENTICATED_BYTES_MAX
from ckpt.base.units import MiB
from ckpt.format.frame import PREFIX_BYTES, FrameHead, FrameReader, FrameWriter
from ckpt.format.messages import (
    ClientProof,
    Failed,
    Message,
    ServerHello,
    ServerProof,
)
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import ClientHandshake, Established, ServerHandshake

RECEIVES_PER_TURN: Final = 16
"""Receives on one connection before the others get their turn."""
SEND_VIEWS_MAX: Final = 32
SEND_BYTES_MAX: Final = 2 * MiB
"""Offered to one sendmsg."""
WAKE_BYTES: Final = 1 * MiB
"""Of a bulk over TCP that must lie in the kernel before its reader is woken: an interpreter that
comes back to cold caches for each segment costs more than the segment's copy."""
UNIX_BUFFER_BYTES: Final = 4 * MiB
"""TCP is left to its own tuning; fixed sizes are slower there."""
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_TCP_USER_TIMEOUT_MS: Final = 30_000

assert UNAUTHENTICATED_BYTES_MAX >= PAGE_BYTES, "a stranger holds the head buffer and nothing else"

Sent = Callable[[], None]
_sessions = itertools.count(1)


def next_session() -> Session:
    """A number that no other connection of this process has or had."""
    return Session(next(_sessions))


class Bulk:
    """The bytes behind a message.

    Whoever gets one calls `release` exactly once, from any thread, when done.
    """

    __slots__ = ("slot", "view")

    def __init__(self, view: memoryview, slot: Slot | None) -> None:
        self.view = view
        self.slot = slot
        """None when the bytes lie in memory of their own, or where a link's sink put them."""

    def release(self) -> None:
        """Give the memory back; `view` must not be used afterwards."""
        if self.slot is not None:
            self.slot.release()


class SessionHandler(Protocol):
    """What a daemon does about its peers. Called on the loop; must not block and must not raise."""

    def opened(self, session: Session, peer: Established) -> None:
        """A peer proved the cluster's secret."""

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        """A whole frame, checked. The bulk belongs to the handler now."""

    def closed(self, session: Session, reason: str) -> None:
        """The session is over; comes once for each `opened`."""


class ChannelOwner(Protocol):
    """Who watches a channel's socket."""

    def established(self, channel: Channel, peer: Established) -> None:
        """The handshake is done."""

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A whole frame after the handshake."""

    def land(self, channel: Channel, head: FrameHead, message: Message) -> Slot | memoryview | None:
        """`head.bulk_bytes` of memory, or None: none is free, stop receiving until `resume`."""


@dataclass(slots=True)
class _Outgoing:
    view: memoryview
    sent: Sent | None


class Channel:
    """See the module.

    Every method that raises, raises CkptError, after which only `close` may be called.
    """

    def __init__(
        self,
        sock: socket.socket,
        handshake: ClientHandshake | ServerHandshake,
        owner: ChannelOwner,
        *,
        unchecked: frozenset[type] = frozenset(),
    ) -> None:
        self.session = next_session()
        self.sock = sock
        self.peer: Established | None = None
        """Who it is, once it is proved."""
        self.closed = False
        self.paused = False
        """A bulk waits for memory; `resume` goes on."""
        self.queued_bytes = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self._owner = owner
        self._handshake = handshake
        self._unchecked = unchecked
        self._writer = FrameWriter()
        self._reader = FrameReader()
        #: What is to be sent, oldest first; only `send`, `flush` and `close` touch it.
        self._outgoing: deque[_Outgoing] = deque()
        self._pushing = False
        self._buffer = memoryview(bytearray(PAGE_BYTES))
        self._start = 0
        self._end = 0
        self._head: FrameHead | None = None
        self._message: Message | None = None
        self._slot: Slot | None = None
        self._bulk: memoryview | None = None
        self._bulk_filled = 0
        self._is_tcp = sock.family != socket.AF_UNIX
        self._wake_bytes = 1

    @property
    def in_frame(self) -> bool:
        """A frame has begun to arrive and is not whole."""
        return self._head is not None or self._end > self._start

    # ----------------------------------------------------------------------- receiving

    def receive(self) -> None:
        """Take what the socket has, for one turn, and call the owner for each whole frame."""
        for _ in range(RECEIVES_PER_TURN):
            view = self.landing()
            try:
                count = self.sock.recv_into(view)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise _gone(error) from None
            if count == 0:
                raise Unavailable("the peer closed the connection")
            self.advance(count)
            if self.closed or self.paused:
                return
            if count < len(view):
                break
        self._tune_wake()

    def _tune_wake(self) -> None:
        """Not before the rest of the bulk, or a good part of it, has come (SO_RCVLOWAT)."""
        if not self._is_tcp:
            return  # Unix sockets wake for any byte, whatever they are told.
        rest = 1 if self._bulk is None else len(self._bulk) - self._bulk_filled
        wake = min(rest, WAKE_BYTES)
        if wake != self._wake_bytes:
            self._wake_bytes = wake
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)

    def landing(self) -> memoryview:
        """Where the next bytes from the socket belong; never empty."""
        if self._bulk is None:
            return self._buffer[self._end :]
        return self._bulk[self._bulk_filled :]

    def advance(self, count: int) -> None:
        """So many bytes lie in `landing` now: call the owner for each frame that is whole."""
        self.received_bytes += count
        if self._bulk is None:
            self._end += count
            self._parse()
            return
        self._bulk_filled += count
        if self._bulk_filled == len(self._bulk):
            self._finish()

    def resume(self) -> None:
        """Ask the owner again for the memory that a bulk waits for."""
        assert self.paused
        self.paused = False
        self._parse()

    def _parse(self) -> None:
        """Take every whole frame out of the page."""
        while not self.closed:
            if self._head is None:
                if self._end - self._start < PREFIX_BYTES:
                    break
                self._head = self._read_prefix()
            head = self._head
            if self._message is None:
                if self._end - self._start < head.meta_bytes:
                    break
                meta = self._buffer[self._start : self._start + head.meta_bytes]
                self._message = self._reader.message(head, meta)
                self._start += head.meta_bytes
            if head.bulk_bytes == 0:
                self._finish()
            elif not self._land(head, self._message):
                return
        if not self.closed:
            self._compact()

    def _read_prefix(self) -> FrameHead:
        head = self._reader.prefix(self._buffer[self._start : self._start + PREFIX_BYTES])
        self._start += PREFIX_BYTES
        if self.peer is None and (
            head.bulk_bytes or PREFIX_BYTES + head.meta_bytes > UNAUTHENTICATED_BYTES_MAX
        ):
            raise PeerError("a stranger sends more than a handshake needs")
        return head

    def _land(self, head: FrameHead, message: Message) -> bool:
        """Begin the bulk; True when it is whole already and the page may hold more frames."""
        landing = self._owner.land(self, head, message)
        if landing is None:
            self.paused = True
            return False
        if isinstance(landing, Slot):
            self._slot, self._bulk = landing, landing.view
        else:
            self._slot, self._bulk = None, landing
        assert len(self._bulk) == head.bulk_bytes
        count = min(self._end - self._start, head.bulk_bytes)
        self._bulk[:count] = self._buffer[self._start : self._start + count]
        self._start += count
        self._bulk_filled = count
        if count == head.bulk_bytes:
            self._finish()
            return True
        assert self._start == self._end
        self._start = self._end = 0
        return False

    def _finish(self) -> None:
        """A frame is whole: check its bulk and hand it over."""
        head, message, view, slot = self._head, self._message, self._bulk, self._slot
        assert head is not None
        assert message is not None
        if view is not None and type(message) not in self._unchecked:
            self._reader.check_bulk(head, message, view)
        self._head = self._message = self._bulk = self._slot = None
        self._bulk_filled = 0
        if self.peer is None:
            self._shake(message)
        else:
            self._owner.arrived(
                self, head.request, message, None if view is None else Bulk(view, slot)
            )

    def _compact(self) -> None:
        """Move the begun frame to the front of a buffer that holds its whole prefix or meta."""
        rest = self._end - self._start
        needed = max(PAGE_BYTES, 0 if self._head is None else self._head.meta_bytes)
        if rest == 0 and needed == len(self._buffer):
            self._start = self._end = 0
            return
        if needed != len(self._buffer):
            old, self._buffer = self._buffer, memoryview(bytearray(max(needed, rest)))
            self._buffer[:rest] = old[self._start : self._end]
        elif self._start:
            self._buffer[:rest] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, rest

    # ----------------------------------------------------------------------- handshake

    def greet(self) -> None:
        """The client's first word; the socket is connected."""
        assert isinstance(self._handshake, ClientHandshake)
        self.send(0, self._handshake.hello())

    def _shake(self, message: Message) -> None:
        match self._handshake:
            case ClientHandshake() as client:
                self._shake_as_client(client, client.receive(message))
            case ServerHandshake() as server:
                self._shake_as_server(server, server.receive(message))

    def _shake_as_client(self, handshake: ClientHandshake, step: ClientProof | Established) -> None:
        match step:
            case ClientProof():
                self.send(0, step)
                assert handshake.keys is not None
                self._writer.set_key(handshake.keys.client_to_server)
                self._reader.set_key(handshake.keys.server_to_client)
            case Established():
                self.peer = step
                self._owner.established(self, step)

    def _shake_as_server(
        self, handshake: ServerHandshake, answer: ServerHello | ServerProof | Failed
    ) -> None:
        if handshake.keys is not None:
            self._writer.set_key(handshake.keys.server_to_client)
            self._reader.set_key(handshake.keys.client_to_server)
        self.send(0, answer)
        if isinstance(answer, Failed):
            raise Refused(f"a client looked for something else: {answer.message}")
        if isinstance(answer, ServerProof):
            assert handshake.established is not None
            self.peer = handshake.established
            self._owner.established(self, self.peer)

    # ----------------------------------------------------------------------- sending

    def send(
        self,
        request: int,
        message: Message,
        bulk: Buffer = b"",
        *,
        epoch: Epoch = Epoch(0),
        sent: Sent | None = None,
    ) -> None:
        """Queue one frame and push what the socket takes.

        Never raises for the peer: `flush` does, later.
        """
        assert not self.closed
        was_idle = not self._outgoing and not self._pushing
        head = memoryview(self._writer.encode(message, request, bulk, epoch))
        view = memoryview(bulk).cast("B")
        self.queued_bytes += len(head) + len(view)
        if len(view):
            self._outgoing.append(_Outgoing(head, None))
            self._outgoing.append(_Outgoing(view, sent))
        else:
            self._outgoing.append(_Outgoing(head, sent))
        if was_idle:
            try:
                self._push()
            except OSError:
                # The socket shows itself as writable, and `flush` meets the same error there.
                return

    def flush(self) -> None:
        """Push what the socket takes now."""
        try:
            self._push()
        except OSError as error:
            raise _gone(error) from None

    def _push(self) -> None:
        """Never entered twice: a `sent` that sends again only lengthens the queue."""
        self._pushing = True
        try:
            self._push_queue()
        finally:
            self._pushing = False

    def _push_queue(self) -> None:
        while self._outgoing:
            views: list[memoryview] = []
            offered = 0
            for outgoing in itertools.islice(self._outgoing, SEND_VIEWS_MAX):
                views.append(outgoing.view)
                offered += len(outgoing.view)
                if offered >= SEND_BYTES_MAX:
                    break
            try:
                count = self.sock.sendmsg(views, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            self.sent_bytes += count
            self.queued_bytes -= count
            self._take_sent(count)
            if count < offered or self.closed:
                return

    def _take_sent(self, count: int) -> None:
        """Forget `count` bytes from the front of the queue, and say so to their owners."""
        done: list[Sent] = []
        while self._outgoing and count >= len(self._outgoing[0].view):
            outgoing = self._outgoing.popleft()
            count -= len(outgoing.view)
            if outgoing.sent is not None:
                done.append(outgoing.sent)
        if count:
            self._outgoing[0].view = self._outgoing[0].view[count:]
        for sent in done:
            sent()

    # ----------------------------------------------------------------------- closing

    def close(self) -> None:
        """Close the socket and free everything; idempotent."""
        if self.closed:
            return
        self.closed = True
        self.paused = False
        self.sock.close()
        slot, self._slot, self._bulk = self._slot, None, None
        if slot is not None:
            slot.release()
        outgoing, self._outgoing = self._outgoing, deque()
        self.queued_bytes = 0
        for each in outgoing:
            if each.sent is not None:
                each.sent()


def tune(sock: socket.socket) -> None:
    """Non-blocking; no delay and keepalive on TCP, large buffers on Unix."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        for forced, plain in (
            (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
            (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
        ):
            try:
                sock.setsockopt(socket.SOL_SOCKET, forced, UNIX_BUFFER_BYTES)
            except OSError:
                # Only the system's administrator may pass the system's limit.
                sock.setsockopt(socket.SOL_SOCKET, plain, UNIX_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)


def _gone(error: OSError) -> CkptError:
    if error.errno in (errno.EPIPE, errno.ECONNRESET):
        return Unavailable("the peer closed the connection")
    return Unavailable(f"the connection failed: {error.strerror}")
