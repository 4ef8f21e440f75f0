"""What every column knows of its whole payload: the checksums of all fragments of all n columns.

A column that is read, scrubbed or rebuilt is proved against it; any column can be restored from k
others and checked without asking anybody. Its size is a function of the layout alone, so that the
space of a column file is known before the first byte is sent.

    offset  size        type  field
         0   312        .     identity block (ckpt.format.identity), magic `CKPM`, version 1
       312     2        u16   matrix_id: 1 is ISA-L's Cauchy matrix
       314     2        u16   code_version
       316     2        u16   checksum id: 1 is IEEE CRC-32
       318     2        u16   zero
       320   4 n        u32   column_crcs, column 0 first
         .   4 n count  u32   fragment_crcs, stripe by stripe, column 0 first in each
         .     4        u32   CRC-32 of everything before
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import LaunchNumber, PayloadId
from ckpt.base.limits import MANIFEST_BYTES_MAX
from ckpt.erasure.code import Code
from ckpt.format.checksum import CHECKSUM_ID, Buffer, crc32
from ckpt.format.identity import IDENTITY_BYTES, PayloadIdentity, pack_identity, unpack_identity
from ckpt.format.layout import Layout

MAGIC: Final = b"CKPM"
VERSION: Final = 1

_KINDS = struct.Struct("<HHHH")
_CRC = struct.Struct("<I")
TABLES_OFFSET: Final = IDENTITY_BYTES + _KINDS.size


@dataclass(frozen=True, slots=True, eq=False)
class RankManifest:
    """One payload's shape and checksums. Arrays are read-only after decoding."""

    payload: PayloadId
    launch: LaunchNumber
    code: Code
    matrix_id: int
    """Of ckpt.erasure: which matrix made the parity."""
    code_version: int
    payload_bytes: int
    cell_bytes: int
    fragment_crcs: NDArray[np.uint32]
    """[stripe_count, n]: CRC-32 of each cell, its padding included."""
    column_crcs: NDArray[np.uint32]
    """[n]: CRC-32 of all fragment bytes of each column."""

    @property
    def layout(self) -> Layout:
        """How the payload is cut."""
        return Layout(self.code, self.payload_bytes, self.cell_bytes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankManifest):
            return NotImplemented
        return encode_manifest(self) == encode_manifest(other)

    def __hash__(self) -> int:
        return hash((self.payload, self.launch))


def manifest_bytes(layout: Layout) -> int:
    """Size of any manifest of this layout; raises Refused above MANIFEST_BYTES_MAX."""
    size = TABLES_OFFSET + 4 * layout.code.n * (1 + layout.stripe_count) + _CRC.size
    if size > MANIFEST_BYTES_MAX:
        raise Refused(
            f"a payload of {layout.payload_bytes} bytes in cells of {layout.cell_bytes} "
            f"needs a manifest of {size} bytes",
            hint=f"at most {MANIFEST_BYTES_MAX} are allowed: use larger cells or more ranks",
        )
    return size


def encode_manifest(manifest: RankManifest) -> bytes:
    """The document of exactly `manifest_bytes(layout)`; equal manifests give equal bytes."""
    layout, n = manifest.layout, manifest.code.n
    assert manifest.fragment_crcs.shape == (layout.stripe_count, n)
    assert manifest.column_crcs.shape == (n,)
    identity = PayloadIdentity(
        manifest.payload,
        manifest.launch,
        manifest.code,
        manifest.payload_bytes,
        manifest.cell_bytes,
    )
    body = b"".join(
        (
            pack_identity(MAGIC, VERSION, identity),
            _KINDS.pack(manifest.matrix_id, manifest.code_version, CHECKSUM_ID, 0),
            manifest.column_crcs.astype("<u4").tobytes(),
            manifest.fragment_crcs.astype("<u4").tobytes(),
        )
    )
    document = body + _CRC.pack(crc32(body))
    assert len(document) == manifest_bytes(layout)
    return document


def decode_manifest(document: Buffer) -> RankManifest:
    """The inverse; copies the tables, so the buffer may be used again. Raises Corrupt."""
    view = memoryview(document).cast("B")
    end = len(view) - _CRC.size
    if end < TABLES_OFFSET or len(view) > MANIFEST_BYTES_MAX:
        raise Corrupt(f"a manifest of {len(view)} bytes cannot be")
    if _CRC.unpack_from(view, end)[0] != crc32(view[:end]):
        raise Corrupt("manifest fails its checksum")
    identity = unpack_identity(MAGIC, VERSION, view)
    matrix_id, code_version, checksum_id, _ = _KINDS.unpack_from(view, IDENTITY_BYTES)
    if checksum_id != CHECKSUM_ID:
        raise Corrupt(
            f"manifest with checksums of kind {checksum_id}: this program knows {CHECKSUM_ID}"
        )
    n, stripe_count = identity.code.n, identity.layout.stripe_count
    if end != TABLES_OFFSET + 4 * n * (1 + stripe_count):
        raise Corrupt(
            f"a manifest of {len(view)} bytes does not fit "
            f"{stripe_count} stripes of {identity.code}"
        )
    crcs = np.frombuffer(view[TABLES_OFFSET:end], "<u4").astype(np.uint32)
    crcs.flags.writeable = False
    return RankManifest(
        payload=identity.payload,
        launch=identity.launch,
        code=identity.code,
        matrix_id=matrix_id,
        code_version=code_version,
        payload_bytes=identity.payload_bytes,
        cell_bytes=identity.cell_bytes,
        fragment_crcs=crcs[n:].reshape(stripe_count, n),
        column_crcs=crcs[:n],
    )
