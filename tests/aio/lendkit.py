"""What the tests of lending share: known memory, a server that keeps what it gets, raw peers."""

from __future__ import annotations

import gc
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np

from ckpt.aio.lending import Lendable
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.sealed_memory import sealed_memory
from ckpt.base.units import MiB
from ckpt.format.frame import LentPlace
from ckpt.format.messages import Message
from ckpt.format.messages.lending import LendMemory
from ckpt.protocol.events import Session
from ckpt.testing.network import RecordingHandler
from tests.aio.netkit import RawPeer

SIZE = 16 * MiB
CELL = 2 * MiB


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

    #: In the name of each, which the kernel shows where it is mapped.
    _numbers = count()

    def __init__(self, size: int = SIZE) -> None:
        self._name = f"ckpt-test-lent-{next(self._numbers)}"
        self.descriptor, self.view = sealed_memory(self._name, size, present=True)
        self.view[:] = known_bytes(size)
        self.lendable = Lendable.of(self.descriptor, self.view)

    def cell(self, number: int) -> memoryview:
        return self.view[number * CELL : (number + 1) * CELL]

    def mapped_count(self) -> int:
        """How often this process has it mapped."""
        gc.collect()
        return Path("/proc/self/maps").read_text().count(f":{self._name} ")


@cache
def known_bytes(size: int) -> bytes:
    """Made once: that takes longer than most of these tests."""
    return np.random.default_rng(7).bytes(size)


class RawLender(RawPeer):
    """It proved itself on a Unix socket, and may lend anything."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.shake()

    def say(
        self,
        message: Message,
        *,
        bulk: bytes = b"",
        place: LentPlace | None = None,
        give: Sequence[int] = (),
    ) -> None:
        frame = self.writer.encode(message, 5, bulk, 0, place)
        with suppress(BrokenPipeError, ConnectionResetError):  # It may be cut already.
            socket.send_fds(self.sock, [frame], list(give))

    def lend(self, descriptor: int, size: int = SIZE, region: int = 0) -> None:
        self.say(LendMemory(region, size), give=[descriptor])
