"""One framed, authenticated connection over a non-blocking socket.

I know no loop, no thread and no clock: whoever watches my socket (asyncio in `server` and `dial`,
selectors in `link`) calls `receive` when it is readable and `flush` when it is writable.

Goals: bulks go straight between the kernel and the memory where they lie and are wanted; a stranger
costs 4 KiB; a peer can only hurt itself.

Plan for receiving: bytes first land in a buffer of one page, which takes prefix and meta, and
several small frames at once. When a frame has a bulk, the owner names its landing; what of the bulk
came along with the page (less than 4 KiB) is moved there, the rest is received in place, and summed
block by block as it comes. Where the session is encrypted, what lands is decrypted there, and its
tag comes after it: what lies in its place meanwhile is nobody's, and is handed over by no
`arrived` unless the tag fits.

Plan for sending: a queue of views; `sendmsg` gathers them. A bulk is not copied: it must stay as it
is until its `sent` is called, which happens exactly once, also when the connection dies first. It
is encrypted on its way, into a buffer of the queue's. What lies in memory that may be lent
(`lending`) is not even queued when the peer takes it so.

Invariants: `Bulk` callbacks come in order, and `sent` among bulks that are not lent; after `close`
no callback of the owner comes.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from typing import Final, Protocol

from ckpt.aio.lending import Borrower, Lendable, Lendables, Lender, Loan, ReceivedFile
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.incoming import IncomingBulk
from ckpt.aio.net.send_queue import SendQueue, Sent
from ckpt.aio.net.session_guard import SessionGuard, begin_guard
from ckpt.aio.net.sockets import connection_failed, peer_closed
from ckpt.aio.net.wire_policy import check_settled, wanted_for
from ckpt.aio.slots import Slot
from ckpt.base.errors import PeerError, Refused
from ckpt.base.ids import Epoch
from ckpt.base.limits import PAGE_BYTES, UNAUTHENTICATED_BYTES_MAX
from ckpt.format.frame import PREFIX_BYTES, FrameHead, FrameReader, FrameWriter, LentPlace
from ckpt.format.messages import Message
from ckpt.format.messages.hello import ClientProof, Failed, ServerHello, ServerProof
from ckpt.format.messages.lending import (
    ColumnLent,
    LendMemory,
    MemoryReturned,
    TakeBackMemory,
)
from ckpt.native.landing import Landing, LandingGuard
from ckpt.native.polling import BulkPoll
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import ClientHandshake, Established, ServerHandshake

RECEIVES_PER_TURN: Final = 16
"""Receives on one connection before the others get their turn."""

assert UNAUTHENTICATED_BYTES_MAX >= PAGE_BYTES, "a stranger holds the head buffer and nothing else"

_sessions = itertools.count(1)


def next_session() -> Session:
    """A number that no other connection of this process has or had."""
    return Session(next(_sessions))


class SessionHandler(Protocol):
    """What a daemon does about its peers. Called on the loop; must not block and must not raise."""

    def opened(self, session: Session, peer: Established) -> None:
        """A peer proved the cluster's secret."""

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        """A whole frame, checked. The bulk belongs to the handler now."""

    def closed(self, session: Session, reason: str) -> None:
        """The session is over; comes once for each `opened`."""


class ChannelOwner(Protocol):
    """What watches a channel's socket for it."""

    def established(self, channel: Channel, peer: Established) -> None:
        """The handshake is done."""

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A whole frame after the handshake."""

    def land(self, channel: Channel, head: FrameHead, message: Message) -> Slot | memoryview | None:
        """`head.bulk_bytes` of memory, or None: none is free, stop receiving until `resume`."""


class Channel:
    """See the module. What raises, raises CkptError; then only `close` may be called."""

    def __init__(
        self, sock: socket.socket, handshake: ClientHandshake | ServerHandshake,
        owner: ChannelOwner, *, unchecked: frozenset[type] = frozenset(),
        borrower: Borrower | None = None, lendables: Lendables | None = None,
        bulks: BulkPoll | None = None,
    ) -> None:  # fmt: skip
        """`bulks`: of what watches the socket, where bulks land on without me."""
        self.session = next_session()
        self.sock = sock
        self.peer: Established | None = None
        """Who it is, once it is proved."""
        self.closed = False
        self.paused = False
        """A bulk waits for memory; `resume` goes on."""
        self.on_queued: Callable[[], None] | None = None
        """Called when I have sent something by myself, in no call of whoever watches me."""
        self._received_bytes = 0
        self._owner = owner
        self._handshake = handshake
        self._unchecked = unchecked
        self.borrower = borrower
        self._lender = Lender(lendables or Lendables())
        self._receiving = False
        self._writer = FrameWriter()
        self._reader = FrameReader()
        self._queue = SendQueue(sock, bulks)
        self._buffer = memoryview(bytearray(PAGE_BYTES))
        self._start = 0
        self._end = 0
        self._head: FrameHead | None = None
        self._message: Message | None = None
        self._slot: Slot | Loan | None = None
        self._bulk: memoryview | None = None
        #: The rest of `_bulk`.
        self._incoming = IncomingBulk(sock, bulks)
        #: What followed a bulk that came with its message.
        self._tail = b""
        self._guard = SessionGuard()

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun to arrive and is not complete."""
        return self._head is not None or self._end > self._start

    @property
    def received_bytes(self) -> int:
        """What came, and what was lent to us."""
        return self._received_bytes + self._incoming.uncounted_bytes

    @property
    def queued_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._queue.queued_bytes

    @property
    def sent_bytes(self) -> int:
        """What the socket took, and what was lent and came back."""
        return self._queue.sent_bytes + self._lender.returned_bytes

    @property
    def lent_bytes(self) -> int:
        """Bytes of bulks that the peer has borrowed and not given back."""
        return self._lender.bytes

    # ----------------------------------------------------------------------- receiving

    def receive(self) -> None:
        """Take what the socket has, for one turn, and call the owner for each whole frame."""
        self._receiving = True
        try:
            self._receive_some()
        finally:
            self._receiving = False
        self._return_borrowed()

    def _receive_some(self) -> None:
        for _ in range(RECEIVES_PER_TURN):
            more = self._receive_page() if self._incoming.landing is None else self._receive_bulk()
            if self.closed or self.paused:
                return
            if not more:
                break
        self._incoming.wake_for_frames()

    def _receive_page(self) -> bool:
        """Prefixes, meta and small bulks; whether the socket may have more."""
        view = self._buffer[self._end :]
        try:
            if self.borrower is None or self.peer is None:
                count = self.sock.recv_into(view)
            else:
                count = self.borrower.receive(self.sock, view)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise connection_failed(error) from None
        if count == 0:
            raise peer_closed()
        self._received_bytes += count
        self._end += count
        self._parse()
        return count == len(view)

    def _receive_bulk(self) -> bool:
        """The rest of a bulk, in its place; whether the socket may have more."""
        self._received_bytes += self._incoming.receive()
        if not self._incoming.is_whole:
            return False
        self._finish()
        return True

    def resume(self) -> None:
        """Ask the owner again for the memory that a bulk waits for."""
        assert self.paused
        self.paused = False
        self._parse()
        if not self.closed:
            self._incoming.wake_for_frames()

    def _parse(self) -> None:
        """Take every whole frame out of the page."""
        while not self.closed:
            if self._head is None:
                if self._end - self._start < self._reader.prefix_bytes:
                    break
                self._head = self._read_prefix()
            head = self._head
            if self._message is None:
                if self._end - self._start < head.meta_bytes:
                    break
                meta = self._buffer[self._start : self._start + head.meta_bytes]
                self._message = self._reader.message(head, meta)
                self._start += head.meta_bytes
                head = self._head = self._reader.head
            if head.bulk_bytes == 0:
                self._finish()
            elif head.lent:
                self._borrow(head)
            elif not self._land(head, self._message):
                return
        if not self.closed:
            self._compact()

    def _read_prefix(self) -> FrameHead:
        size = self._reader.prefix_bytes
        head = self._reader.prefix(self._buffer[self._start : self._start + size])
        self._start += size
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
        rest = min(self._end - self._start, head.tail_bytes)
        self._tail = bytes(self._buffer[self._start : self._start + rest])
        self._start += rest
        if count + rest == head.bulk_bytes + head.tail_bytes:
            self._finish()
            return True
        assert self._start == self._end
        self._start = self._end = 0
        guard = self._begin_tag(head)
        self._incoming.begin(self._bulk, count, guard, head.tail_bytes, self._tail)
        return False

    def _borrow(self, head: FrameHead) -> None:
        """The bulk lies with its lender, and is used there; always whole."""
        borrower, place = self.borrower, self._reader.lent
        if borrower is None:
            raise PeerError("a bulk was lent to us, who did not offer to borrow")
        assert place is not None
        self._bulk = borrower.view(place, head.bulk_bytes)
        self._slot = Loan(self._give_back, borrower.borrowed())
        self._received_bytes += head.bulk_bytes
        self._finish()

    def _give_back(self, loan: int) -> None:
        """A bulk that was used in place is not needed any more."""
        if self.borrower is not None and not self.closed:
            self.borrower.returned.append(loan)
            if not self._receiving:
                self._return_borrowed()
                if self.on_queued is not None:
                    self.on_queued()

    def _return_borrowed(self) -> None:
        """Say so once for all that came in this turn."""
        if self.borrower is not None and self.borrower.returned and not self.closed:
            bulks, self.borrower.returned = tuple(self.borrower.returned), []
            self.send(0, MemoryReturned(bulks))

    def _finish(self) -> None:
        """A frame is whole: check its bulk and hand it over."""
        head, message, view, slot = self._head, self._message, self._bulk, self._slot
        landing = self._incoming.end()
        assert head is not None
        assert message is not None
        bulk = None
        if view is not None:
            if head.guarded:
                self._check_tag(head, view, landing)
            sums = None if landing is None else landing.sums()
            bulk = Bulk(view, slot, sums, self._file_of(message))
            if type(message) not in self._unchecked:
                self._reader.check_bulk(head, message, bulk.crc())
        self._head = self._message = self._bulk = self._slot = None
        if self.peer is None:
            self._shake(message)
        elif isinstance(message, LendMemory | TakeBackMemory | MemoryReturned):
            self._hear_of_lending(message)
        else:
            self._owner.arrived(self, head.request, message, bulk)

    def _file_of(self, message: Message) -> ReceivedFile | None:
        """What came along with the message, where something should. Raises PeerError."""
        if not isinstance(message, ColumnLent):
            return None
        if self.borrower is None:
            raise PeerError("a column was lent to us, who did not ask for it")
        return self.borrower.take_file()

    def _begin_tag(self, head: FrameHead) -> LandingGuard | None:
        """What the bulk is added to as it comes; None where it has no tag."""
        if not head.guarded:
            return None
        self._reader.begin_tag(head)
        return self._guard.incoming

    def _check_tag(self, head: FrameHead, view: memoryview, landing: Landing | None) -> None:
        """Before anybody hears of the bulk. One that came with its message is not added yet."""
        if landing is None:
            self._reader.begin_tag(head).add(view)
        self._reader.check_tag(head, self._tail if landing is None else landing.tail)

    def _hear_of_lending(self, message: LendMemory | TakeBackMemory | MemoryReturned) -> None:
        match message:
            case MemoryReturned(bulks):
                for sent in self._lender.returned(bulks):
                    sent()
            case LendMemory() if self.borrower is not None:
                self.borrower.take(message)
            case TakeBackMemory(region) if self.borrower is not None:
                self.borrower.forget(region)
            case _:
                raise PeerError(f"{type(message).__name__} where nothing is lent")

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
        self.send(0, self._handshake.hello(wanted_for(self.sock)))

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
                check_settled(self.sock, step.wire, f"the {step.role.value} {step.name}".rstrip())
                self._establish(step)

    def _shake_as_server(
        self, handshake: ServerHandshake, answer: ServerHello | ServerProof | Failed
    ) -> None:
        if handshake.keys is not None:
            self._writer.set_key(handshake.keys.server_to_client)
            self._reader.set_key(handshake.keys.client_to_server)
        self.send(0, answer)
        if isinstance(answer, Failed):
            raise Refused(f"a client cannot stay: {answer.message}")
        if isinstance(answer, ServerProof):
            assert handshake.established is not None
            self._establish(handshake.established)

    def _establish(self, peer: Established) -> None:
        self.peer = peer
        at_server, keys = isinstance(self._handshake, ServerHandshake), self._handshake.keys
        assert keys is not None
        self._guard = begin_guard(
            peer.wire, keys, at_server=at_server, reader=self._reader, writer=self._writer
        )
        if not peer.borrows:
            self._lender = Lender(Lendables())
        self._owner.established(self, peer)

    # ----------------------------------------------------------------------- sending

    def send(
        self,
        request: int,
        message: Message,
        bulk: Buffer = b"",
        *,
        epoch: Epoch = Epoch(0),
        sent: Sent | None = None,
        descriptor: int = -1,
    ) -> None:
        """Queue one frame and push what the socket takes. The descriptor goes along, and is mine.

        Never raises for the peer: `flush` does, later.
        """
        assert not self.closed
        was_idle = self._queue.is_idle
        view = memoryview(bulk).cast("B")
        place = self._lender.place(view)
        if place is not None:
            self._queue_lent(message, request, view, epoch, sent, place)
        else:
            head = memoryview(self._writer.encode(message, request, bulk, epoch))
            self._queue.put(head, None if len(view) else sent, descriptor)
            if len(view) and self._guard.sealer is not None:
                self._queue.put_sealed(view, sent, self._guard.sealer, self._writer.number)
            elif len(view):
                self._queue.put(view, sent)
        if was_idle:
            try:
                self._queue.push()
            except OSError:
                # The socket shows itself as writable, and `flush` meets the same error there.
                return

    def _queue_lent(
        self, message: Message, request: int, view: memoryview, epoch: Epoch, sent: Sent | None,
        place: LentPlace,
    ) -> None:  # fmt: skip
        fresh, self._lender.fresh = self._lender.fresh, None
        if fresh is not None:
            lent, descriptor = fresh
            self._queue.put(memoryview(self._writer.encode(lent, 0, b"", epoch)), None, descriptor)
        self._queue.put(memoryview(self._writer.encode(message, request, view, epoch, place)))
        self._lender.went(len(view), sent)

    def take_back(self, lendable: Lendable) -> None:
        """Ask the peer to let go of this memory."""
        region = self._lender.take_back(lendable)
        if region is not None and not self.closed:
            self.send(0, TakeBackMemory(region))

    def flush(self) -> None:
        """Push what the socket takes now."""
        try:
            self._queue.push()
        except OSError as error:
            raise connection_failed(error) from None

    # ----------------------------------------------------------------------- closing

    def close(self) -> None:
        """Close the socket and free everything; idempotent."""
        if self.closed:
            return
        self.closed = True
        self.paused = False
        self.on_queued = None
        self._incoming.end()
        self.sock.close()
        slot, self._slot, self._bulk = self._slot, None, None
        if slot is not None:
            slot.release()
        self._queue.close()
        if self.borrower is not None:
            self.borrower.close()
        for sent in self._lender.close():
            sent()
