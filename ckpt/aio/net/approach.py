"""One connection that is being made to one address, on an event loop: until its other end has
proved itself.

    connecting --TCP stands--> shaking --proved--> the owner's
         +-------- failed, refused, too slow ----------> ended
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final, Protocol

from ckpt.aio.net.address import (
    endpoint_by_resolver,
    endpoint_nowait,
    note_answered,
    parse_address,
)
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.channel import Channel
from ckpt.aio.net.serving.watch import Watch
from ckpt.aio.net.sockets import tune
from ckpt.aio.selecting import bulks_of
from ckpt.base.errors import CkptError, Unavailable
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.protocol.handshake import NONCE_BYTES, Caller, ClientHandshake, Established

ATTEMPT_S: Final = 5.0
"""Patience with connecting, and again with the handshake."""


class ApproachOwner(Protocol):
    """What makes several approaches at once, and keeps one."""

    def proved(self, address: str, peer: Established) -> None:
        """This approach has come to one who leads: it is taken, or closed, before this returns."""

    def failed(self, address: str, error: CkptError) -> None:
        """This approach, or the connection that was taken, has ended so; not after `close`."""

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A whole frame, of the one that was taken."""


class Approach:
    """I belong to the loop's thread. My channel's events are the owner's once I was taken."""

    def __init__(
        self, address: str, caller: Caller, owner: ApproachOwner, unchecked: frozenset[type]
    ) -> None:
        self.watch: Watch | None = None
        """Once a socket stands."""
        self._address = address
        self._caller = caller
        self._owner = owner
        self._unchecked = unchecked
        self._loop = asyncio.get_running_loop()
        self._proved = self._loop.create_future()
        self._closed = False
        self.task = self._loop.create_task(self._run(), name="ckpt-approach")
        """Ends by itself, soon after `close` at the latest; the owner awaits it."""

    def close(self) -> None:
        """Idempotent; no callback follows."""
        self._closed = True
        self._proved.cancel()
        if self.watch is None:
            self.task.cancel()
        else:
            self.watch.stop()
            self.watch.channel.close()

    # ----------------------------------------------------------------------- the channel's owner

    def established(self, channel: Channel, peer: Established) -> None:
        """A channel calls this."""
        self._proved.set_result(None)
        note_answered(self._address, channel.sock)
        self._owner.proved(self._address, peer)

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A channel calls this."""
        self._owner.arrived(channel, request, message, bulk)

    def land(self, channel: Channel, head: FrameHead, message: Message) -> memoryview | None:
        """A channel calls this."""
        return memoryview(bytearray(head.bulk_bytes))

    # ----------------------------------------------------------------------- connecting

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(ATTEMPT_S):
                sock = await self._connect()
        except CkptError as error:
            self._fail(error)
        except TimeoutError:
            self._fail(Unavailable(f"{self._address} does not answer"))
        except OSError as error:
            text = f"cannot connect to {self._address}: {error.strerror or error}"
            self._fail(Unavailable(text))
        else:
            await self._shake(sock)

    async def _shake(self, sock: socket.socket) -> None:
        handshake = ClientHandshake(self._caller, os.urandom(NONCE_BYTES))
        bulks = bulks_of(self._loop)
        channel = Channel(sock, handshake, self, unchecked=self._unchecked, bulks=bulks)
        self.watch = Watch(self._loop, channel, lambda _channel, error: self._fail(error))
        try:
            channel.greet()
        except CkptError as error:
            self._fail(error)
            return
        self.watch.update()
        await asyncio.wait((self._proved,), timeout=ATTEMPT_S)
        if not self._proved.done():
            self._fail(Unavailable(f"{self._address} does not finish the handshake"))

    async def _connect(self) -> socket.socket:
        address = parse_address(self._address)
        endpoint = endpoint_nowait(address)
        if endpoint is None:
            # The resolver may block.
            endpoint = await self._loop.run_in_executor(None, endpoint_by_resolver, address)
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            tune(sock)
            await self._loop.sock_connect(sock, endpoint.sockaddr)
        except BaseException:
            sock.close()
            raise
        return sock

    def _fail(self, error: CkptError) -> None:
        if not self._closed:
            self.close()
            self._owner.failed(self._address, error)
