"""How every MessagePack document is wrapped: who it is, how long it is, and whether it is whole.

    offset  size  type  field
         0     4  bytes magic
         4     1  u8    version of the document
         5     1  u8    packing: 0 stored, 1 lz4 block
         6     2  u16   zero
         8     8  u64   raw_bytes: length of the MessagePack body
        16     8  u64   body_bytes: length of what follows this envelope
        24     4  u32   zero
        28     4  u32   CRC-32 of the 28 bytes before and the body
        32     .  bytes body

All numbers are little-endian. The raw size is bounded before anything is unpacked.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, TypeVar

import lz4.block
import msgspec

from ckpt.base.errors import Corrupt
from ckpt.format.checksum import Buffer, crc32

ENVELOPE_BYTES: Final = 32

_Value = TypeVar("_Value")

_HEAD = struct.Struct("<4sBBHQQI")
_CRC = struct.Struct("<I")


class Packing(IntEnum):
    """How the body is stored; the numbers are on disk."""

    STORED = 0
    LZ4 = 1


def wrap(magic: bytes, version: int, raw: bytes, packing: Packing) -> bytes:
    """The document: envelope and body."""
    body = compress(raw) if packing is Packing.LZ4 else raw
    head = _HEAD.pack(magic, version, packing, 0, len(raw), len(body), 0)
    return b"".join((head, _CRC.pack(crc32(body, crc32(head))), body))


def unwrap(magic: bytes, version: int, document: Buffer, raw_bytes_max: int) -> bytes:
    """The MessagePack body of the document that begins the buffer (padding may follow).

    Raises Corrupt when it is another document, another version, too large, cut or damaged.
    """
    view = memoryview(document).cast("B")
    found_magic, found_version, packing, _, raw_bytes, body_bytes = _head_of(view)
    name = magic.decode("ascii")
    if found_magic != magic:
        raise Corrupt(f"not a {name} document: it begins with {found_magic!r}")
    body = view[ENVELOPE_BYTES : ENVELOPE_BYTES + body_bytes]
    if len(body) != body_bytes:
        raise Corrupt(f"{name} document of {body_bytes} bytes is cut at {len(body)}")
    if _CRC.unpack_from(view, _HEAD.size)[0] != crc32(body, crc32(view[: _HEAD.size])):
        raise Corrupt(f"{name} document fails its checksum")
    if found_version != version:
        raise Corrupt(f"{name} document of version {found_version}: this program reads {version}")
    if raw_bytes > raw_bytes_max:
        raise Corrupt(f"{name} document of {raw_bytes} bytes: at most {raw_bytes_max} are allowed")
    match packing:
        case Packing.STORED if raw_bytes == body_bytes:
            return bytes(body)
        case Packing.LZ4:
            return decompress(body, raw_bytes)
        case _:
            raise Corrupt(
                f"{name} document of packing {packing}, {body_bytes} for {raw_bytes} bytes"
            )


def decode_body(decoder: msgspec.msgpack.Decoder[_Value], raw: bytes) -> _Value:
    """The typed value of a MessagePack body; raises Corrupt when it does not parse."""
    try:
        return decoder.decode(raw)
    # msgspec lets invalid UTF-8 and too deep nesting out as they are.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a document body does not parse: {error}") from None


def compress(raw: Buffer) -> bytes:
    """One lz4 block without its size in front."""
    return lz4.block.compress(raw, store_size=False)  # type: ignore[no-any-return]


def decompress(block: Buffer, raw_bytes: int) -> bytes:
    """The raw bytes of an lz4 block; the caller has bounded `raw_bytes`. Raises Corrupt."""
    try:
        raw: bytes = lz4.block.decompress(block, uncompressed_size=raw_bytes)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise Corrupt(f"an lz4 block of {len(block)} bytes does not unpack: {error}") from None
    if len(raw) != raw_bytes:
        raise Corrupt(f"an lz4 block unpacks to {len(raw)} bytes instead of {raw_bytes}")
    return raw


def _head_of(view: memoryview) -> tuple[bytes, int, int, int, int, int]:
    if len(view) < ENVELOPE_BYTES:
        raise Corrupt(f"a document of {len(view)} bytes has no envelope")
    magic, version, packing, zero, raw_bytes, body_bytes, _ = _HEAD.unpack_from(view)
    return magic, version, packing, zero, raw_bytes, body_bytes
