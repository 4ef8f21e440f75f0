"""A column file: one column of one payload on one target.

    offset                  size           what
         0                  4096           header page
      4096                  column_bytes   fragments back to back, stripe 0 first
      4096 + column_bytes   trailer_bytes  trailer, copy 0
         + trailer_bytes    trailer_bytes  trailer, copy 1
         + trailer_bytes    4096           header page again

A header page and a trailer (block checksums and the rank's manifest) exist twice and far apart,
so that no single flipped byte loses the column. Everything lies on whole pages, for O_DIRECT.

    header page, offset  size  type  field
                      0   312  .     identity block (ckpt.format.identity), magic `CKPC`, version 1
                    312     2  u16   column number
                    314     2  u16   checksum id: 1 is IEEE CRC-32 over blocks of 128 KiB
                    316     1  u8    cluster_bytes
                    317     3  bytes zero
                    320     8  u64   column_bytes
                    328     8  u64   trailer_bytes, one copy
                    336     8  u64   manifest_bytes
                    344     4  u32   column_crc: CRC-32 of all fragment bytes
                    348     4  u32   zero
                    352    16  bytes manifest_digest: xxh3-128 of the manifest
                    368    64  bytes cluster id, UTF-8, then zeros
                    432  3660  bytes zero
                   4092     4  u32   CRC-32 of the 4092 bytes before

    trailer, offset         size            type  field
                  0         4 block_count   u32   CRC-32 of each block, in file order
                  .         manifest_bytes  .     rank manifest (ckpt.format.manifest)
                  .         4               u32   CRC-32 of everything before
                  .         .               bytes zeros to the next page
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnId, ColumnNumber, LaunchNumber
from ckpt.base.limits import MANIFEST_BYTES_MAX, PAGE_BYTES
from ckpt.base.units import align_up
from ckpt.erasure.code import Code
from ckpt.format.checksum import CHECKSUM_ID, XXH3_BYTES, Buffer, crc32, xxh3_128
from ckpt.format.identity import IDENTITY_BYTES, PayloadIdentity, pack_identity, unpack_identity
from ckpt.format.layout import Layout
from ckpt.format.manifest import manifest_bytes

MAGIC: Final = b"CKPC"
VERSION: Final = 1
CLUSTER_BYTES_MAX: Final = 64

HEADER_BYTES: Final = PAGE_BYTES
FRAGMENTS_OFFSET: Final = HEADER_BYTES
"""Where the first fragment begins; fragment bytes are counted from here."""

_REST = struct.Struct("<HHB3xQQQII16s64s")
_CRC = struct.Struct("<I")
_CRC_OFFSET: Final = HEADER_BYTES - _CRC.size

assert IDENTITY_BYTES + _REST.size == 432


class ColumnHeader(Struct, frozen=True, gc=False):
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
    cluster = header.cluster.encode()
    assert 0 < len(cluster) <= CLUSTER_BYTES_MAX
    assert len(header.manifest_digest) == XXH3_BYTES
    identity = PayloadIdentity(
        header.column.payload, header.launch, header.code, header.payload_bytes, header.cell_bytes
    )
    page = pack_identity(MAGIC, VERSION, identity) + _REST.pack(
        header.column.column,
        CHECKSUM_ID,
        len(cluster),
        header.column_bytes,
        header.trailer_bytes,
        header.manifest_bytes,
        header.column_crc,
        0,
        header.manifest_digest,
        cluster,
    )
    page = page.ljust(_CRC_OFFSET, b"\0")
    return page + _CRC.pack(crc32(page))


def decode_header(page: Buffer) -> ColumnHeader:
    """From one page; raises Corrupt."""
    view = memoryview(page).cast("B")
    if len(view) != HEADER_BYTES:
        raise Corrupt(f"a column header of {len(view)} bytes cannot be")
    if _CRC.unpack_from(view, _CRC_OFFSET)[0] != crc32(view[:_CRC_OFFSET]):
        raise Corrupt("column header fails its checksum")
    identity = unpack_identity(MAGIC, VERSION, view)
    (
        column, checksum_id, cluster_bytes, column_size, trailer_size, manifest_size,
        column_crc, _, digest, cluster,
    ) = _REST.unpack_from(view, IDENTITY_BYTES)  # fmt: skip
    layout = identity.layout
    if checksum_id != CHECKSUM_ID:
        raise Corrupt(
            f"column header with checksums of kind {checksum_id}: this program knows {CHECKSUM_ID}"
        )
    if column >= identity.code.n or column_size != layout.column_bytes:
        raise Corrupt(f"column {column} of {column_size} bytes does not fit code {identity.code}")
    if manifest_size > MANIFEST_BYTES_MAX or trailer_size != trailer_bytes(layout, manifest_size):
        raise Corrupt(f"trailer of {trailer_size} bytes does not fit a manifest of {manifest_size}")
    try:
        cluster_text = cluster[:cluster_bytes].decode()
    except UnicodeDecodeError:
        raise Corrupt("column header: the cluster's id is not text") from None
    return ColumnHeader(
        cluster=cluster_text,
        column=ColumnId(identity.payload, ColumnNumber(column)),
        launch=identity.launch,
        code=identity.code,
        payload_bytes=identity.payload_bytes,
        cell_bytes=identity.cell_bytes,
        column_bytes=column_size,
        column_crc=column_crc,
        trailer_bytes=trailer_size,
        manifest_bytes=manifest_size,
        manifest_digest=digest,
    )


def encode_trailer(block_crcs: NDArray[np.uint32], manifest: Buffer) -> bytes:
    """One copy, padded to pages. `block_crcs`: [Layout.block_count], in file order."""
    assert block_crcs.ndim == 1
    body = block_crcs.astype("<u4").tobytes() + manifest
    whole = body + _CRC.pack(crc32(body))
    return whole.ljust(align_up(len(whole), PAGE_BYTES), b"\0")


def decode_trailer(header: ColumnHeader, view: Buffer) -> tuple[NDArray[np.uint32], bytes]:
    """(block checksums, manifest document) from one copy, both copied out; raises Corrupt."""
    trailer = memoryview(view).cast("B")
    if len(trailer) != header.trailer_bytes:
        raise Corrupt(f"a trailer of {len(trailer)} bytes instead of {header.trailer_bytes}")
    table_bytes = 4 * header.layout.block_count
    end = table_bytes + header.manifest_bytes
    if _CRC.unpack_from(trailer, end)[0] != crc32(trailer[:end]):
        raise Corrupt("column trailer fails its checksum")
    manifest = bytes(trailer[table_bytes:end])
    if xxh3_128(manifest) != header.manifest_digest:
        raise Corrupt("the trailer's manifest is not the one that the header names")
    block_crcs = np.frombuffer(trailer[:table_bytes], "<u4").astype(np.uint32)
    block_crcs.flags.writeable = False
    return block_crcs, manifest


def trailer_bytes(layout: Layout, manifest_bytes: int) -> int:
    """Size of one copy of the trailer."""
    return align_up(4 * layout.block_count + manifest_bytes + _CRC.size, PAGE_BYTES)


def trailer_offset(header: ColumnHeader, copy: int) -> int:
    """Where copy 0 or 1 of the trailer begins in the file."""
    assert copy in (0, 1)
    return FRAGMENTS_OFFSET + header.column_bytes + copy * header.trailer_bytes


def manifest_bytes_bound(layout: Layout) -> int:
    """Manifest bytes of any payload of this layout, known before there is one; raises Refused."""
    return manifest_bytes(layout)


def file_bytes(layout: Layout, manifest_bytes: int) -> int:
    """Size of the whole column file: what a reservation preallocates."""
    return 2 * HEADER_BYTES + layout.column_bytes + 2 * trailer_bytes(layout, manifest_bytes)
