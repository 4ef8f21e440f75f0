"""How a read is cut: checksum blocks, disk reads of whole blocks, and the tables that blocks are
checked by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnId
from ckpt.base.limits import BLOCK_BYTES
from ckpt.format.column import ColumnHeader, decode_trailer, trailer_offset
from ckpt.format.layout import Layout, blocks_of
from ckpt.format.runs import Offsets, Ranges
from ckpt.protocol.target.core import Completion, Core, SealedColumn
from ckpt.protocol.target.disk_events import DiskFailed, ReadAt, ReleaseBulk

BlockTable = NDArray[np.uint32]

MANY: Final = 8
"""From so many ranges on they are looked at as arrays; fewer cost less one by one."""

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
    wanted: Ranges

    @property
    def wanted_bytes(self) -> int:
        """Of all ranges together."""
        if len(self.wanted) < MANY:
            return sum([end - start for start, end in self.wanted.tolist()])
        return int((self.wanted[:, 1] - self.wanted[:, 0]).sum())


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


def cut_pieces(layout: Layout, ranges: Ranges, piece_bytes: int) -> list[Piece]:
    """The fewest reads in ascending order that cover the ranges; neighbours share one."""
    if len(ranges) < MANY:
        return _cut_few(layout, ranges, piece_bytes)
    within = _within_groups(layout, ranges, piece_bytes)
    within = within[np.lexsort((within[:, 1], within[:, 0]))]
    lows, groups = _blocks(layout, within[:, 0], piece_bytes)
    # How far the blocks of all ranges so far reach.
    reach = np.maximum.accumulate(_block_ends(layout, within[:, 1]))
    apart = (groups[1:] != groups[:-1]) | (lows[1:] > reach[:-1])
    cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(within)]
    return [
        Piece(int(groups[first]), int(lows[first]), int(reach[behind - 1]), within[first:behind])
        for first, behind in pairwise(cuts)
    ]


def _cut_few(layout: Layout, ranges: Ranges, piece_bytes: int) -> list[Piece]:
    """The same, one by one."""
    pieces: list[Piece] = []
    wanted: list[tuple[int, int]] = []
    group, start, end = Group(-1, 0), 0, 0

    def close() -> None:
        if wanted:
            pieces.append(Piece(group.number, start, end, np.array(wanted)))
            wanted.clear()

    for low, high in sorted(_parts_within_groups(layout, ranges, piece_bytes)):
        block = block_at(layout, low)
        if block.start > end or block.end > group.end:
            close()
            group, start, end = group_of(layout, block, piece_bytes), block.start, block.end
        wanted.append((low, high))
        end = max(end, block_at(layout, high - 1).end)
    close()
    return pieces


def _within_groups(layout: Layout, ranges: Ranges, piece_bytes: int) -> Ranges:
    """The same bytes in ranges that do not leave their group."""
    _, first = _blocks(layout, ranges[:, 0], piece_bytes)
    _, last = _blocks(layout, ranges[:, 1] - 1, piece_bytes)
    leaves = first != last
    if not leaves.any():
        return ranges
    parts = list(_parts_within_groups(layout, ranges[leaves], piece_bytes))
    return np.concatenate((ranges[~leaves], np.array(parts, np.int64)))


def _parts_within_groups(
    layout: Layout, ranges: Ranges, piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """Each range in parts that do not leave their group."""
    for at, end in ranges.tolist():
        while at < end:
            border = min(end, group_of(layout, block_at(layout, at), piece_bytes).end)
            yield at, border
            at = border


def _blocks(layout: Layout, at: Offsets, piece_bytes: int) -> tuple[Offsets, Offsets]:
    """Where the blocks of these bytes begin, and the numbers of their groups."""
    stripes = np.minimum(at // layout.cell_bytes, layout.stripe_count - 1)
    cells = stripes * layout.cell_bytes
    inside = (at - cells) // BLOCK_BYTES * BLOCK_BYTES
    if layout.cell_bytes <= piece_bytes:
        return cells + inside, stripes // (piece_bytes // layout.cell_bytes)
    parts = -(-layout.cell_bytes // piece_bytes)
    return cells + inside, stripes * parts + inside // piece_bytes


def _block_ends(layout: Layout, ends: Offsets) -> Offsets:
    """Where the blocks of the bytes before these end."""
    stripes = np.minimum((ends - 1) // layout.cell_bytes, layout.stripe_count - 1)
    cells = stripes * layout.cell_bytes
    last = stripes == layout.stripe_count - 1
    sizes = np.where(last, layout.tail_cell_bytes, layout.cell_bytes)
    inside: Offsets = -(-(ends - cells) // BLOCK_BYTES) * BLOCK_BYTES
    reach: Offsets = cells + np.minimum(inside, sizes)
    return reach


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


def ranges_inside(ranges: Ranges, start: int, end: int) -> Ranges:
    """What of the ranges lies in [start, end)."""
    clipped: Ranges = np.clip(ranges, start, end)
    return clipped[clipped[:, 0] < clipped[:, 1]]


def ranges_without(ranges: Ranges, holes: Sequence[Block]) -> tuple[Ranges, list[tuple[int, int]]]:
    """What of the ranges lies outside of the blocks, and what inside; both ascending."""
    outside: list[tuple[int, int]] = []
    inside: list[tuple[int, int]] = []
    for at, end in ranges.tolist():
        for block in holes:
            low, high = max(at, block.start), min(end, block.end)
            if low < high:
                inside.append((low, high))
                outside += [(at, low)] if at < low else []
                at = high
        outside += [(at, end)] if at < end else []
    return np.array(outside, np.int64).reshape(-1, 2), inside
