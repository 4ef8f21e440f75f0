"""What a column header and a rank manifest begin with: whose bytes, and how they were cut.

    offset  size  type  field
         0     4  bytes magic
         4     1  u8    version of the document
         5     1  u8    k
         6     1  u8    m
         7     1  u8    run_bytes
         8     8  u64   step
        16     8  u64   generation term
        24     8  u64   generation counter
        32     8  u64   launch
        40     8  u64   payload_bytes, true length
        48     4  u32   cell_bytes
        52     4  u32   rank
        56   256  bytes run, UTF-8, then zeros

All numbers are little-endian. The run name has room for its longest form, so that sizes do not
hang on it.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import (
    CheckpointId,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    check_run_name,
    check_step,
)
from ckpt.base.limits import (
    CELL_BYTES_MAX,
    PAGE_BYTES,
    PAYLOAD_BYTES_MAX,
    RUN_NAME_BYTES_MAX,
    WORLD_SIZE_MAX,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer
from ckpt.format.layout import Layout

_BLOCK = struct.Struct("<4sBBBBQQQQQII256s")
IDENTITY_BYTES: Final = _BLOCK.size

assert IDENTITY_BYTES == 312
assert RUN_NAME_BYTES_MAX < 256, "its length is one byte and its place 256"


class PayloadIdentity(Struct, frozen=True, gc=False):
    """One payload, by whom it was written, and its shape."""

    payload: PayloadId
    launch: LaunchNumber
    code: Code
    payload_bytes: int
    cell_bytes: int

    @property
    def layout(self) -> Layout:
        """How the payload is cut."""
        return Layout(self.code, self.payload_bytes, self.cell_bytes)


def pack_identity(magic: bytes, version: int, identity: PayloadIdentity) -> bytes:
    """The block of IDENTITY_BYTES."""
    checkpoint = identity.payload.checkpoint
    run = checkpoint.run.encode()
    return _BLOCK.pack(
        magic,
        version,
        identity.code.k,
        identity.code.m,
        len(run),
        checkpoint.step,
        checkpoint.generation.term,
        checkpoint.generation.counter,
        identity.launch,
        identity.payload_bytes,
        identity.cell_bytes,
        identity.payload.rank,
        run,
    )


def unpack_identity(magic: bytes, version: int, block: Buffer) -> PayloadIdentity:
    """From a document whose checksum was compared; raises Corrupt on a value that cannot be."""
    (
        found_magic, found_version, k, m, run_bytes, step, term, counter, launch,
        payload_bytes, cell_bytes, rank, run,
    ) = _BLOCK.unpack_from(block)  # fmt: skip
    name = magic.decode("ascii")
    if found_magic != magic:
        raise Corrupt(f"not a {name} document: it begins with {found_magic!r}")
    if found_version != version:
        raise Corrupt(f"{name} document of version {found_version}: this program reads {version}")
    if payload_bytes > PAYLOAD_BYTES_MAX or rank >= WORLD_SIZE_MAX:
        raise Corrupt(f"{name} document: rank {rank} with {payload_bytes} bytes is out of bounds")
    if not PAGE_BYTES <= cell_bytes <= CELL_BYTES_MAX or cell_bytes % PAGE_BYTES:
        raise Corrupt(f"{name} document: cells of {cell_bytes} bytes are out of bounds")
    try:
        checkpoint = CheckpointId(
            check_run_name(run[:run_bytes].decode()), check_step(step), Generation(term, counter)
        )
        code = Code(k, m)
    except (Refused, UnicodeDecodeError) as error:
        raise Corrupt(f"{name} document: {error}") from None
    payload = PayloadId(checkpoint, Rank(rank))
    return PayloadIdentity(payload, LaunchNumber(launch), code, payload_bytes, cell_bytes)
