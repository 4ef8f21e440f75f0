"""The listening side of a daemon: many peers, one loop, bounded memory.

    stranger --ClientProof is right--> session --cut off, gone or closed--> nothing
       |                                  |
       5 s, 4 KiB, a seat                 bulks in the pool's slots; no slot free: its socket is not
                                          read

A peer is cut off when it is malformed (any PeerError), stops in the middle of a frame, does not
read what it asked for (too many bytes queued, or none taken for too long), or fails the handshake.
It is counted, the daemon lives on. A session that is merely quiet stays; TCP's keepalive finds dead
hosts.

Strangers do not shut others out. Seats for them are few, and one that has not proved itself within
a grace (250 ms) gives its seat to whoever comes next (`accepting`, `seats`); an honest peer needs a
round trip. Why not a proof in the first packet, or a cookie: a peer of the version before speaks
neither, and a stranger's connection must be accepted and read all the same before either could be
looked at. What a seat costs is small; that it could be held for 5 s was the fault.

Where sessions or descriptors are used up, peers are still let in to prove themselves: trainers and
readers then hear why they cannot stay, under the session's key (Failed, as for another
cluster's name); tools and targets stay, so that `ckpt status` can say it and the cluster keeps its
targets.

Memory: pool (bulks) + 4 KiB for each session and seat + what is queued to peers, at most
`queued_bytes_max` each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ckpt.aio import descriptors
from ckpt.aio.clock import now_us
from ckpt.aio.lending import Borrower
from ckpt.aio.net.address import UNIX_PATH_BYTES_MAX
from ckpt.aio.net.bulk import Bulk, BulkRules
from ckpt.aio.net.channel import Channel, SessionHandler
from ckpt.aio.net.send_queue import Sent
from ckpt.aio.net.serving.accepting import Door, listen_at
from ckpt.aio.net.serving.seats import BACKLOG
from ckpt.aio.net.serving.server_limits import Cut, Pressure, ServerLimits, ServerStatistics
from ckpt.aio.net.serving.watch import Watch
from ckpt.aio.net.sockets import tune
from ckpt.aio.selecting import bulks_of
from ckpt.aio.slots import Slot, SlotPool
from ckpt.base.errors import Busy, CkptError, PeerError, Refused, Unauthorized, Unavailable
from ckpt.base.limits import DESCRIPTORS_REMEDY
from ckpt.base.units import US_PER_S
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import NONCE_BYTES, Established, Identity, ServerHandshake

TurnAway = Callable[[Role], Failed | None]

_LINGER_STEP_S: Final = 0.01
_STAYS_IN_NEED: Final = frozenset({Role.ADMIN, Role.TARGET, Role.COORDINATOR})
_SESSIONS_SHARE: Final = 3, 4
"""Share of the descriptors that sessions may use; the rest is for files and strangers."""
_SWEEPS_PER_LIMIT: Final = 4
"""How many times within the shortest time limit the limits are checked."""


def serve(
    handler: SessionHandler,
    *,
    listen: tuple[str, int] | None,
    unix: str | None,
    secret: bytes,
    identity: Identity,
    pool: SlotPool,
    limits: ServerLimits | None = None,
    bulks: BulkRules | None = None,
    turn_away: TurnAway = lambda _role: None,
) -> Server:
    """Listen on a TCP `(host, port)`, a Unix path, or both, in the running loop.

    `turn_away` is asked for each peer that proved itself: what it hears when it cannot stay.

    Port 0 takes a free one. A Unix path at which nobody answers any more is taken over; Busy when
    somebody does. Raises Unavailable when the address cannot be had.
    """
    assert listen is not None or unix is not None
    server = Server(
        handler, secret, identity, pool, limits or ServerLimits(), bulks or BulkRules(), turn_away
    )
    try:
        if listen is not None:
            server.listen_tcp(*listen)
        if unix is not None:
            server.listen_unix(unix)
    except BaseException:
        server.abandon()
        raise
    return server


class Server:
    """See the module; made by `serve`. Every method belongs to the loop's thread."""

    def __init__(
        self,
        handler: SessionHandler,
        secret: bytes,
        identity: Identity,
        pool: SlotPool,
        limits: ServerLimits,
        bulks: BulkRules,
        turn_away: TurnAway,
    ) -> None:
        self.port = 0
        """Of TCP; 0 without."""
        self.unix: str | None = None
        self.epoch = identity.epoch
        """Goes out with every frame; the owner sets it."""
        self.identity = identity
        """What peers hear from now on, but for its epoch; the owner may set another one."""
        self.limits = limits
        self._handler = handler
        self._secret = secret
        self._turn_away = turn_away
        self._pool = pool
        self._bulks = bulks
        self._loop = asyncio.get_running_loop()
        self._door: Door[Session] = Door(self, limits.unauthenticated_peers_max)
        share, of = _SESSIONS_SHARE
        self._sessions_max = min(limits.sessions_max, descriptors.limit() * share // of)

        #: Every connection that is not closed; strangers are those whose channel has no peer yet.
        self._watches: dict[Session, Watch] = {}
        #: Connections that wait for a slot, longest first. Only the first may take one, so that a
        #: large bulk is not overtaken by small ones for ever.
        self._waiting: deque[Session] = deque()
        self._serving_waiting = False

        self._cuts = dict.fromkeys(Cut, 0)
        self._opened = self._slot_waits = self._turned_away = 0
        #: Of connections that are closed.
        self._past_received_bytes = self._past_sent_bytes = 0
        pool.listen(self._on_slot_free)
        self._timer = self._loop.call_later(self._sweep_s, self._sweep)

    # ----------------------------------------------------------------------- listening

    def listen_tcp(self, host: str, port: int) -> None:
        """Only `serve` calls this."""
        self._bulks.wire.prepare(host)
        sock = listen_at(host, port)
        self._door.add(sock)
        self.port = sock.getsockname()[1]

    def listen_unix(self, path: str) -> None:
        """Only `serve` calls this."""
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise Refused(f"socket path {path!r} is longer than {UNIX_PATH_BYTES_MAX} bytes")
        _remove_orphan(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            os.chmod(path, 0o600)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise Unavailable(f"cannot listen on {path}: {error.strerror}") from None
        self._door.add(sock)
        self.unix = path

    # ----------------------------------------------------------------------- the door's host

    def welcome(self, sock: socket.socket, source: str) -> None:
        """The door calls this."""
        try:
            tune(sock)
            wire_for = self._bulks.wire.settled(sock)
        except OSError:
            # It left before we looked.
            self._cuts[Cut.GONE] += 1
            sock.close()
            return
        is_near = sock.family == socket.AF_UNIX
        borrows = self._bulks.borrows and is_near
        handshake = ServerHandshake(
            secret=self._secret,
            identity=lambda: replace(self.identity, epoch=self.epoch),
            nonce=os.urandom(NONCE_BYTES),
            borrows=borrows,
            lends=self._bulks.lends and is_near,
            wire_for=wire_for,
            admit=self._admit,
        )
        channel = Channel(
            sock,
            handshake,
            self,
            unchecked=self._bulks.unchecked,
            borrower=Borrower() if borrows else None,
            bulks=bulks_of(self._loop),
        )
        watch = Watch(self._loop, channel, self._fail)
        watch.received_at_us = watch.sent_at_us = now_us()
        watch.timer = self._loop.call_later(
            self.limits.unauthenticated_life_us / US_PER_S, self._expire, channel
        )
        self._watches[channel.session] = watch
        self._door.seats.take(channel.session, source, watch.received_at_us)
        watch.update()

    def send_away(self, who: Session) -> None:
        """The door calls this. What the stranger has said already is heard first: that we are slow
        is no fault of its own.
        """
        watch = self._watches[who]
        watch.guard(watch.channel.receive)
        if not watch.channel.closed and watch.channel.peer is None:
            self._end(watch.channel, Cut.EVICTED, "others came, and it had not proved itself")

    def _admit(self, role: Role) -> Failed | None:
        """What a peer hears that proved itself and cannot stay; the handshake asks."""
        return self._turn_away(role) or self._short(role)

    def _short(self, role: Role) -> Failed | None:
        """Sessions or descriptors are used up."""
        sessions = len(self._watches) - len(self._door.seats)
        if sessions < self._sessions_max and not self._door.is_short():
            return None
        if role in _STAYS_IN_NEED and not self._door.reserve.is_low:
            return None
        self._turned_away += 1
        return Failed(
            Unavailable.code, f"the {self.identity.role.value} {self.need()}", DESCRIPTORS_REMEDY
        )

    def need(self) -> str:
        """Why trainers are turned away now; empty when they are not."""
        sessions = len(self._watches) - len(self._door.seats)
        if self._door.is_short():
            return f"has no free descriptor (its limit is {descriptors.limit()})"
        if sessions >= self._sessions_max:
            return f"has {sessions} connections, as many as it may"
        return ""

    # ----------------------------------------------------------------------- the channel's owner

    def established(self, channel: Channel, peer: Established) -> None:
        """A channel calls this."""
        self._watches[channel.session].cancel_timer()
        self._door.leave(channel.session)
        self._opened += 1
        self._handler.opened(channel.session, peer)

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A channel calls this."""
        self._handler.received(channel.session, request, message, bulk)

    def land(self, channel: Channel, head: FrameHead, message: Message) -> Slot | memoryview | None:
        """A channel calls this."""
        if not self._waiting or self._serving_waiting:
            slot = self._pool.take(head.bulk_bytes)
            if slot is not None:
                return slot
        if not self._serving_waiting:
            self._waiting.append(channel.session)
            self._slot_waits += 1
            # A slot may have come back between our asking and our waiting.
            self._loop.call_soon(self._serve_waiting)
        return None

    def _on_slot_free(self) -> None:
        """On whatever thread released a slot."""
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                self._loop.call_soon_threadsafe(self._serve_waiting)

    def _serve_waiting(self) -> None:
        """Let the longest waiting go on, as many as there is memory for."""
        if self._serving_waiting:
            return
        while self._waiting:
            watch = self._watches.get(self._waiting[0])
            if watch is not None and watch.channel.paused and not self._resume(watch):
                return
            self._waiting.popleft()

    def _resume(self, watch: Watch) -> bool:
        """False when there is still no memory for it."""
        self._serving_waiting = True
        try:
            watch.guard(watch.channel.resume)
        finally:
            self._serving_waiting = False
        return watch.channel.closed or not watch.channel.paused

    # ----------------------------------------------------------------------- the handler's side

    def send(
        self, session: Session, request: int, message: Message, bulk: Buffer = b"", *,
        sent: Sent | None = None, descriptor: int = -1,
    ) -> None:  # fmt: skip
        """Queue one frame; dropped silently when the session is gone. The descriptor, on a session
        that lends, goes along and is mine.

        The bulk is not copied: it must stay as it is until `sent` is called, which happens exactly
        once. Raises Refused when the message does not fit one frame.
        """
        watch = self._watches.get(session)
        if watch is None or watch.channel.closed:
            if sent is not None:
                sent()
            if descriptor >= 0:
                os.close(descriptor)
            return
        channel = watch.channel
        if not channel.queued_bytes:
            watch.sent_at_us = now_us()
        channel.send(request, message, bulk, epoch=self.epoch, sent=sent, descriptor=descriptor)
        if channel.queued_bytes > self.limits.queued_bytes_max:
            self._end(channel, Cut.UNREAD, "it does not read what is sent to it")
        else:
            watch.update()

    def queued_bytes(self, session: Session) -> int:
        """What the peer has not taken yet; 0 when the session is gone."""
        watch = self._watches.get(session)
        return 0 if watch is None else watch.channel.queued_bytes

    def close_session(self, session: Session, reason: str) -> None:
        """Cut a peer off; what is queued is dropped. `closed` is called soon."""
        watch = self._watches.get(session)
        if watch is not None:
            self._end(watch.channel, Cut.CLOSED, reason)

    def pressure(self) -> Pressure:
        """How crowded the door is; cheap."""
        door = self._door
        evicted = self._cuts[Cut.EVICTED]
        return Pressure(self.need(), evicted, door.shortage_count, self._turned_away)

    def statistics(self) -> ServerStatistics:
        """A snapshot."""
        channels = [watch.channel for watch in self._watches.values()]
        return ServerStatistics(
            sessions=len(channels) - len(self._door.seats),
            strangers=len(self._door.seats),
            waiting=len(self._waiting),
            queued_bytes=sum(channel.queued_bytes for channel in channels),
            accepted=self._door.accepted_count,
            opened=self._opened,
            received_bytes=self._past_received_bytes
            + sum(channel.received_bytes for channel in channels),
            sent_bytes=self._past_sent_bytes + sum(channel.sent_bytes for channel in channels),
            malformed=self._cuts[Cut.MALFORMED],
            unauthorized=self._cuts[Cut.UNAUTHORIZED],
            timeout=self._cuts[Cut.TIMEOUT],
            silent=self._cuts[Cut.SILENT],
            unread=self._cuts[Cut.UNREAD],
            gone=self._cuts[Cut.GONE],
            slot_waits=self._slot_waits,
            evicted=self._cuts[Cut.EVICTED],
            shortages=self._door.shortage_count,
            turned_away=self._turned_away,
        )

    async def part(self, reason: str, *, linger_s: float = 0.0) -> None:
        """Let queued frames leave for at most `linger_s`, then end every session."""
        await self._linger(linger_s)
        for watch in list(self._watches.values()):
            if watch.channel.peer is not None:
                self._end(watch.channel, Cut.CLOSED, reason)

    async def _linger(self, linger_s: float) -> None:
        deadline_us = now_us() + int(linger_s * US_PER_S)
        # Asked again and again, as happens once in a life.
        while now_us() < deadline_us and self.statistics().queued_bytes:  # noqa: ASYNC110
            await asyncio.sleep(_LINGER_STEP_S)

    async def close(self, *, linger_s: float = 1.0) -> None:
        """Stop listening, let queued frames leave for at most `linger_s`, close every session."""
        self._stop_listening()
        await self._linger(linger_s)
        self.abandon()
        # After the calls of `closed`.
        said = self._loop.create_future()
        self._loop.call_soon(said.set_result, None)
        await said

    def abandon(self) -> None:
        """Close everything at once."""
        self._stop_listening()
        self._timer.cancel()
        for watch in list(self._watches.values()):
            self._end(watch.channel, Cut.CLOSED, "the server closes")
        self._pool.unlisten(self._on_slot_free)

    def _stop_listening(self) -> None:
        self._door.close()
        if self.unix is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.unix)
            self.unix = None

    # ----------------------------------------------------------------------- endings

    def _fail(self, channel: Channel, error: CkptError) -> None:
        match error:
            case Unauthorized():
                cut = Cut.UNAUTHORIZED
            case PeerError():
                cut = Cut.MALFORMED
            case _:
                cut = Cut.GONE
        if cut is Cut.GONE and channel.in_frame:
            cut = Cut.MALFORMED
        self._end(channel, cut, error.message)

    def _end(self, channel: Channel, cut: Cut, reason: str) -> None:
        watch = self._watches.pop(channel.session, None)
        if watch is None:
            return
        watch.stop()
        self._cuts[cut] += 1
        self._past_received_bytes += channel.received_bytes
        self._past_sent_bytes += channel.sent_bytes
        channel.close()
        self._door.leave(channel.session)
        if channel.peer is not None:
            # Later, since the handler may be in the middle of something: it sent, and we cut.
            self._loop.call_soon(self._handler.closed, channel.session, reason)
        if self._waiting:
            self._loop.call_soon(self._serve_waiting)

    # ----------------------------------------------------------------------- time limits

    @property
    def _sweep_s(self) -> float:
        limits = self.limits
        return min(limits.frame_silence_us, limits.unread_us) / US_PER_S / _SWEEPS_PER_LIMIT

    def _sweep(self) -> None:
        """Cut off whoever is past a time limit."""
        now = now_us()
        for watch in list(self._watches.values()):
            if watch.channel.in_frame and not watch.channel.paused:
                # Its reader may not have been woken for the little that has come.
                watch.guard(watch.channel.receive)
            if watch.channel.closed:
                continue
            if watch.channel.borrower is not None:
                watch.channel.borrower.rest()
            verdict = self._overdue(watch, now)
            if verdict is not None:
                self._end(watch.channel, *verdict)
        self._timer = self._loop.call_later(self._sweep_s, self._sweep)

    def _expire(self, channel: Channel) -> None:
        if channel.peer is None:
            self._end(channel, Cut.TIMEOUT, "it did not prove itself in time")

    def _overdue(self, watch: Watch, now: int) -> tuple[Cut, str] | None:
        channel = watch.channel
        if channel.received_bytes != watch.seen_received_bytes or channel.paused:
            watch.seen_received_bytes = channel.received_bytes
            watch.received_at_us = now
        if channel.sent_bytes != watch.seen_sent_bytes or not channel.queued_bytes:
            watch.seen_sent_bytes = channel.sent_bytes
            watch.sent_at_us = now
        if channel.peer is None:
            return None
        if channel.in_frame and now - watch.received_at_us >= self.limits.frame_silence_us:
            return Cut.SILENT, "it stopped in the middle of a frame"
        if channel.queued_bytes and now - watch.sent_at_us >= self.limits.unread_us:
            return Cut.UNREAD, "it does not read what is sent to it"
        return None


def _remove_orphan(path: str) -> None:
    """Take the name of a socket whose listener is dead; Busy when it answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as error:
            raise Busy(f"{path} cannot be taken over: {error.strerror}") from None
        else:
            raise Busy(f"somebody listens on {path} already")
