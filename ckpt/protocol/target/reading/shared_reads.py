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
from typing import Final

from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.units import US_PER_S
from ckpt.format.checksum import crc32, crc32_combine
from ckpt.format.combs import Run, gathered
from ckpt.native.sums import sums_of
from ckpt.protocol.events import Buffer
from ckpt.protocol.target.core import SealedColumn
from ckpt.protocol.target.reading.pieces import Block, BlockTable, DiskPiece, blocks_between
from ckpt.protocol.target.reading.read_jobs import ReadQuestion

KEEP_US: Final = US_PER_S
"""A read that is unused for this long is forgotten: the disk is asked again, and its damage
seen.
"""

Place = tuple[str, int]
"""File of a column, and the number of a group of blocks in it."""


class VerifiedBlocks:
    """Blocks that were read, each compared with the table."""

    def __init__(self, read: DiskRead, data: Buffer, table: BlockTable) -> None:
        self.bad: list[Block] = []
        self._base, self._view = read.start, memoryview(data)
        blocks = list(blocks_between(read.column.header.layout, read.start, read.end))
        self._crcs = dict(zip(blocks, self._sum(blocks), strict=True))
        stored = table[blocks[0].number : blocks[-1].number + 1].tolist()
        for (block, crc), known in zip(self._crcs.items(), stored, strict=True):
            if crc != known or block.end - self._base > len(self._view):
                self.bad.append(block)

    def _sum(self, blocks: list[Block]) -> list[int]:
        """The checksum of each; 0 for those that the disk did not give."""
        crcs: list[int] = []
        begin = self._base
        for block in blocks:
            # The last one of a cell may be short.
            if block.end - block.start < BLOCK_BYTES or block is blocks[-1]:
                crcs += sums_of(self.one(begin, block.end)).blocks.tolist()
                begin = block.end
        return crcs + [0] * (len(blocks) - len(crcs))

    def one(self, start: int, end: int) -> memoryview:
        """Fragment bytes of the column as they lie."""
        return self._view[start - self._base : end - self._base]

    def copied(self, runs: Sequence[Run]) -> memoryview:
        """Runs one after the other, in memory of their own."""
        return gathered(self._view, self._base, runs)

    def checksum(self, start: int, end: int) -> int:
        """Of a long range: checksums of whole blocks are combined, not repeated."""
        total = 0
        for block, crc in self._crcs.items():
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
