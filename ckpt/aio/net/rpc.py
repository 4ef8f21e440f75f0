"""Blocking requests to the coordinator, for code that has no loop: trainers, readers, commands.

One background thread owns one link. A request is registered under the lock, the thread sends it,
and the caller waits. When the session dies, the thread dials again and repeats every request that
has no answer yet, until its deadline: control requests are at-least-once and every handler is
idempotent.

A client belongs to the process that made it: in a forked child there is no thread, so every request
is refused there at once, and the child's copies of the connection are closed (a child that lives
on would keep its parent's session open, and with it what the coordinator holds for it).

A server that cannot be reached makes calls wait for their deadline (it may come back: a restart is
no failure), unless it is one that never comes back (`lasting=False`); a server that refuses the
handshake makes all of them fail at once.

Of several coordinators the one is found that leads (ckpt.protocol.finding), and found again when
another one does: calls go on there. They fail at once only when all refuse the handshake.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeVar

from ckpt.aio.clock import draw, now_us
from ckpt.aio.descriptors import DescriptorMark, closed_outside
from ckpt.aio.net.address import parse_server
from ckpt.aio.net.link import Link, LinkClosed, LinkDrained, LinkOpened, LinkReceived
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.threads import start_thread
from ckpt.base.errors import (
    CkptError,
    PeerError,
    Refused,
    Unauthorized,
    Unavailable,
    error_from_wire,
)
from ckpt.base.rests import Rests
from ckpt.base.system_errors import Scarce
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message, asked_again
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.events import Buffer
from ckpt.protocol.handshake import SECRET_BYTES_MIN, Caller, Established

BACKOFF_S: Final = (0.02, 1.0)
"""First and longest rest between two attempts."""
COORDINATOR_BACKOFF_S: Final = (0.02, 0.5)
"""The same for coordinators: another one may lead by then."""
LOOK_S: Final = 1.0
"""How often a call that waits looks around."""
TELL_MAX: Final = 1024
"""Most messages that wait for the thread to send them."""

OnPush = Callable[[int, Message, memoryview], None]
OnOpened = Callable[[Established], None]
Reply = TypeVar("Reply")
_EMPTY: Final = memoryview(b"")


@dataclass(slots=True)
class _Call:
    """One request on its way. The thread fills in the answer and sets `done`."""

    request: int
    message: Message
    bulk: Buffer
    done: threading.Event = field(default_factory=threading.Event)
    reply: Message | None = None
    reply_bulk: memoryview = _EMPTY
    error: CkptError | None = None
    sent: bool = False
    """On the present session."""

    def finish(self, reply: Message | None, bulk: memoryview, error: CkptError | None) -> None:
        self.reply, self.reply_bulk, self.error = reply, bulk, error
        self.done.set()


#: Every client of this process: a forked child abandons them.
_clients: weakref.WeakSet[RpcClient] = weakref.WeakSet()
#: Whose descriptors other code has closed: their numbers may lead to files of others by now, so
#: nothing of them is ever closed, not even by the collector. One for each such client.
_given_up: Final[list[LinkLoop]] = []


class RpcClient:
    """I am thread safe.

    `on_push` and `on_opened` are called on my thread: they may `tell`, never `call`.

    Dials at the first call or tell, then keeps the session up. `close` me.
    """

    def __init__(
        self,
        address: str,
        caller: Caller,
        *,
        on_push: OnPush | None = None,
        on_opened: OnOpened | None = None,
        lasting: bool = True,
        locate: Callable[[], str] | None = None,
    ) -> None:
        """lasting: a server that is gone may come back, and calls wait for that.
        locate: its address now, asked on my thread ahead of each dial; raises Unavailable while it
            has none.
        """
        parse_server(address, caller.server_role)
        if len(caller.secret) < SECRET_BYTES_MIN:
            raise Refused(f"a cluster secret of {len(caller.secret)} bytes is too short")
        self.address = address
        """Where it was dialed last; of coordinators it may name several, with commas between."""
        self.server = address
        """The one address of the session that stands or stood last; at first `address`."""
        self.peer: Established | None = None
        """Who answers, while the session stands."""
        self.last_error: CkptError | None = None
        self._caller = caller
        self._on_push = on_push
        self._on_opened = on_opened
        self._lasting = lasting
        self._locate = locate
        self._pid = os.getpid()

        self._lock = threading.Lock()
        #: Requests without an answer, oldest first; callers add and remove, the thread sends and
        #: answers. Under the lock.
        self._calls: dict[int, _Call] = {}
        #: (request, message, bulk) that nobody waits for; the thread takes them. Under the lock.
        self._told: list[tuple[int, Message, Buffer]] = []
        self._next_request = 1
        self._closing = False

        self._loop = LinkLoop()
        self._mark = DescriptorMark(self._loop.fileno())
        self._link: Link | None = None
        self._dial_at_us = 0
        several = caller.server_role is Role.COORDINATOR
        self._rests = Rests(*(COORDINATOR_BACKOFF_S if several else BACKOFF_S), draw)
        self._thread: threading.Thread | None = None
        _clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_intact(self) -> bool:
        """False once other code of this process has closed my descriptors: I am of no use then."""
        return self._mark.is_ours

    @property
    def trouble(self) -> str:
        """Why there is no session; empty while there is one, and until a try has failed."""
        error = self.last_error
        return "" if error is None else error.message

    def call(
        self,
        message: Message,
        bulk: Buffer = b"",
        *,
        timeout_s: float = 10.0,
        look: Callable[[], None] | None = None,
    ) -> tuple[Message, memoryview]:
        """The reply and its bulk.

        look: called now and then while no session stands; it may bring the server back, and what it
            raises ends the call.

        Raises the error that the server reported, Unavailable when no answer came in time (the
        request may still have been done), Unauthorized or Refused when the server is not the one it
        should be.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self._start_thread()
            call = _Call(self._next_request, message, _own(bulk))
            self._next_request += 1
            self._calls[call.request] = call
        try:
            self._wait(call, timeout_s, look)
        finally:
            with self._lock:
                self._calls.pop(call.request, None)
        if call.error is not None:
            raise call.error
        if call.reply is None:
            raise self.unanswered(timeout_s)
        return call.reply, call.reply_bulk

    def ask(
        self, message: Message, reply: type[Reply], bulk: Buffer = b"", *,
        timeout_s: float = 10.0, look: Callable[[], None] | None = None,
    ) -> tuple[Reply, memoryview]:  # fmt: skip
        """`call`, where there is one kind of reply. Raises PeerError for another one."""
        answer, answer_bulk = self.call(message, bulk, timeout_s=timeout_s, look=look)
        if not isinstance(answer, reply):
            who = self._caller.server_role.value
            raise PeerError(f"the {who} answered with a {type(answer).__name__}")
        return answer, answer_bulk

    def tell(self, message: Message, bulk: Buffer = b"", *, request: int = 0) -> None:
        """Send what is not answered, or answers a push's `request`.

        Dropped when the session dies first.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self._start_thread()
            if len(self._told) < TELL_MAX:
                self._told.append((request, message, _own(bulk)))

    def unanswered(self, waited_s: float) -> Unavailable:
        """Why no answer came in that time, as far as is known."""
        last = self.last_error
        reason, hint = ("", "") if last is None else (f": {last.message}", last.hint)
        text = f"no answer from {self.address} in {waited_s:g} s{reason}"
        runs = f"see whether the {self._caller.server_role.value} runs there, and what its log says"
        return (Scarce if isinstance(last, Scarce) else Unavailable)(text, hint=hint or runs)

    def close(self) -> None:
        """End the session; calls in progress fail.

        What was to be sent is still sent when a session stands. Idempotent.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            already, self._closing = self._closing, True
            thread = self._thread
            if not already and not self.is_intact:
                _given_up.append(self._loop)
                self._thread = None  # It may never wake: it ends with the process.
                return
            if not already:
                self._loop.wake()
        if thread is not None and thread is not threading.current_thread():
            # One whose start an interrupt cut short may begin later still: it ends at once.
            if thread.is_alive():
                thread.join()
        elif not already and thread is None:
            self._loop.shut()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._loop.abandon()

    def _wait(self, call: _Call, timeout_s: float, look: Callable[[], None] | None) -> None:
        """Until it is done, or for so long."""
        deadline_us = now_us() + int(timeout_s * US_PER_S)
        while (left_us := deadline_us - now_us()) > 0:
            if call.done.wait(min(left_us / US_PER_S, LOOK_S)):
                return
            if self.peer is None and look is not None:
                look()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise Refused(
                f"this connection was made by process {self._pid}, this is a forked child of it",
                hint="open a store in the child",
            )

    def _check_open(self) -> None:
        if self._closing:
            raise Refused("this client is closed")
        if not self.is_intact:
            raise closed_outside()

    def _start_thread(self) -> None:
        """Under the lock, which it waits for to take what is asked."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ckpt-rpc", daemon=True)
            try:
                start_thread(self._thread)
            except Scarce:
                self._thread = None
                raise
        self._loop.wake()

    # ----------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._dial()
                self._send()
                self._expect()
                for event in self._loop.poll(self._patience_us()):
                    self._take(event)
            self._send()
        except OSError:
            if self.is_intact:
                raise
        finally:
            self._end()

    def _end(self) -> None:
        error: CkptError = Unavailable("this client was closed")
        with self._lock:
            calls = list(self._calls.values())
            self.peer = None
            if self.is_intact:
                self._closing = True
                self._loop.shut()
            else:
                error = closed_outside()
                _given_up.append(self._loop)
        for call in calls:
            call.finish(None, _EMPTY, error)

    def _patience_us(self) -> int | None:
        return None if self._link is not None else max(0, self._dial_at_us - now_us())

    def _dial(self) -> None:
        if self._link is not None or now_us() < self._dial_at_us:
            return
        try:
            if self._locate is not None:
                self.address = self._locate()
        except CkptError as error:
            self._lose(error)
        else:
            self._link = self._loop.connect(self.address, self._caller)

    def _expect(self) -> None:
        """A server that stands still while a call waits for it must not be waited for."""
        pulse = None if self._link is None else self._link.pulse
        if pulse is not None:
            pulse.expect(now_us(), bool(self._calls))

    def _send(self) -> None:
        """Everything that waits, as far as the session takes it."""
        link = self._link
        if link is None or self.peer is None:
            return
        with self._lock:
            told, self._told = self._told, []
            calls = [call for call in self._calls.values() if not call.sent]
        for index, (request, message, bulk) in enumerate(told):
            if not self._try(link, request, message, bulk):
                with self._lock:
                    self._told = told[index:] + self._told
                return
        for call in calls:
            try:
                call.sent = link.try_send(call.request, call.message, call.bulk)
            except Refused as error:
                call.finish(None, _EMPTY, error)

    def _try(self, link: Link, request: int, message: Message, bulk: Buffer) -> bool:
        try:
            return link.try_send(request, message, bulk)
        except Refused as error:
            # Nobody waits for it; too long for a frame, it is dropped and remembered.
            self.last_error = error
            return True

    def _take(self, event: LinkOpened | LinkReceived | LinkDrained | LinkClosed) -> None:
        match event:
            case LinkOpened(link, peer):
                self.peer, self.server = peer, link.address
                self.last_error = None
                # What is said again in the next session is of this cluster.
                self._caller = replace(self._caller, cluster=peer.cluster)
                self._rests.begin_again()
                if self._on_opened is not None:
                    self._on_opened(peer)
            case LinkReceived(_, request, bulk=bulk):
                self._receive(request, event.message, _EMPTY if bulk is None else bulk.view)
            case LinkClosed(_, error):
                self._lose(error)
            case LinkDrained():
                # There is room again: the next round sends.
                return

    def _receive(self, request: int, message: Message, bulk: memoryview) -> None:
        with self._lock:
            call = self._calls.pop(request, None)
        if call is None:
            if self._on_push is not None:
                self._on_push(request, message, bulk)
        elif isinstance(message, Failed):
            retry_s = None if message.retry_after_us is None else message.retry_after_us / US_PER_S
            error = error_from_wire(message.code, message.message, message.hint, retry_s)
            call.finish(None, _EMPTY, error)
        else:
            call.finish(message, bulk, None)

    def _lose(self, error: CkptError) -> None:
        self._link = None
        self.peer = None
        self.last_error = error
        self._dial_at_us = now_us() + int(self._rests.next_s() * US_PER_S)
        with self._lock:
            calls = list(self._calls.values())
            self._told.clear()
        for call in calls:
            if call.sent:
                call.message, call.sent = asked_again(call.message), False
            if not self._lasting or isinstance(error, Unauthorized | Refused):
                call.finish(None, _EMPTY, error)


def _own(bulk: Buffer) -> bytes:
    """A copy unless it cannot change: a call that gave up leaves its bulk in the link's queue."""
    return bulk if isinstance(bulk, bytes) else bytes(bulk)


def _abandon_in_child() -> None:
    for client in list(_clients):
        client.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
