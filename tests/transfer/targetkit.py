"""A small target behind a real server and socket: accepts, grants credit, seals;
it keeps columns in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from ckpt.aio.net.serving.server import Server
from ckpt.base.ids import BootId, ColumnId, ReservationId, TargetId
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import (
    AbandonColumn,
    BeginColumn,
    ColumnAccepted,
    ColumnProof,
    ColumnSealed,
    CreditGranted,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Identity
from ckpt.testing.network import Heard, RecordingHandler
from tests.aio.netkit import ServerThread, serving

CREDIT = 256 * 1024


@dataclass
class Behaviour:
    """How a target misbehaves, if at all."""

    freeze_after: int | None = None
    """Its whole process hangs after so many fragments: it stops reading."""
    refuse: bool = False
    no_seal: bool = False


@dataclass
class Column:
    """A column on its way."""

    begin: BeginColumn
    content: bytearray
    manifest: bytearray = field(default_factory=bytearray)


class SmallTarget:
    """One target. `columns` holds what was sealed."""

    def __init__(self, number: int, behaviour: Behaviour) -> None:
        self.id = TargetId(f"t{number}")
        self.behaviour = behaviour
        self.columns: dict[ColumnId, Column] = {}
        self.fragment_count = 0
        self.session_count = 0
        self.thaw = threading.Event()
        self.frozen = threading.Event()
        self.server: Server | None = None
        self.thread: ServerThread | None = None
        self.port = 0
        self.unix = ""
        self.handler = RecordingHandler(answer=self._answer)
        self._open: dict[tuple[Session, int], Column] = {}

    @property
    def identity(self) -> Identity:
        return Identity("cluster-a", Role.TARGET, self.id, BootId(77))

    def place(self, reservation: int) -> Place:
        return Place(
            self.id, BootId(77), f"127.0.0.1:{self.port}", ReservationId(reservation), self.unix
        )

    def end_sessions(self) -> None:
        """As a target that goes, or makes room for others: all that it has open is gone."""
        assert self.thread is not None
        assert self.server is not None
        for session, _ in self.handler.opened_:
            self.thread.do(partial(self.server.close_session, session, "room"))

    def _answer(self, heard: Heard) -> None:
        key = (heard.session, heard.request)
        match heard.message:
            case BeginColumn() as begin:
                self._begin(key, begin)
            case Fragment(stripe, crc):
                self._store(key, stripe, crc, heard.bulk)
            case SealColumn(total):
                self._seal(key, total, heard.bulk)
            case AbandonColumn():
                self._open.pop(key, None)
            case _:
                raise AssertionError(heard.message)

    def _begin(self, key: tuple[Session, int], begin: BeginColumn) -> None:
        if self.behaviour.refuse:
            self._send(key, Failed("no_space", "the device is full"))
            return
        layout = Layout(Code.parse(begin.code), begin.payload_bytes, begin.cell_bytes)
        self._open[key] = Column(begin, bytearray(layout.column_bytes))
        self._send(key, ColumnAccepted(CREDIT))

    def _store(self, key: tuple[Session, int], stripe: int, crc: int, bulk: bytes) -> None:
        column = self._open.get(key)
        if column is None:
            return
        assert crc32(bulk) == crc
        at = stripe * column.begin.cell_bytes
        column.content[at : at + len(bulk)] = bulk
        self.fragment_count += 1
        if self.fragment_count == self.behaviour.freeze_after:
            self.frozen.set()
            self.thaw.wait(60)
        self._send(key, CreditGranted(len(bulk)))

    def _seal(self, key: tuple[Session, int], total: int, bulk: bytes) -> None:
        column = self._open[key]
        column.manifest += bulk
        if len(column.manifest) < total or self.behaviour.no_seal:
            return
        begin = column.begin
        self.columns[begin.column] = self._open.pop(key)
        proof = ColumnProof(
            column=begin.column,
            target=self.id,
            boot=BootId(77),
            code=begin.code,
            payload_bytes=begin.payload_bytes,
            column_crc=crc32(column.content),
            manifest_digest=xxh3_128(column.manifest),
            mac=b"",
        )
        self._send(key, ColumnSealed(proof))

    def _send(self, key: tuple[Session, int], message: Message) -> None:
        assert self.server is not None
        self.server.send(key[0], key[1], message)


@contextmanager
def targets(
    count: int, behaviours: dict[int, Behaviour] | None = None, unix_directory: str = ""
) -> Iterator[list[SmallTarget]]:
    """So many targets, each with its own thread, loop and socket."""
    with ExitStack() as stack:
        made: list[SmallTarget] = []
        for number in range(count):
            target = SmallTarget(number, (behaviours or {}).get(number, Behaviour()))
            path = f"{unix_directory}/t{number}" if unix_directory else None
            thread: ServerThread = stack.enter_context(
                serving(
                    identity=target.identity,
                    handler=target.handler,
                    unix=path,
                    pool_bytes=8 * MiB,
                )
            )
            target.server, target.port = thread.server, thread.server.port
            target.thread = thread
            target.unix = path or ""
            stack.callback(target.thaw.set)
            made.append(target)
        yield made
