"""What the network tests share: a server in a thread, waiting without sleeping, raw peers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ckpt.aio.net.bulk import BulkRules
from ckpt.aio.net.serving.server import Server, TurnAway, serve
from ckpt.aio.net.serving.server_limits import ServerLimits
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.aio.selecting import BulkLoop
from ckpt.aio.slots import SlotPool
from ckpt.base.ids import BootId
from ckpt.base.units import MiB
from ckpt.format.frame import PREFIX_BYTES, FrameReader, FrameWriter
from ckpt.format.messages import Message
from ckpt.format.messages.hello import ClientProof, Role
from ckpt.protocol.handshake import Caller, ClientHandshake, Established, Identity
from ckpt.testing.network import RecordingHandler

SECRET = b"the cluster's secret, long enough"
IDENTITY = Identity("cluster-a", Role.TARGET, "t3", BootId(77))
PATIENCE_S = 30.0

T = TypeVar("T")


class Waiter:
    """Lets a loop's coroutine wait until handlers have heard enough."""

    def __init__(self, *handlers: RecordingHandler) -> None:
        self._changed = asyncio.Event()
        for handler in handlers:
            handler.on_event = self._changed.set

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class ServerThread:
    """A server on its own loop and thread, for clients that block."""

    def __init__(self, server: Server, handler: RecordingHandler, pool: SlotPool) -> None:
        self.server = server
        self.handler = handler
        self.pool = pool
        self.loop = server._loop
        self.changed = threading.Condition()
        handler.on_event = self._notify

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S)

    def do(self, work: Callable[[], T]) -> T:
        """Run it on the server's loop."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def wait(self, awaitable: Awaitable[T]) -> T:
        async def call() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)


@contextmanager
def serving(
    *,
    unix: str | None = None,
    port: int = 0,
    limits: ServerLimits | None = None,
    identity: Identity = IDENTITY,
    pool_bytes: int = 16 * MiB,
    secret: bytes = SECRET,
    handler: RecordingHandler | None = None,
    borrows: bool = False,
    lends: bool = False,
    wire: WirePolicy = WirePolicy.AUTO,
    turn_away: TurnAway = lambda _role: None,
) -> Iterator[ServerThread]:
    """A server in a thread, on TCP or on a Unix path."""
    loop = BulkLoop()
    pool = SlotPool(pool_bytes)
    recorder = RecordingHandler() if handler is None else handler

    async def start() -> Server:
        return serve(
            recorder,
            listen=None if unix else ("127.0.0.1", port),
            unix=unix,
            secret=secret,
            identity=identity,
            pool=pool,
            limits=limits,
            bulks=BulkRules(borrows=borrows, lends=lends, wire=wire),
            turn_away=turn_away,
        )

    thread = threading.Thread(target=loop.run_forever, name="test-server")
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
        try:
            yield ServerThread(server, recorder, pool)
        finally:
            asyncio.run_coroutine_threadsafe(server.close(linger_s=0), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


class RawPeer:
    """A blocking socket that speaks frames by hand, and may speak them wrongly."""

    def __init__(self, where: int | str, secret: bytes = SECRET) -> None:
        """A TCP port of this host, or a Unix path."""
        if isinstance(where, int):
            self.sock = socket.create_connection(("127.0.0.1", where), timeout=PATIENCE_S)
        else:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(PATIENCE_S)
            self.sock.connect(where)
        self.writer = FrameWriter()
        self.reader = FrameReader()
        self.handshake = ClientHandshake(
            Caller(secret, Role.STAGER, "raw", server_role=Role.TARGET), nonce=b"r" * 32
        )

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, message: Message, request: int = 0, bulk: bytes = b"") -> None:
        self.sock.sendall(self.writer.encode(message, request, bulk) + bulk)

    def receive(self) -> tuple[int, Message]:
        head = self.reader.prefix(self._exactly(PREFIX_BYTES))
        message = self.reader.message(head, self._exactly(head.meta_bytes))
        self._exactly(head.bulk_bytes)
        return head.request, message

    def shake(self) -> RawPeer:
        self.prove(self.greet())
        return self

    def greet(self) -> ClientProof:
        """The first half of a handshake; the second is `prove`."""
        self.send(self.handshake.hello())
        proof = self.handshake.receive(self.receive()[1])
        assert isinstance(proof, ClientProof)
        return proof

    def prove(self, proof: ClientProof) -> Established:
        self.send(proof)
        assert self.handshake.keys is not None
        self.writer.set_key(self.handshake.keys.client_to_server)
        self.reader.set_key(self.handshake.keys.server_to_client)
        peer = self.handshake.receive(self.receive()[1])
        assert isinstance(peer, Established)
        return peer

    def is_cut(self) -> bool:
        """Read to the end; True when the server closed, False when it goes on sending."""
        try:
            while self.sock.recv(65536):
                continue
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self.sock.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return parts
