"""Is a file on this target as it was written? Every byte of it is read and compared.

    column     header 1, header 2, trailer 1, trailer 2 (block table, manifest, padding), cells
    document   header 1, header 2, copy 1, copy 2, and the padding of each

The region, and where in the file, is named of what differs. What the disk cannot read is read again
in smaller parts, so that damage has the size of a block. A column whose two block tables are
damaged cannot be compared: all of its cells count as damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import Xxh3, crc32
from ckpt.format.column import FRAGMENTS_OFFSET, ColumnHeader, decode_header, trailer_offset
from ckpt.format.documents.file import DocumentHeader, decode_document_header
from ckpt.format.messages.reading import Damage
from ckpt.protocol.events import Buffer
from ckpt.protocol.target.core import Entry, SealedColumn
from ckpt.protocol.target.disk_events import DiskFailed
from ckpt.protocol.target.reading.pieces import BlockTable, block_at, blocks_between, group_of
from ckpt.protocol.target.reading.shared_reads import DiskRead, VerifiedBlocks

COLUMN = "column"
CELLS = "cells"
WHOLE = "file"
"""All of it: it is gone."""
DAMAGES_MAX = 512
"""Of one file: what is beyond is folded into the last of its region, or left out."""

Part = tuple[int, int]
"""Offset in the file, and length."""
Steps = Generator[Part, Buffer | str, None]
"""Asks for parts; is sent the bytes of each, or why it cannot be read."""


def kind_of(entry: Entry) -> str:
    """`column`, or which document."""
    return COLUMN if isinstance(entry, SealedColumn) else entry.kind.value


def file_bytes_of(entry: Entry) -> int:
    return entry.file_bytes if isinstance(entry, SealedColumn) else entry.header.file_bytes


class FileCheck:
    """I check one file. My owner reads `wanted`, says what came by `took`, and so on until `wanted`
    is None; the buffer is its own again after each.

    `begin`: of a column, cells before it in the file were compared already; `found` says what of
    them was damaged.
    """

    def __init__(
        self, entry: Entry, window_bytes: int, begin: int = 0, found: Iterable[Damage] = ()
    ) -> None:
        self.entry = entry
        self.found = [one for one in found if one.region == CELLS and one.end <= begin]
        self.cells_end = max(begin, FRAGMENTS_OFFSET)
        """Where in the file the cells end that are compared."""
        self.read_bytes = 0
        self._window_bytes = window_bytes
        self._steps = self._all()
        self.wanted: Part | None = next(self._steps)
        """The part that is to be read next; None at the end."""

    @property
    def file(self) -> str:
        return self.entry.file

    def took(self, data: Buffer | DiskFailed) -> None:
        """The wanted part was read, or could not be, for none of PASSING_ERRNOS."""
        if isinstance(data, DiskFailed):
            if data.errno_name == "ENOENT":
                self._gone()
                return
            self._go_on(data.errno_name)
            return
        self.read_bytes += len(data)
        self._go_on(data)

    def _go_on(self, answer: Buffer | str) -> None:
        try:
            self.wanted = self._steps.send(answer)
        except StopIteration:
            self.wanted = None

    def _gone(self) -> None:
        """Whoever dropped it knows; else its name is lost."""
        self._steps.close()
        self.wanted = None
        self.found = [
            Damage(kind_of(self.entry), WHOLE, 0, file_bytes_of(self.entry), "it is not there")
        ]

    def _all(self) -> Steps:
        if isinstance(self.entry, SealedColumn):
            yield from self._column(self.entry)
        else:
            yield from self._document(self.entry.header)

    # ----------------------------------------------------------------------- columns

    def _column(self, column: SealedColumn) -> Steps:
        header = column.header
        yield from self._pages(header.file_bytes, lambda page: decode_header(page) == header)
        table: BlockTable | None = None
        for copy in (0, 1):
            trailer = _Trailer(header, copy)
            yield from self._windows(trailer.start, header.trailer_bytes, trailer)
            table = trailer.table if table is None else table
        yield from self._cells(column, table)

    def _cells(self, column: SealedColumn, table: BlockTable | None) -> Steps:
        size, layout = column.header.column_bytes, column.header.layout
        if table is None:
            if size:
                self._note(CELLS, FRAGMENTS_OFFSET, size, "no block table is whole")
            return
        at = self.cells_end - FRAGMENTS_OFFSET
        while at < size:
            end = group_of(layout, block_at(layout, at), self._window_bytes).end
            yield from self._blocks(column, table, at, end)
            self.cells_end = FRAGMENTS_OFFSET + end
            at = end

    def _blocks(self, column: SealedColumn, table: BlockTable, start: int, end: int) -> Steps:
        """[start, end) of the fragment bytes, whole blocks."""
        data = yield FRAGMENTS_OFFSET + start, end - start
        if not isinstance(data, str):
            read = DiskRead(column, start, end, (column.name, 0))
            for block in VerifiedBlocks(read, data, table).bad:
                self._note_block(block.start, block.end, "checksum")
            return
        blocks = list(blocks_between(column.header.layout, start, end))
        if len(blocks) == 1:
            self._note_block(start, end, data)
            return
        for block in blocks:
            yield from self._blocks(column, table, block.start, block.end)

    def _note_block(self, start: int, end: int, why: str) -> None:
        self._note(CELLS, FRAGMENTS_OFFSET + start, end - start, why)

    # ----------------------------------------------------------------------- documents

    def _document(self, header: DocumentHeader) -> Steps:
        yield from self._pages(
            header.file_bytes, lambda page: decode_document_header(page) == header
        )
        for copy in range(header.copies):
            body = _Copy(header, copy)
            yield from self._windows(body.start, header.padded_bytes, body)

    # ----------------------------------------------------------------------- both

    def _pages(self, file_bytes: int, is_right: Callable[[memoryview], bool]) -> Steps:
        """The header page, and the same at the end."""
        for number, offset in enumerate((0, file_bytes - PAGE_BYTES), start=1):
            data = yield offset, PAGE_BYTES
            why = data if isinstance(data, str) else _page_fault(memoryview(data), is_right)
            if why:
                self._note(f"header {number}", offset, PAGE_BYTES, why)

    def _windows(self, start: int, size: int, part: _Trailer | _Copy) -> Steps:
        """A part that is compared as a whole, though it is read in windows."""
        at = 0
        while at < size:
            length = min(self._window_bytes, size - at)
            data = yield start + at, length
            if isinstance(data, str):
                yield from self._unreadable_pages(part, start, at, length)
            elif len(data) < length:
                self._note(part.region(at), start + at, length, "the file ends before it")
                part.incomplete = True
            else:
                part.took(at, memoryview(data))
            at += length
        for region, low, high, why in part.faults():
            self._note(region, start + low, high - low, why)

    def _unreadable_pages(self, part: _Trailer | _Copy, start: int, at: int, length: int) -> Steps:
        """Which pages are it?"""
        part.incomplete = True
        for page in range(at, at + length, PAGE_BYTES):
            data = yield start + page, PAGE_BYTES
            if isinstance(data, str):
                self._note(part.region(page), start + page, PAGE_BYTES, data)

    def _note(self, region: str, offset: int, length: int, why: str) -> None:
        """Neighbours are one; so is, within its region, what is beyond DAMAGES_MAX."""
        kind, end = kind_of(self.entry), offset + length
        last = self.found[-1] if self.found else None
        if last is not None and last.region == region:
            joins = last.end == offset and last.why == why
            if joins or len(self.found) >= DAMAGES_MAX:
                self.found[-1] = Damage(kind, region, last.start, end, last.why)
                return
        self.found.append(Damage(kind, region, offset, end, why))


def _page_fault(page: memoryview, is_right: Callable[[memoryview], bool]) -> str:
    """Why it is not the header; empty when it is."""
    try:
        return "" if is_right(page) else "of another file"
    except Corrupt as error:
        return error.message


Fault = tuple[str, int, int, str]
"""Region, where it begins and ends, and why."""


@dataclass(slots=True)
class _Trailer:
    """One copy of a trailer: block table, manifest, their checksum, padding."""

    header: ColumnHeader
    copy: int
    incomplete: bool = False
    table: BlockTable | None = None
    """When all of it was taken and is right."""
    _body: int = 0
    _table: bytearray = field(default_factory=bytearray)
    _digest: Xxh3 = field(default_factory=Xxh3)
    _stored: bytearray = field(default_factory=bytearray)
    _padding_is_zero: bool = True

    @property
    def start(self) -> int:
        return trailer_offset(self.header, self.copy)

    @property
    def _table_end(self) -> int:
        return 4 * self.header.layout.block_count

    @property
    def _manifest_end(self) -> int:
        return self._table_end + self.header.manifest_bytes

    def region(self, at: int) -> str:
        """What lies there."""
        if at < self._table_end:
            return f"block table {self.copy + 1}"
        name = "manifest" if at < self._manifest_end else "padding"
        return f"{name} {self.copy + 1}"

    def took(self, at: int, data: memoryview) -> None:
        """Its bytes from `at` on."""
        cut = partial(_cut, data, at)
        table_end, end = self._table_end, self._manifest_end
        self._body = crc32(cut(0, end), self._body)
        self._table += cut(0, table_end)
        self._digest.update(cut(table_end, end))
        self._stored += cut(end, end + 4)
        self._padding_is_zero &= not any(cut(end + 4, self.header.trailer_bytes))

    def faults(self) -> list[Fault]:
        """When all of it was taken."""
        if self.incomplete:
            return []
        found: list[Fault] = []
        end = self._manifest_end
        if self._digest.digest() != self.header.manifest_digest:
            found.append((self.region(self._table_end), self._table_end, end, "digest"))
        if self._body == int.from_bytes(self._stored, "little"):
            self.table = np.frombuffer(bytes(self._table), "<u4").astype(np.uint32)
        elif not found:
            # The digest is the manifest's alone: it is the table, or the checksum of both.
            found.append((f"block table {self.copy + 1}", 0, end + 4, "checksum"))
        if not self._padding_is_zero:
            found.append((self.region(end), end + 4, self.header.trailer_bytes, "not zero"))
        return found


@dataclass(slots=True)
class _Copy:
    """One copy of a document, and the zeros after it."""

    header: DocumentHeader
    copy: int
    incomplete: bool = False
    _digest: Xxh3 = field(default_factory=Xxh3)
    _padding_is_zero: bool = True

    @property
    def start(self) -> int:
        return self.header.copy_offset(self.copy)

    def region(self, at: int) -> str:
        name = "copy" if at < self.header.total_bytes else "padding"
        return f"{name} {self.copy + 1}"

    def took(self, at: int, data: memoryview) -> None:
        """Its bytes from `at` on."""
        total = self.header.total_bytes
        self._digest.update(_cut(data, at, 0, total))
        self._padding_is_zero &= not any(_cut(data, at, total, self.header.padded_bytes))

    def faults(self) -> list[Fault]:
        """When all of it was taken."""
        if self.incomplete:
            return []
        found: list[Fault] = []
        total = self.header.total_bytes
        if self._digest.digest() != self.header.digest:
            found.append((f"copy {self.copy + 1}", 0, total, "digest"))
        if not self._padding_is_zero:
            found.append((self.region(total), total, self.header.padded_bytes, "not zero"))
        return found


def _cut(data: memoryview, at: int, start: int, end: int) -> memoryview:
    """What of [start, end) lies in the bytes that begin at `at`."""
    return data[max(0, start - at) : max(0, end - at)]
