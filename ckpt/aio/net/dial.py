"""The dialing side of a daemon: one session to one server, kept up.

    resting --backoff is over--> connecting --TCP stands--> shaking --proved--> open
       ^                             |                         |                 |
       +---------- failed, refused, too slow, gone, cut off ---+-----------------+

The rest between two attempts doubles from `backoff_s[0]` to `backoff_s[1]`, each with jitter, so
that all targets of a cluster do not come back in one instant; a session that stood for longer than
that resets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

from ckpt.aio.clock import draw, now_us
from ckpt.aio.net.address import endpoint_by_resolver, endpoint_nowait, parse_address
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.channel import Channel, SessionHandler
from ckpt.aio.net.send_queue import Sent
from ckpt.aio.net.sockets import tune
from ckpt.aio.net.watch import Watch
from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import Epoch
from ckpt.base.rests import Rests
from ckpt.base.units import US_PER_S, MiB
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import NONCE_BYTES, Caller, ClientHandshake, Established

ATTEMPT_S: Final = 5.0
"""For connecting and the handshake together."""
QUEUED_BYTES_MAX: Final = 64 * MiB
OnFailure = Callable[[CkptError], None]


class Dialer:
    """I keep one session to `address` up and tell the handler about it, as a server does.

    Bulks lie in memory of their own. Every method belongs to the loop's thread.
    """

    def __init__(
        self,
        handler: SessionHandler,
        caller: Caller,
        *,
        address: str,
        backoff_s: tuple[float, float] = (0.05, 2.0),
        unchecked: frozenset[type] = frozenset(),
        on_failure: OnFailure | None = None,
    ) -> None:
        """`on_failure` hears of each attempt and each session that failed, before the rest."""
        self.epoch = Epoch(0)
        """Goes out with every frame; the owner sets it."""
        self._handler = handler
        self._address = parse_address(address)
        self._caller = caller
        self._backoff_s = backoff_s
        self._unchecked = unchecked
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._watch: Watch | None = None
        self._ended: asyncio.Future[CkptError] | None = None
        self._proved: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Dial, and dial again, until `close`."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="ckpt-dial")

    @property
    def session(self) -> Session | None:
        """The session that stands now."""
        watch = self._watch
        return None if watch is None or watch.channel.peer is None else watch.channel.session

    def send(
        self,
        session: Session,
        request: int,
        message: Message,
        bulk: Buffer = b"",
        *,
        sent: Sent | None = None,
    ) -> None:
        """As `Server.send`: dropped silently when `session` is gone;
        a bulk stays as it is until `sent`.
        """
        watch = self._watch
        if watch is None or watch.channel.closed or self.session != session:
            if sent is not None:
                sent()
            return
        watch.channel.send(request, message, bulk, epoch=self.epoch, sent=sent)
        if watch.channel.queued_bytes > QUEUED_BYTES_MAX:
            self._fail(watch.channel, Unavailable("the peer does not read what is sent to it"))
        else:
            watch.update()

    def queued_bytes(self, session: Session) -> int:
        """What the peer has not taken yet; 0 when the session is gone."""
        return (
            0
            if self._watch is None or self.session != session
            else self._watch.channel.queued_bytes
        )

    def close_session(self, session: Session, reason: str) -> None:
        """Cut the server off and dial again."""
        if self._watch is not None and self.session == session:
            self._fail(self._watch.channel, Unavailable(reason))

    async def close(self) -> None:
        """End the session and dial no more; `closed` was called when this returns."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # ----------------------------------------------------------------------- the channel's owner

    def established(self, channel: Channel, peer: Established) -> None:
        """A channel calls this."""
        if self._proved is not None and not self._proved.done():
            self._proved.set_result(None)
        self._handler.opened(channel.session, peer)

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A channel calls this."""
        self._handler.received(channel.session, request, message, bulk)

    def land(self, channel: Channel, head: FrameHead, message: Message) -> memoryview:
        """A channel calls this."""
        return memoryview(bytearray(head.bulk_bytes))

    # ----------------------------------------------------------------------- dialing

    async def _keep_up(self) -> None:
        rests = Rests(*self._backoff_s, draw)
        while True:
            begun_us = now_us()
            error = await self._attempt()
            if self._on_failure is not None:
                self._on_failure(error)
            if now_us() - begun_us > self._backoff_s[1] * US_PER_S:
                rests.begin_again()
            await asyncio.sleep(rests.next_s())

    async def _attempt(self) -> CkptError:
        """One connection from its beginning to its end, which is returned."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ATTEMPT_S):
                sock = await self._connect(loop)
        except CkptError as error:
            return error
        except TimeoutError:
            return Unavailable(f"{self._address} does not answer")
        except OSError as error:
            return Unavailable(f"cannot connect to {self._address}: {error.strerror or error}")
        channel = Channel(sock, self._handshake(), self, unchecked=self._unchecked)
        watch = self._watch = Watch(loop, channel, self._fail)
        ended = self._ended = loop.create_future()
        proved = self._proved = loop.create_future()
        try:
            channel.greet()
            watch.update()
            await asyncio.wait(
                (ended, proved), timeout=ATTEMPT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended.done() and not proved.done():
                return Unavailable(f"{self._address} does not finish the handshake")
            reason: CkptError = await ended
            return reason
        finally:
            self._end(watch)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        endpoint = endpoint_nowait(self._address)
        if endpoint is None:
            # The resolver may block.
            endpoint = await loop.run_in_executor(None, endpoint_by_resolver, self._address)
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            tune(sock)
            await loop.sock_connect(sock, endpoint.sockaddr)
        except BaseException:
            sock.close()
            raise
        return sock

    def _handshake(self) -> ClientHandshake:
        return ClientHandshake(self._caller, os.urandom(NONCE_BYTES))

    def _fail(self, channel: Channel, error: CkptError) -> None:
        """The session is over; what remains is done by `_attempt`."""
        if self._watch is not None and self._watch.channel is channel:
            self._watch.stop()
            channel.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(error)

    def _end(self, watch: Watch) -> None:
        watch.stop()
        watch.channel.close()
        ended, self._watch, self._ended, self._proved = self._ended, None, None, None
        if watch.channel.peer is not None:
            reason = "we closed it"
            if ended is not None and ended.done() and not ended.cancelled():
                reason = ended.result().message
            self._handler.closed(watch.channel.session, reason)
