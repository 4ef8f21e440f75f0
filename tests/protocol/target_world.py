"""A target on a fake disk, for tables: its machine, a shell that performs at once, and a writer's
words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ckpt.aio.directory_scan import scan
from ckpt.aio.disk_actions import perform
from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Epoch,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    Step,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32, crc32_combine, xxh3_128
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, encode_manifest
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import DocumentKind, RangeData
from ckpt.format.messages.targets import PutDocument, Reserve, TargetRegistered
from ckpt.format.messages.writing import BeginColumn, Fragment, SealColumn
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Report,
    Send,
    Session,
    SessionOpened,
    Ticked,
)
from ckpt.protocol.runs.run_sets import spans_of
from ckpt.protocol.runs.wire_runs import from_wire
from ckpt.protocol.target.core import TargetIdentity, TargetLimits
from ckpt.protocol.target.disk_events import (
    DiskAction,
    LendFile,
    ReleaseBulk,
    SessionDrained,
    SpaceMeasured,
    WriteAt,
)
from ckpt.protocol.target.machine import TargetEvent, TargetMachine
from ckpt.testing.disk import FakeDisk

SECRET = b"s" * 32
CLUSTER = "cluster-1"
COORDINATOR = Session(1)
WRITER = Session(2)
READER = Session(3)
CODE = Code(2, 1)
CHECKPOINT = CheckpointId(RunName("run"), Step(7), Generation(1, 4))


class PowerCut(Exception):
    """The machine room went dark before this action."""


class TargetWorld:
    """One target. Sends and reports are collected; disk actions are performed at once or held
    back.
    """

    def __init__(
        self, disk: FakeDisk | None = None, *, boot: int = 11, limits: TargetLimits | None = None,
        cluster: str = CLUSTER, term: int = 1, now_us: int = 1_000_000,
    ) -> None:  # fmt: skip
        self.disk = disk if disk is not None else FakeDisk(seed=5)
        identity = TargetIdentity(cluster, TargetId("t1"), BootId(boot), "p/r/h/d")
        self.machine = TargetMachine(identity, SECRET, limits)
        self.now_us = now_us
        self.sent: list[Send] = []
        self.lent: list[LendFile] = []
        self.closed: list[CloseSession] = []
        self.reports: list[Report] = []
        self.released: list[int] = []
        self.kept: list[int] = []
        """Operations that keep a received bulk."""
        self.performed: list[DiskAction] = []
        self.held: deque[DiskAction] | None = None
        """When a deque: disk actions wait here for `step`."""
        self.auto_drain = True
        self.looks_each = 1
        """Events between two looks at the machine's invariants."""
        self._unlooked = 0
        self.before: Callable[[DiskAction], None] = lambda _action: None
        self.feed(scan(self.disk, self.now_us))
        space = self.disk.space()
        self.feed(
            SpaceMeasured(self.now_us, space.bytes_total, space.bytes_free, space.inodes_free)
        )
        if term:
            self.feed(SessionOpened(self.now_us, COORDINATOR, Role.COORDINATOR, ""))
            self.tell(COORDINATOR, TargetRegistered(term, Epoch(1), 3_000_000))
        self.feed(SessionOpened(self.now_us, WRITER, Role.STAGER, "w"))
        self.feed(SessionOpened(self.now_us, READER, Role.READER, "r"))

    # ----------------------------------------------------------------------- shell

    def feed(self, event: TargetEvent) -> None:
        events: deque[TargetEvent] = deque([event])
        while events:
            drained: dict[Session, None] = {}
            for action in self.machine.handle(events.popleft()):
                match action:
                    case Send(session=session, bulk=bulk):
                        if len(bulk):
                            drained[session] = None
                        self.sent.append(Send(session, action.request, action.message, bytes(bulk)))
                    case LendFile(session=session):
                        drained[session] = None
                        self.lent.append(action)
                    case CloseSession():
                        self.closed.append(action)
                    case Report():
                        self.reports.append(action)
                    case ReleaseBulk(op=op):
                        self.released.append(op)
                    case _:
                        if isinstance(action, WriteAt) and action.keeps_bulk:
                            self.kept.append(action.op)
                        if self.held is not None:
                            self.held.append(action)
                        else:
                            events.append(self._perform(action))
            self._unlooked += 1
            if self._unlooked >= self.looks_each:
                self._unlooked = 0
                self.machine.check()
            if self.auto_drain:
                events.extend(SessionDrained(self.now_us, session) for session in drained)

    def _perform(self, action: DiskAction) -> TargetEvent:
        self.before(action)
        self.performed.append(action)
        return perform(self.disk, action, self.now_us)

    def step(self, index: int = 0) -> None:
        """Perform one held-back action."""
        assert self.held is not None
        action = self.held[index]
        del self.held[index]
        self.feed(self._perform(action))

    def tell(
        self, session: Session, message: Message, bulk: bytes | memoryview = b"", request: int = 9
    ) -> None:
        self.feed(Received(self.now_us, session, request, message, bulk))

    def tick(self, us: int = 1_000_000) -> None:
        self.now_us += us
        space = self.disk.space()
        self.feed(
            SpaceMeasured(self.now_us, space.bytes_total, space.bytes_free, space.inodes_free)
        )
        self.feed(Ticked(self.now_us))

    def messages(self, session: Session) -> list[Message]:
        """What was sent to the session since the last call, without bulks."""
        found = [each.message for each in self.sent if each.session == session]
        self.sent = [each for each in self.sent if each.session != session]
        return found


class Column:
    """A column that a writer sends: any bytes, with the manifest that fits them."""

    def __init__(
        self, payload_bytes: int = 300_000, *, cell_bytes: int = 64 * 1024, column: int = 1,
        rank: int = 0, checkpoint: CheckpointId = CHECKPOINT, code: Code = CODE,
    ) -> None:  # fmt: skip
        self.layout = Layout(code, payload_bytes, cell_bytes)
        payload = PayloadId(checkpoint, Rank(rank))
        self.id = ColumnId(payload, ColumnNumber(column))
        random = np.random.default_rng(payload_bytes + column + 31 * rank)
        self.data = random.bytes(self.layout.column_bytes)
        crcs = np.zeros((self.layout.stripe_count, code.n), np.uint32)
        total = 0
        for stripe in range(self.layout.stripe_count):
            cell = self.cell(stripe)
            crcs[stripe, column] = crc32(cell)
            total = crc32_combine(total, crc32(cell), len(cell))
        column_crcs = np.zeros(code.n, np.uint32)
        column_crcs[column] = total
        self.crc = total
        self.manifest = encode_manifest(
            RankManifest(
                payload, LaunchNumber(3), code, 1, 1, payload_bytes, cell_bytes, crcs, column_crcs
            )
        )

    def cell(self, stripe: int) -> bytes:
        start = self.layout.fragment_offset(stripe)
        return self.data[start : start + self.layout.cell_bytes_of(stripe)]

    @property
    def file_bytes(self) -> int:
        return file_bytes(self.layout, manifest_bytes_bound(self.layout))

    def begin(self, reservation: int = 1) -> BeginColumn:
        layout = self.layout
        return BeginColumn(
            self.id, LaunchNumber(3), ReservationId(reservation), str(layout.code),
            layout.payload_bytes, layout.cell_bytes,
        )  # fmt: skip

    def fragment(self, stripe: int) -> tuple[Fragment, bytes]:
        cell = self.cell(stripe)
        return Fragment(stripe, crc32(cell)), cell

    @property
    def seal(self) -> SealColumn:
        return SealColumn(len(self.manifest))


def cut_up(message: RangeData, bulk: bytes) -> dict[int, bytes]:
    """Start to bytes of each of its ranges, after a look at the checksum of all."""
    assert crc32(bulk) == message.crc
    found, at = {}, 0
    for start, end in spans_of(from_wire(message.ranges) or ()):
        found[start] = bulk[at : at + end - start]
        at += end - start
    assert at == len(bulk)
    return found


def reserve(world: TargetWorld, column: Column, reservation: int = 1) -> None:
    message = Reserve(1, ReservationId(reservation), column.file_bytes)
    world.tell(COORDINATOR, message, request=100 + reservation)


def write(
    world: TargetWorld, column: Column, *, request: int = 20, reservation: int = 1,
    stripes: Sequence[int] | None = None, session: Session = WRITER,
) -> None:  # fmt: skip
    """Begin and send; not sealed."""
    world.tell(session, column.begin(reservation), request=request)
    order = range(column.layout.stripe_count) if stripes is None else stripes
    for stripe in order:
        message, cell = column.fragment(stripe)
        world.tell(session, message, cell, request=request)


def store(world: TargetWorld, column: Column, *, request: int = 20, reservation: int = 1) -> None:
    """Reserve, begin, send, seal."""
    reserve(world, column, reservation)
    write(world, column, request=request, reservation=reservation)
    world.tell(WRITER, column.seal, column.manifest, request=request)


def put_document(
    world: TargetWorld, kind: DocumentKind, data: bytes, *, part: int = 1 << 20, term: int = 1,
    checkpoint: CheckpointId = CHECKPOINT, digest: bytes | None = None, again: bool = False,
) -> None:  # fmt: skip
    for offset in range(0, max(1, len(data)), part):
        message = PutDocument(
            term, kind, checkpoint, len(data), offset,
            xxh3_128(data) if digest is None else digest, again,
        )  # fmt: skip
        world.tell(COORDINATOR, message, data[offset : offset + part], request=60)
