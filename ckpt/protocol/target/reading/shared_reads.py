"""Disk reads that serve several questions.

Ranks that load one checkpoint, cut otherwise than it was saved, want a part of every block each. A
block is read and verified once: who asks while it is under way takes part, and a read of which
parts were wanted is kept for a moment, for ranks that come a little later.

    under way --here, parts of it wanted--> kept --all given, unused for KEEP_US, no room--> gone
        +------ here, most of it wanted; damaged; failed --------------------------------------^
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ckpt.base.units import US_PER_S
from ckpt.format.checksum import crc32, crc32_combine
from ckpt.format.combs import Run, gathered
from ckpt.format.layout import blocks_of
from ckpt.native.sums import Sums, sums_of
from ckpt.protocol.events import Buffer
from ckpt.protocol.target.core import SealedColumn
from ckpt.protocol.target.reading.pieces import (
    Block,
    BlockTable,
    DiskPiece,
    blocks_between,
    cells_between,
)
from ckpt.protocol.target.reading.read_jobs import ReadQuestion

KEEP_US: Final = US_PER_S
"""A read that is unused for this long is forgotten: the disk is asked again, and its damage
seen.
"""

Place = tuple[str, int]
"""File of a column, and the number of a group of blocks in it."""


class _Part(NamedTuple):
    """What one read brought of one cell."""

    start: int
    end: int
    number: int
    """Of its first block."""
    sums: Sums


class VerifiedBlocks:
    """Blocks that were read, each compared with the table. Almost always all are good, and given
    as they were read: then nobody looks at each of them.
    """

    def __init__(self, read: DiskRead, data: Buffer, table: BlockTable) -> None:
        self.bad: list[Block] = []
        self._base, self._view = read.start, memoryview(data)
        self._layout = read.column.header.layout
        self._parts: list[_Part] = []
        there = read.start + len(self._view)
        for first, end in cells_between(self._layout, read.start, read.end):
            sums = sums_of(self.one(first.start, end))
            part = _Part(first.start, end, first.number, sums)
            self._parts.append(part)
            stored = table[first.number : first.number + blocks_of(end - first.start)]
            if end > there or sums.blocks.tobytes() != stored.tobytes():
                self._find_bad(part, stored.tolist(), there)

    def _find_bad(self, part: _Part, stored: list[int], there: int) -> None:
        """there: how far the disk gave anything."""
        blocks = list(blocks_between(self._layout, part.start, part.end))
        crcs = dict(zip(blocks, part.sums.blocks, strict=False))
        for block, known in zip(blocks, stored, strict=True):
            if crcs.get(block) != known or block.end > there:
                self.bad.append(block)

    def one(self, start: int, end: int) -> memoryview:
        """Fragment bytes of the column as they lie."""
        return self._view[start - self._base : end - self._base]

    def copied(self, runs: Sequence[Run]) -> memoryview:
        """Runs one after the other, in memory of their own."""
        return gathered(self._view, self._base, runs)

    def checksum(self, start: int, end: int) -> int:
        """Of a long range: checksums of whole cells and blocks are combined, not repeated."""
        total = 0
        for part in self._parts:
            low, high = max(start, part.start), min(end, part.end)
            if low < high:
                whole = (low, high) == (part.start, part.end)
                crc = part.sums.whole if whole else self._checksum_of(part, low, high)
                total = crc32_combine(total, crc, high - low)
        return total

    def _checksum_of(self, part: _Part, start: int, end: int) -> int:
        total = 0
        blocks = blocks_between(self._layout, part.start, part.end)
        for block, crc in zip(blocks, part.sums.blocks, strict=False):
            low, high = max(start, block.start), min(end, block.end)
            if low < high:
                whole = (low, high) == (block.start, block.end)
                part_crc = crc if whole else crc32(self.one(low, high))
                total = crc32_combine(total, part_crc, high - low)
        return total


@dataclass(slots=True, eq=False)
class DiskRead:
    """One read of whole blocks of a column."""

    column: SealedColumn
    start: int
    end: int
    place: Place
    op: int = -1
    """Of the disk."""
    takers: list[tuple[ReadQuestion, DiskPiece]] = field(default_factory=list)
    """Who waits for it."""
    found: VerifiedBlocks | None = None
    """None: under way."""
    given_bytes: int = 0
    """Of it, to all who took a part."""
    used_us: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    def others_may_want(self) -> bool:
        """Each who waited for it wanted half of it at most, and all together not everything."""
        wanted = [piece.wanted_bytes for _, piece in self.takers]
        return 2 * max(wanted) <= self.size and sum(wanted) < self.size


class SharedReads:
    """I know the reads that are under way or kept, by where they lie. I keep `keep_bytes` at
    most.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        #: Of all in `_kept`; at most `keep_bytes`.
        self._kept_bytes = 0
        #: All that are under way or kept, by where they lie.
        self._reads: defaultdict[Place, list[DiskRead]] = defaultdict(list)
        #: Those that are kept, by their operation; the least lately used first.
        self._kept: OrderedDict[int, DiskRead] = OrderedDict()

    def begin(self, column: SealedColumn, piece: DiskPiece) -> DiskRead:
        """Note that the disk will be asked for the piece."""
        read = DiskRead(column, piece.start, piece.end, _place(column, piece))
        self._reads[read.place].append(read)
        return read

    def find(self, column: SealedColumn, piece: DiskPiece) -> DiskRead | None:
        """A read that brings, or has brought, the whole piece."""
        for read in self._reads.get(_place(column, piece), ()):
            # A column that was stored again has the same name.
            if read.column is column and read.start <= piece.start and piece.end <= read.end:
                return read
        return None

    def used(self, read: DiskRead, piece: DiskPiece, now_us: int) -> list[int]:
        """A part of one that is kept was given: operations that are kept no longer."""
        read.given_bytes += piece.wanted_bytes
        if read.given_bytes >= read.size:
            # Nobody else is likely to come, and there is room for what others still need.
            self._kept.move_to_end(read.op, last=False)
            return [self._drop()]
        read.used_us = now_us
        self._kept.move_to_end(read.op)
        return []

    def keep(self, read: DiskRead, found: VerifiedBlocks, now_us: int) -> list[int]:
        """It is here and others may want more of it: operations that are kept no longer."""
        read.found, read.used_us = found, now_us
        read.given_bytes = sum(piece.wanted_bytes for _, piece in read.takers)
        read.takers.clear()
        self._kept[read.op] = read
        self._kept_bytes += read.size
        dropped = []
        while self._kept_bytes > self._keep_bytes:
            dropped.append(self._drop())
        return dropped

    def end(self, read: DiskRead) -> None:
        """It is not kept, or failed."""
        self._reads[read.place].remove(read)
        if not self._reads[read.place]:
            del self._reads[read.place]

    def expire(self, now_us: int) -> list[int]:
        """Operations that nobody used for KEEP_US."""
        dropped = []
        while self._kept and now_us - next(iter(self._kept.values())).used_us >= KEEP_US:
            dropped.append(self._drop())
        return dropped

    def _drop(self) -> int:
        op, read = self._kept.popitem(last=False)
        self._kept_bytes -= read.size
        self.end(read)
        return op


def _place(column: SealedColumn, piece: DiskPiece) -> Place:
    return column.name, piece.group
