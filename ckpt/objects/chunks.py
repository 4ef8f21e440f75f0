"""The bytes of a chunk and of a shard's index, as the codecs in `zarr.json` say.

chunk   elements (or their blosc frame), then CRC-32C of that, little-endian u32
index   for each chunk (offset, length) as little-endian u64, both 2^64-1 for an absent one;
        then CRC-32C of that

An archive has none of this: its chunks are its bytes, and it has a directory of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Final

import numpy as np
import numpy.typing as npt

from ckpt.base.errors import Corrupt
from ckpt.base.extras import needing
from ckpt.format.checksum import Buffer
from ckpt.objects.documents import ArrayPlan
from ckpt.objects.zarr_layout import BLOSC_LEVEL

ABSENT: Final = (1 << 64) - 1
CRC_BYTES: Final = 4
ENTRY_BYTES: Final = 16
Bytes = npt.NDArray[np.uint8]

_CRC = struct.Struct("<I")
_READER = "the format of object stores"


def crc32c(view: Buffer, start: int = 0) -> int:
    """CRC-32C of the bytes, continued from `start`."""
    with needing(_READER):
        import google_crc32c

    # It takes read-only memory without a lock of its own: bytes, or numpy's.
    memory = np.frombuffer(view, np.uint8)
    memory.flags.writeable = False
    return int(google_crc32c.extend(start, memory))


def encode_index(entries: Sequence[tuple[int, int] | None], array: ArrayPlan) -> bytes:
    """The index of (offset, length) of each chunk: for Zarr's readers, ours have the manifest."""
    if array.archive:
        return b""
    flat = [value for entry in entries for value in (entry or (ABSENT, ABSENT))]
    raw = struct.pack(f"<{len(flat)}Q", *flat)
    return raw + _CRC.pack(crc32c(raw))


def encode_chunk(memory: Bytes, array: ArrayPlan) -> list[Buffer]:
    """The stored bytes of a chunk's elements, as parts in order; the first may be `memory`
    itself."""
    if array.archive:
        return [memory.data]
    body = compress(memory, array.item_bytes) if array.compressed else memory.data
    return [body, _CRC.pack(crc32c(body))]


def decode_chunk(stored: memoryview, array: ArrayPlan, raw_bytes: int, where: str) -> Bytes:
    """The elements' bytes, which are so many, maybe in `stored` itself. Raises Corrupt naming
    `where`."""
    body = stored if array.archive else _checked(stored, where)
    if array.compressed:
        return _decompress(body, raw_bytes, where)
    if len(body) != raw_bytes:
        raise Corrupt(f"{where}: a chunk of {len(body)} bytes, {raw_bytes} were expected")
    return np.frombuffer(body, np.uint8)


def compress(memory: Bytes, item_bytes: int) -> bytes:
    """A blosc frame: lz4 after a bit-shuffle."""
    with needing(_READER):
        from numcodecs import blosc

    packed: bytes = blosc.compress(
        memory, b"lz4", BLOSC_LEVEL, blosc.BITSHUFFLE, typesize=item_bytes
    )
    return packed


@cache
def encoder_versions() -> str:
    """What the stored bytes of compressed chunks depend on."""
    with needing(_READER):
        return f"numcodecs {version('numcodecs')}"


def _checked(stored: memoryview, where: str) -> memoryview:
    """Without the CRC-32C that fits."""
    body, tail = stored[:-CRC_BYTES], stored[-CRC_BYTES:]
    if len(stored) < CRC_BYTES or _CRC.pack(crc32c(body)) != tail:
        raise Corrupt(f"{where}: a chunk fails its CRC-32C")
    return body


def _decompress(body: memoryview, raw_bytes: int, where: str) -> Bytes:
    with needing(_READER):
        from numcodecs import blosc

    # A blosc frame says its raw size itself; it is compared before anything is allocated.
    if len(body) < ENTRY_BYTES or struct.unpack_from("<I", body, 4)[0] != raw_bytes:
        raise Corrupt(f"{where}: a blosc frame of another size")
    out = np.empty(raw_bytes, np.uint8)
    try:
        blosc.decompress(bytes(body), out)
    except (RuntimeError, ValueError) as error:
        raise Corrupt(f"{where}: a blosc frame does not unpack: {error}") from None
    return out
