"""One column under way on a target: what was planned, what has come, what it may still send, and
how it becomes a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import ColumnId
from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import crc32_combine, xxh3_128
from ckpt.format.column import (
    ColumnHeader,
    encode_header,
    encode_trailer,
    trailer_bytes,
    trailer_offset,
)
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, decode_manifest
from ckpt.format.messages.writing import BeginColumn
from ckpt.protocol.events import Session
from ckpt.protocol.target.core import COLUMNS, Step
from ckpt.protocol.target.disk_events import (
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteAt,
)
from ckpt.protocol.target.space import Reservation


class StreamState(Enum):
    WAITING = "waiting"
    OPEN = "open"
    SEALING = "sealing"
    ENDING = "ending"


@dataclass(slots=True, eq=False)
class Stream:
    """One column under way."""

    session: Session
    request: int
    begin: BeginColumn
    layout: Layout
    reservation: Reservation
    block_crcs: NDArray[np.uint32]
    fragment_crcs: NDArray[np.uint32]
    received: bytearray
    """One byte for each stripe: 1 when its fragment was taken over."""
    received_count: int = 0
    state: StreamState = StreamState.WAITING
    arrived_bytes: int = 0
    """Of fragments that were taken over, each once."""
    credit_bytes: int = 0
    """Granted and not received. `ckpt.protocol.target.credit` alone changes these five."""
    dormant_bytes: int = 0
    """Of `credit_bytes`: so long unused that they were lent to others."""
    writing_bytes: int = 0
    """Received and not written."""
    moved_us: int = 0
    """When credit was given or used last."""
    told_us: int = 0
    """When its sender heard from us last."""
    write_count: int = 0
    """Disk writes that are not answered."""
    manifest: bytearray = field(default_factory=bytearray)
    manifest_bytes: int | None = None
    damaged: bool = False
    """The aside file cannot be trusted any more."""

    @property
    def column(self) -> ColumnId:
        return self.begin.column

    @property
    def key(self) -> tuple[Session, int]:
        """What names it on the wire."""
        return self.session, self.request

    @property
    def taken_bytes(self) -> int:
        """Of the pool."""
        return self.credit_bytes - self.dormant_bytes + self.writing_bytes

    @property
    def left_bytes(self) -> int:
        """For which it has no credit yet."""
        return max(0, self.layout.column_bytes - self.arrived_bytes - self.credit_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether every fragment has come."""
        return self.received_count == self.layout.stripe_count

    @property
    def waits_for_target(self) -> bool:
        """Whether its sender can do nothing before this target does something."""
        return self.state is not StreamState.ENDING and self.credit_bytes < self.layout.cell_bytes


def layout_of(message: BeginColumn) -> Layout:
    """The plan's layout; raises Refused for numbers that no plan has."""
    layout = Layout.said(message.code, message.payload_bytes, message.cell_bytes)
    if not 0 <= message.column.column < layout.code.n:
        raise Refused(f"column {message.column.column} is not one of code {layout.code}")
    return layout


def sealed_header(stream: Stream, cluster: str) -> ColumnHeader:
    """The header of the sealed file; raises Corrupt where the manifest is not that of our bytes."""
    manifest: RankManifest = decode_manifest(stream.manifest)
    layout, column = stream.layout, stream.column.column
    if manifest.payload != stream.column.payload or manifest.layout != layout:
        raise Corrupt("the manifest is of another payload")
    arrived = stream.fragment_crcs.tolist()
    if manifest.fragment_crcs[:, column].tolist() != arrived:
        raise Corrupt("the manifest's fragment checksums are not those that arrived")
    crc = 0
    for stripe, fragment_crc in enumerate(arrived):
        crc = crc32_combine(crc, fragment_crc, layout.cell_bytes_of(stripe))
    if crc != int(manifest.column_crcs[column]):
        raise Corrupt("the manifest's column checksum is not that of the fragments")
    return ColumnHeader(
        cluster=cluster,
        column=stream.column,
        launch=stream.begin.launch,
        code=layout.code,
        payload_bytes=layout.payload_bytes,
        cell_bytes=layout.cell_bytes,
        column_bytes=layout.column_bytes,
        column_crc=crc,
        trailer_bytes=trailer_bytes(layout, len(stream.manifest)),
        manifest_bytes=len(stream.manifest),
        manifest_digest=xxh3_128(stream.manifest),
    )


def seal_steps(stream: Stream, header: ColumnHeader, name: str) -> list[Step]:
    """From the last cell's write to a durable file of this name, in `columns/`."""
    page = encode_header(header)
    trailer = encode_trailer(stream.block_crcs, stream.manifest)
    assert len(trailer) == header.trailer_bytes
    assert len(page) == PAGE_BYTES
    file, tail = stream.reservation.file, trailer_offset(header, 0)
    steps: list[Step] = [
        partial(WriteAt, file=file, offset=tail, data=trailer + trailer + page),
        partial(WriteAt, file=file, offset=0, data=page),
    ]
    if header.file_bytes != stream.reservation.file_bytes:
        steps.append(partial(TruncateFile, file=file, bytes_count=header.file_bytes))
    steps += [
        partial(SyncFile, file=file),
        partial(RenameFile, old=file, new=name),
        partial(SyncDirectory, directory=COLUMNS),
    ]
    return steps
