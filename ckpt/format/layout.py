"""Where each byte of a payload lies in its columns: arithmetic only.

    payload   |<-------- stripe 0 -------->|<-------- stripe 1 -------->|<- tail ->|
              | cell 0 | cell 1 | .. | k-1 | cell 0 | cell 1 | .. | k-1 | k smaller cells
    column j  | header page | cell j of stripe 0 | cell j of stripe 1 | .. | tail cell j | trailer

Every stripe has k cells of `cell_bytes`; the last one has smaller cells, just large enough for what
is left, so that padding stays below k pages. All cells are multiples of the page. Data cells are
the payload's own bytes, so a whole-payload read decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.limits import (
    BLOCK_BYTES,
    CELL_BYTES_DEFAULT,
    CELL_BYTES_MAX,
    LARGE_STRIPE_BYTES_MAX,
    LARGE_STRIPES_MIN,
    PAGE_BYTES,
    PAYLOAD_BYTES_MAX,
)
from ckpt.base.units import align_up
from ckpt.erasure.code import Code


@dataclass(frozen=True, slots=True)
class CellRange:
    """A part of one data cell, and where it lies in the payload."""

    stripe: int
    column: int
    offset: int
    """Within the cell."""
    length: int
    payload_offset: int


def usual_cell_bytes(code: Code, payload_bytes: int) -> int:
    """The largest cells for a payload that fills enough stripes of them, smaller ones for others:
    where nobody may come who knows the smaller ones alone.
    """
    stripe_bytes = code.k * CELL_BYTES_MAX
    fits = stripe_bytes <= LARGE_STRIPE_BYTES_MAX
    large = fits and payload_bytes >= LARGE_STRIPES_MIN * stripe_bytes
    return CELL_BYTES_MAX if large else CELL_BYTES_DEFAULT


class Layout(Struct, frozen=True, gc=False):
    """How one payload is cut. Equal arguments give equal layouts for ever (golden tests)."""

    code: Code
    payload_bytes: int
    """True length; what follows it in the last stripe is zero."""
    cell_bytes: int

    def __post_init__(self) -> None:
        assert 0 <= self.payload_bytes <= PAYLOAD_BYTES_MAX
        assert PAGE_BYTES <= self.cell_bytes <= CELL_BYTES_MAX
        assert self.cell_bytes % PAGE_BYTES == 0

    @classmethod
    def plan(cls, code: Code, payload_bytes: int, cell_bytes: int = CELL_BYTES_DEFAULT) -> Layout:
        """The layout for a new payload: small payloads get smaller cells."""
        needed = align_up(-(-payload_bytes // code.k), PAGE_BYTES)
        return cls(code, payload_bytes, max(PAGE_BYTES, min(cell_bytes, needed)))

    @classmethod
    def said(cls, code: str, payload_bytes: int, cell_bytes: int) -> Layout:
        """What a peer says; raises Refused for numbers that no plan has."""
        parsed = Code.parse(code)
        if not PAGE_BYTES <= cell_bytes <= CELL_BYTES_MAX or cell_bytes % PAGE_BYTES:
            raise Refused(f"cells of {cell_bytes} bytes")
        if not 0 <= payload_bytes <= PAYLOAD_BYTES_MAX:
            raise Refused(f"a payload of {payload_bytes} bytes")
        return cls(parsed, payload_bytes, cell_bytes)

    @property
    def stripe_bytes(self) -> int:
        """Payload bytes of a full stripe."""
        return self.code.k * self.cell_bytes

    @property
    def stripe_count(self) -> int:
        return -(-self.payload_bytes // (self.code.k * self.cell_bytes))

    @property
    def tail_cell_bytes(self) -> int:
        """Cell size of the last stripe; `cell_bytes` when the payload fills it, 0 without
        stripes."""
        return _tail_cell_bytes(self)

    @property
    def column_bytes(self) -> int:
        """Fragment bytes of one column, without header and trailer."""
        return _column_bytes(self)

    @property
    def padded_bytes(self) -> int:
        """Arena bytes that the stripes cover: the payload and the zeros after it."""
        return self.column_bytes * self.code.k

    @property
    def block_count(self) -> int:
        """Checksum blocks of one column."""
        if not self.payload_bytes:
            return 0
        return (self.stripe_count - 1) * blocks_of(self.cell_bytes) + blocks_of(
            self.tail_cell_bytes
        )

    def cell_bytes_of(self, stripe: int) -> int:
        """Size of each cell of one stripe."""
        last = self.stripe_count - 1
        assert 0 <= stripe <= last
        return self.cell_bytes if stripe < last else _tail_cell_bytes(self)

    def cell_offset(self, stripe: int, column: int) -> int:
        """Where a data cell begins in the payload's (padded) memory."""
        assert 0 <= column < self.code.k
        return stripe * self.stripe_bytes + column * self.cell_bytes_of(stripe)

    def fragment_offset(self, stripe: int) -> int:
        """Where a fragment begins in its column's fragment bytes (the header page not counted)."""
        return stripe * self.cell_bytes

    def cells(self, start: int, end: int) -> Iterator[CellRange]:
        """The data cells under payload bytes [start, end), in payload order."""
        assert 0 <= start <= end <= self.payload_bytes
        while start < end:
            stripe = start // self.stripe_bytes
            size = self.cell_bytes_of(stripe)
            column, offset = divmod(start - stripe * self.stripe_bytes, size)
            length = min(size - offset, end - start)
            yield CellRange(stripe, column, offset, length, start)
            start += length


@lru_cache(maxsize=1024)
def _tail_cell_bytes(layout: Layout) -> int:
    """Asked for many times of each layout, of which a cluster uses few."""
    if not layout.payload_bytes:
        return 0
    k, stripe_bytes = layout.code.k, layout.stripe_bytes
    before_tail = (layout.payload_bytes - 1) // stripe_bytes * stripe_bytes
    return align_up(-(-(layout.payload_bytes - before_tail) // k), PAGE_BYTES)


@lru_cache(maxsize=1024)
def _column_bytes(layout: Layout) -> int:
    if not layout.payload_bytes:
        return 0
    return (layout.stripe_count - 1) * layout.cell_bytes + layout.tail_cell_bytes


def blocks_of(cell_bytes: int) -> int:
    """Checksum blocks of one cell."""
    return -(-cell_bytes // BLOCK_BYTES)
