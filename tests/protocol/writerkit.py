"""A plan, places and proofs for tests of the machines that write payloads."""

from __future__ import annotations

from itertools import count

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.saving import PayloadPlanned, Place
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.writer.payload_events import (
    AskSpares,
    FragmentSent,
    ManifestReady,
    StreamAccepted,
    StreamSealed,
    WriterAction,
)
from ckpt.protocol.writer.payload_writer import PayloadWriter

CELL = 4096
DIGEST = bytes(range(16))
PAYLOAD = PayloadId(CheckpointId(RunName("run"), Step(7), Generation(1, 3)), Rank(0))


def place(number: int, boot: int = 1) -> Place:
    return Place(
        TargetId(f"t{number}"),
        BootId(boot),
        f"127.0.0.1:{9000 + number}",
        ReservationId(100 + number),
    )


def plan(
    code: str = "2+1", spares: int = 1, places: int | None = None, absent: tuple[int, ...] = ()
) -> PayloadPlanned:
    k, m = (int(part) for part in code.split("+"))
    named = k + m - len(absent) if places is None else places
    return PayloadPlanned(
        payload=PAYLOAD,
        code=code,
        cell_bytes=CELL,
        places=tuple(place(j) for j in range(named)),
        spares=tuple(place(10 + j) for j in range(spares)),
        absent=tuple(ColumnNumber(j) for j in absent),
    )


def asking(column: int, *failed: str, among: int, stays: bool = False) -> AskSpares:
    """For a column of so many; all others are where the plan of `new_writer` has them."""
    others = tuple((ColumnNumber(j), TargetId(f"t{j}")) for j in range(among) if j != column)
    return AskSpares(ColumnNumber(column), tuple(map(TargetId, failed)), others, stays)


def crc_of(column: int) -> int:
    return 1000 + column


def proof(writer: PayloadWriter, column: int, **changes: object) -> ColumnProof:
    """What an honest target would say of this column now."""
    at = writer.columns[column].place
    assert at is not None
    fields: dict[str, object] = {
        "column": ColumnId(PAYLOAD, ColumnNumber(column)),
        "target": at.target,
        "boot": at.boot,
        "code": str(writer.layout.code),
        "payload_bytes": writer.layout.payload_bytes,
        "column_crc": crc_of(column),
        "manifest_digest": DIGEST,
        "mac": b"",
    }
    return ColumnProof(**{**fields, **changes})  # type: ignore[arg-type]


def new_writer(
    code: str = "2+1", stripes: int = 2, spares: int = 1, absent: tuple[int, ...] = ()
) -> PayloadWriter:
    """A writer that has not begun."""
    planned = plan(code, spares, absent=absent)
    k = int(code.split("+")[0])
    return PayloadWriter(planned, stripes * k * CELL, count(1), 0)


def accept(writer: PayloadWriter, column: int, now_us: int = 0, credit: int = 1 << 30) -> None:
    assert writer.handle(StreamAccepted(now_us, writer.columns[column].stream, credit)) == []


def send_all(writer: PayloadWriter, column: int, now_us: int = 0) -> list[WriterAction]:
    """Send whatever the column may send."""
    actions: list[WriterAction] = []
    while (stripe := writer.next_stripe(column)) is not None:
        actions += writer.handle(FragmentSent(now_us, writer.columns[column].stream, stripe))
        writer.check()
    return actions


def manifest(writer: PayloadWriter, now_us: int = 0) -> list[WriterAction]:
    crcs = tuple(crc_of(j) for j in range(len(writer.columns)))
    return writer.handle(ManifestReady(now_us, DIGEST, crcs))


def seal(writer: PayloadWriter, column: int, now_us: int = 0) -> list[WriterAction]:
    stream = writer.columns[column].stream
    return writer.handle(StreamSealed(now_us, stream, proof(writer, column)))
