"""A column file: one column of one payload on one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt.base.ids import ColumnId, LaunchNumber
from ckpt.base.limits import PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer
from ckpt.format.layout import Layout

HEADER_BYTES: Final = PAGE_BYTES
FRAGMENTS_OFFSET: Final = HEADER_BYTES
"""Where the first fragment begins; fragment bytes are counted from here."""


@dataclass(frozen=True, slots=True)
class ColumnHeader:
    """Whose bytes these are, and how to find and check the rest of the file."""

    cluster: str
    column: ColumnId
    launch: LaunchNumber
    code: Code
    payload_bytes: int
    cell_bytes: int
    column_bytes: int
    """Fragment bytes, without header and trailer."""
    column_crc: int
    """CRC-32 of all fragment bytes."""
    trailer_bytes: int
    """Of one copy."""
    manifest_bytes: int
    manifest_digest: bytes
    """xxh3-128 of the manifest."""

    @property
    def layout(self) -> Layout:
        """How the payload is cut."""
        return Layout(self.code, self.payload_bytes, self.cell_bytes)

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return 2 * HEADER_BYTES + self.column_bytes + 2 * self.trailer_bytes


def encode_header(header: ColumnHeader) -> bytes:
    """The page of PAGE_BYTES."""
    raise NotImplementedError


def decode_header(page: Buffer) -> ColumnHeader:
    """From one page; raises Corrupt."""
    raise NotImplementedError


def encode_trailer(block_crcs: NDArray[np.uint32], manifest: Buffer) -> bytes:
    """One copy of the trailer, padded to pages. `block_crcs` has Layout.block_count entries, in file order."""
    raise NotImplementedError


def decode_trailer(header: ColumnHeader, view: Buffer) -> tuple[NDArray[np.uint32], bytes]:
    """(block checksums, manifest document) from one copy; raises Corrupt."""
    raise NotImplementedError


def trailer_bytes(layout: Layout, manifest_bytes: int) -> int:
    """Size of one copy of the trailer."""
    raise NotImplementedError


def trailer_offset(header: ColumnHeader, copy: int) -> int:
    """Where copy 0 or 1 of the trailer begins in the file."""
    assert copy in (0, 1)
    return FRAGMENTS_OFFSET + header.column_bytes + copy * header.trailer_bytes


def manifest_bytes_bound(layout: Layout) -> int:
    """Manifest bytes of any payload of this layout, known before there is one."""
    raise NotImplementedError


def file_bytes(layout: Layout, manifest_bytes: int) -> int:
    """Size of the whole column file: what a reservation preallocates."""
    return 2 * HEADER_BYTES + layout.column_bytes + 2 * trailer_bytes(layout, manifest_bytes)
