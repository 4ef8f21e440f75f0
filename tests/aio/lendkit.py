"""What the tests of lending share: known memory, a server that keeps what it gets, raw peers."""

from __future__ import annotations

import array
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ckpt.aio.channel import Bulk
from ckpt.aio.lending import (
    Lendable,
    sealed_memory,
)
from ckpt.base.units import MiB
from ckpt.format.frame import PREFIX_BYTES, FrameReader, FrameWriter, LentPlace
from ckpt.format.messages import (
    ClientProof,
    LendMemory,
    Message,
    Role,
)
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import ClientHandshake
from ckpt.testing.network import RecordingHandler
from tests.aio.netkit import PATIENCE_S, SECRET

SIZE = 16 * MiB
CELL = 2 * MiB
NAME = "ckpt-test-lent"


class Keeper(RecordingHandler):
    """It holds every bulk until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[Session, int, Message, Bulk | None]] = []

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        self.frames.append((session, request, message, bulk))
        self._tell()


class Memory:
    """Sealed memory full of known bytes."""

    def __init__(self, size: int = SIZE) -> None:
        self.descriptor, mapping = sealed_memory(NAME, size, present=True)
        self.view = memoryview(mapping)
        self.view[:] = np.random.default_rng(7).bytes(size)
        self.lendable = Lendable.of(self.descriptor, self.view)

    def cell(self, number: int) -> memoryview:
        return self.view[number * CELL : (number + 1) * CELL]


def mapped_count() -> int:
    return Path("/proc/self/maps").read_text().count(NAME)


class Raw:
    """A blocking Unix socket that proved itself, and may say anything."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(path)
        self.writer, reader = FrameWriter(), FrameReader()
        handshake = ClientHandshake(
            secret=SECRET, role=Role.STAGER, name="raw", server_role=Role.TARGET,
            nonce=b"r" * 32,
        )  # fmt: skip

        def exactly(size: int) -> bytes:
            got = b""
            while len(got) < size:
                got += self.sock.recv(size - len(got))
            return got

        def receive() -> Any:
            head = reader.prefix(exactly(PREFIX_BYTES))
            return reader.message(head, exactly(head.meta_bytes))

        self.say(handshake.hello())
        proof = handshake.receive(receive())
        assert isinstance(proof, ClientProof)
        self.say(proof)
        assert handshake.keys is not None
        self.writer.set_key(handshake.keys.client_to_server)
        reader.set_key(handshake.keys.server_to_client)
        handshake.receive(receive())

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def say(
        self,
        message: Any,
        *,
        bulk: bytes = b"",
        place: LentPlace | None = None,
        give: list[int] = [],  # noqa: B006
    ) -> None:
        frame = self.writer.encode(message, 5, bulk, 0, place)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", give))] if give else []
        with suppress(BrokenPipeError, ConnectionResetError):  # It may be cut already.
            self.sock.sendmsg([frame], rights)

    def lend(self, descriptor: int, size: int = SIZE, region: int = 0) -> None:
        self.say(LendMemory(region, size), give=[descriptor])

    def is_cut(self) -> bool:
        try:
            while self.sock.recv(65536):
                continue
        except ConnectionResetError:
            return True
        return True
