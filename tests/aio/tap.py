"""Somebody on the way between two peers, who records what passes and may change it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.base.ids import BootId
from ckpt.format.messages.hello import Role
from ckpt.native.gcm import TAG_BYTES
from ckpt.protocol.handshake import Caller, Identity
from tests.aio.netkit import SECRET, ServerThread, serving

COORDINATOR = Identity("cluster-a", Role.COORDINATOR, "", BootId(5))


class Way(Enum):
    """Where bytes go."""

    UP = "to the server"
    DOWN = "to the client"


Change = Callable[[bytes], bytes]


class Tap:
    """I listen on a port, and pass everything on to another one."""

    def __init__(self, port: int, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        """`at`: where I listen."""
        self.said = {way: bytearray() for way in Way}
        """All that came, as it came, of all connections."""
        self.changes: dict[Way, Change] = {}
        """What becomes of what comes."""
        self._door = socket.create_server(at)
        self.port: int = self._door.getsockname()[1]
        self._target = port
        self._is_closed = False
        self._socks: list[socket.socket] = [self._door]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, port: int) -> None:
        """Who comes from now on goes there; who is here stays where it is."""
        self._target = port

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # Who was cut off dials again, and the server has gone meanwhile.
                near.close()
                continue
            self._socks += [near, far]
            if self._is_closed:  # A client dialed again just then, and nobody else closes these.
                self.close()
                return
            for pair in ((near, far, Way.UP), (far, near, Way.DOWN)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: Way) -> None:
        try:
            while part := source.recv(1 << 16):
                self.said[way] += part
                change = self.changes.get(way)
                sink.sendall(part if change is None else change(part))
            sink.shutdown(socket.SHUT_WR)
        except Hangup as last:
            sink.sendall(last.words)
            _end(source, sink)
        except OSError:
            _end(source, sink)

    def on_frames(
        self, way: Way, change: Callable[[list[bytes]], bytes], *, count: int = 1,
        bulk_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Give `change` the next encrypted frames, whole, and pass on what it makes of them: once,
        and all that comes afterwards as it is. The clear says how long heads are, not bulks.
        """
        held = bytearray()

        def gather(part: bytes) -> bytes:
            held.extend(part)
            frames, rest = _cut(bytes(held), count, bulk_bytes)
            if len(frames) < count:
                return b""
            del self.changes[way]
            return change(frames) + rest

        self.changes[way] = gather

    def close(self) -> None:
        self._is_closed = True
        _end(self._door)
        for sock in list(self._socks):
            sock.close()


class Hangup(Exception):
    """A change raises it to end the connection after these words."""

    def __init__(self, words: bytes) -> None:
        super().__init__()
        self.words = words


def _end(*socks: socket.socket) -> None:
    """Whoever waits for one of them is woken, which closing alone does not do."""
    for sock in socks:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _cut(stream: bytes, count: int, bulk_bytes: int) -> tuple[list[bytes], bytes]:
    frames: list[bytes] = []
    while len(frames) < count and len(stream) >= 4:
        end = 4 + struct.unpack_from("<I", stream)[0] + TAG_BYTES
        end += bulk_bytes + TAG_BYTES if bulk_bytes else 0
        if len(stream) < end:
            break
        frames.append(stream[:end])
        stream = stream[end:]
    return frames, stream


@contextmanager
def tapped(wire: WirePolicy) -> Iterator[tuple[ServerThread, Tap]]:
    with serving(identity=COORDINATOR, wire=wire) as running:
        tap = Tap(running.server.port)
        try:
            yield running, tap
        finally:
            tap.close()


def dialed(tap: Tap) -> RpcClient:
    """A client on the other side of it."""
    caller = Caller(SECRET, Role.READER, "host:1", cluster="cluster-a")
    return RpcClient(f"127.0.0.1:{tap.port}", caller)
