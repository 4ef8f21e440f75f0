"""What is lent to a peer of the same host instead of sent: bulks to a target (ckpt.aio.lending),
columns to a reader (ckpt.transfer.receiving.lent_columns).
"""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import ColumnId


class LendMemory(Struct, frozen=True, gc=False):
    """A memfd comes along (SCM_RIGHTS): bulks may lie in it from now on. Unix sockets only."""

    region: int
    size_bytes: int


class TakeBackMemory(Struct, frozen=True, gc=False):
    """The region is lent no more."""

    region: int


class MemoryReturned(Struct, frozen=True, gc=False):
    """The borrower is done with these bulks; lent ones are counted from 0 on each connection."""

    bulks: tuple[int, ...]


class LendColumn(Struct, frozen=True, gc=False):
    """A reader asks for a column's file. Answered by ColumnLent or Failed; the column is lent until
    ReturnColumn, under the number of this request.
    """

    column: ColumnId


class ColumnLent(Struct, frozen=True, gc=False):
    """The file comes along (SCM_RIGHTS), to be read only. Bulk: the CRC-32 of each of its blocks
    (little-endian, 4 bytes each), which its target has compared with their own checksum.
    """

    first: int
    """Where in the file the first block begins."""


class ReturnColumn(Struct, frozen=True, gc=False):
    """The reader is done with what it was lent, or asked for, under this number. Not answered."""

    read_bytes: int
    """What it read of the device."""
