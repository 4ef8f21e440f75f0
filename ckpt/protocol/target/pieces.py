"""How a read is cut: checksum blocks, disk reads of whole blocks, and the tables that blocks are
checked by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnId
from ckpt.base.limits import BLOCK_BYTES
from ckpt.format.column import ColumnHeader, decode_trailer, trailer_offset
from ckpt.format.layout import Layout, blocks_of
from ckpt.format.messages import ByteRange
from ckpt.protocol.target.core import Completion, Core, SealedColumn
from ckpt.protocol.target.disk_events import DiskFailed, ReadAt, ReleaseBulk

BlockTable = NDArray[np.uint32]

# --------------------------------------------------------------------------- block tables


class TableCache:
    """I load a column's block checksums from trailer A, else B, and keep the latest used within
    bounds.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tables: OrderedDict[ColumnId, BlockTable] = OrderedDict()
        self._bytes = 0

    def put(self, column: SealedColumn, table: BlockTable) -> None:
        self.forget(column.header.column)
        self._tables[column.header.column] = table
        self._bytes += table.nbytes
        while self._bytes > self._core.limits.table_cache_bytes and len(self._tables) > 1:
            _, oldest = self._tables.popitem(last=False)
            self._bytes -= oldest.nbytes

    def forget(self, column: ColumnId) -> None:
        table = self._tables.pop(column, None)
        if table is not None:
            self._bytes -= table.nbytes

    def get(self, column: SealedColumn) -> BlockTable | None:
        table = self._tables.get(column.header.column)
        if table is not None:
            self._tables.move_to_end(column.header.column)
        return table

    def load(
        self,
        column: SealedColumn,
        then: Callable[[BlockTable | None, bytes], None],
        copy: int = 0,
    ) -> None:
        """Call `then` with the table and the manifest, or with None when both copies are
        damaged.
        """
        header = column.header

        def loaded(event: Completion) -> None:
            found = self._decoded(header, event, copy)
            # Both are copies: the buffer is free before another one is asked for.
            self._core.out.append(ReleaseBulk(event.op))
            if found is not None:
                self.put(column, found[0])
                then(*found)
            elif copy == 0:
                self.load(column, then, copy=1)
            else:
                then(None, b"")

        op = self._core.expect(loaded)
        offset = trailer_offset(header, copy)
        self._core.out.append(ReadAt(op, column.file, offset, header.trailer_bytes))

    def _decoded(
        self, header: ColumnHeader, event: Completion, copy: int
    ) -> tuple[BlockTable, bytes] | None:
        """Table and manifest of a trailer; None, and reported, when it is damaged."""
        try:
            if isinstance(event, DiskFailed):
                raise Corrupt(event.errno_name)
            return decode_trailer(header, event.data)
        except Corrupt as error:
            self._core.counters.blocks_damaged += 1
            self._core.report(
                "warning", "trailer damaged", column=str(header.column), copy=copy, why=str(error)
            )
            return None


# --------------------------------------------------------------------------- pieces


class Block(NamedTuple):
    """One checksum block of a column, in fragment bytes."""

    number: int
    start: int
    end: int


class Group(NamedTuple):
    """Blocks that one read may bring together, up to fragment byte `end`."""

    number: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Whole blocks of one group, which one disk read brings, and the wanted ranges inside them."""

    group: int
    start: int
    end: int
    wanted: tuple[ByteRange, ...]


def block_at(layout: Layout, offset: int) -> Block:
    """The block that holds this fragment byte of a column."""
    stripe = min(offset // layout.cell_bytes, layout.stripe_count - 1)
    cell = layout.fragment_offset(stripe)
    number = (offset - cell) // BLOCK_BYTES
    start = cell + number * BLOCK_BYTES
    end = min(start + BLOCK_BYTES, cell + layout.cell_bytes_of(stripe))
    return Block(stripe * blocks_of(layout.cell_bytes) + number, start, end)


def blocks_between(layout: Layout, start: int, end: int) -> Iterator[Block]:
    """The blocks that cover [start, end), ascending; both ends lie on block borders."""
    while start < end:
        first = block_at(layout, start)
        yield first
        # The rest of the cell without asking where each begins.
        cell_end = min(end, (first.start // layout.cell_bytes + 1) * layout.cell_bytes)
        number, start = first.number, first.end
        while start + BLOCK_BYTES <= cell_end:
            number += 1
            yield Block(number, start, start + BLOCK_BYTES)
            start += BLOCK_BYTES


def cut_pieces(layout: Layout, ranges: Sequence[ByteRange], piece_bytes: int) -> list[Piece]:
    """The fewest reads in ascending order that cover the ranges; neighbours share one."""
    pieces: list[Piece] = []
    start = end = 0
    group = Group(-1, 0)
    wanted: list[ByteRange] = []
    for each in sorted(ranges, key=lambda r: (r.start, r.end)):
        if wanted and each.end <= end:
            wanted.append(each)  # Short ones: most lie in blocks that are read anyway.
            continue
        at = each.start
        while at < each.end:
            block = block_at(layout, at)
            if not (wanted and block.start <= end and block.end <= group.end):
                if wanted:
                    pieces.append(Piece(group.number, start, end, tuple(wanted)))
                start, end, wanted = block.start, block.end, []
                group = group_of(layout, block, piece_bytes)
            stop = _stop(layout, block, min(each.end, group.end), group.end)
            upto = min(each.end, stop)
            wanted.append(ByteRange(at, upto))
            end, at = max(end, stop), upto
    if wanted:
        pieces.append(Piece(group.number, start, end, tuple(wanted)))
    return pieces


def group_of(layout: Layout, block: Block, piece_bytes: int) -> Group:
    """The group of a block: whole stripes while they fit into a piece, else a part of one. No group
    is larger than a piece (or its only block), and all readers cut a column into the same ones.
    """
    cell_bytes = layout.cell_bytes
    stripe = min(block.start // cell_bytes, layout.stripe_count - 1)
    if cell_bytes <= piece_bytes:
        stripes = piece_bytes // cell_bytes
        number = stripe // stripes
        return Group(number, min((number + 1) * stripes * cell_bytes, layout.column_bytes))
    parts = -(-cell_bytes // piece_bytes)
    cell = layout.fragment_offset(stripe)
    part = (block.start - cell) // piece_bytes
    cell_end = cell + layout.cell_bytes_of(stripe)
    end = max(block.end, min(cell + (part + 1) * piece_bytes, cell_end))
    return Group(stripe * parts + part, end)


def _stop(layout: Layout, first: Block, end: int, limit: int) -> int:
    """The border behind the blocks that reach from `first` to `end` and not beyond `limit`; at
    least the first one's.
    """
    if end <= first.end:
        return first.end
    last = block_at(layout, end - 1)
    return last.end if last.end <= limit else last.start


def ranges_inside(ranges: Sequence[ByteRange], start: int, end: int) -> tuple[ByteRange, ...]:
    """What of the ranges lies in [start, end)."""
    clipped = (ByteRange(max(r.start, start), min(r.end, end)) for r in ranges)
    return tuple(each for each in clipped if each.start < each.end)
