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
from ckpt.format.column import decode_trailer, trailer_offset
from ckpt.format.combs import Comb, Run, Span, combs_of, ranges_of
from ckpt.format.layout import Layout, blocks_of
from ckpt.protocol.runs.run_sets import spans_of, total
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
            found = self._decoded(column, event, copy)
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
        self, column: SealedColumn, event: Completion, copy: int
    ) -> tuple[BlockTable, bytes] | None:
        """Table and manifest of a trailer; None, and reported, when it is damaged."""
        header = column.header
        try:
            if isinstance(event, DiskFailed):
                raise Corrupt(event.errno_name)
            return decode_trailer(header, event.data)
        except Corrupt as error:
            self._core.counters.blocks_damaged += 1
            self._core.on_suspect(column)
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
class DiskPiece:
    """Whole blocks of one group, which one disk read brings, and the wanted runs inside them."""

    group: int
    start: int
    end: int
    wanted: tuple[Run, ...]
    """Ascending; they may overlap."""

    @property
    def wanted_bytes(self) -> int:
        """Of all runs together."""
        return total(self.wanted)


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


def cells_between(layout: Layout, start: int, end: int) -> Iterator[tuple[Block, int]]:
    """The cells of [start, end), whose ends lie on block borders: the first block in it of each,
    and where the cell, or the range, ends.
    """
    while start < end:
        first = block_at(layout, start)
        start = min(end, (start // layout.cell_bytes + 1) * layout.cell_bytes)
        yield first, start


def cut_pieces(layout: Layout, runs: Sequence[Run], piece_bytes: int) -> list[DiskPiece]:
    """The fewest reads in ascending order that cover the runs; neighbours share one."""
    pieces: list[DiskPiece] = []
    wanted: list[Run] = []
    group, start, end = Group(-1, 0), 0, 0

    def close() -> None:
        if wanted:
            pieces.append(DiskPiece(group.number, start, end, tuple(wanted)))
            wanted.clear()

    for part in sorted(_parts_within_groups(layout, runs, piece_bytes)):
        low, high = part[0], part[1]
        if high > end:  # Most short ones lie in blocks that are wanted anyway.
            block = block_at(layout, low)
            if block.start > end or block.end > group.end:
                close()
                group, start, end = group_of(layout, block, piece_bytes), block.start, block.end
            end = max(end, block_at(layout, high - 1).end)
        wanted.append(part)
    close()
    return pieces


def _parts_within_groups(layout: Layout, runs: Sequence[Run], piece_bytes: int) -> Iterator[Run]:
    """Each run in parts that do not leave their group, and leave out no block in it."""
    block_bytes_min = layout.cell_bytes % BLOCK_BYTES or BLOCK_BYTES
    begin, border = 0, 0  # Of the group that the last one was in.
    left = list(reversed(runs))
    while left:
        run = left.pop()
        if isinstance(run, Comb) and run.step - run.length >= block_bytes_min:
            left += reversed(spans_of((run,)))
            continue
        if not begin <= run[0] < border:
            block = block_at(layout, run[0])
            begin, border = block.start, group_of(layout, block, piece_bytes).end
        if run[1] <= border:
            yield run
            continue
        before, behind = _cut_at(run, border)
        yield from before
        left += reversed(behind)


def _cut_at(run: Run, border: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """What lies before a border inside of it, and after."""
    if not isinstance(run, Comb):
        return ((run[0], border),), ((border, run[1]),)
    # Teeth that end before it; the next one may lie on it.
    whole = (border - run.start - run.length) // run.step + 1
    start = run.start + whole * run.step
    if start >= border:
        return run.part(0, whole), run.part(whole, run.teeth)
    behind = (border, start + run.length), *run.part(whole + 1, run.teeth)
    return (*run.part(0, whole), (start, border)), behind


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


def runs_inside(runs: Sequence[Run], start: int, end: int) -> tuple[Run, ...]:
    """What of the runs lies in [start, end)."""
    clipped = np.clip(ranges_of(runs), start, end)
    return combs_of(clipped[clipped[:, 0] < clipped[:, 1]])


def runs_without(runs: Sequence[Run], holes: Sequence[Block]) -> tuple[tuple[Run, ...], list[Span]]:
    """What of the runs lies outside of the blocks, and what inside; both ascending."""
    outside: list[Span] = []
    inside: list[Span] = []
    for at, end in spans_of(tuple(runs)):
        for block in holes:
            low, high = max(at, block.start), min(end, block.end)
            if low < high:
                inside.append((low, high))
                outside += [(at, low)] if at < low else []
                at = high
        outside += [(at, end)] if at < end else []
    return combs_of(np.array(outside, np.int64).reshape(-1, 2)), inside
