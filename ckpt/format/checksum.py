"""Which checksums guard our bytes: IEEE CRC-32 against damage, xxh3-128 for equality of content.

CRC-32 may be combined: the checksum of a column comes from those of its blocks without reading a
byte again. It never decides that two contents are equal; xxh3-128 does. All functions take
contiguous buffers as they are and copy nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Final

import xxhash

Buffer = bytes | bytearray | memoryview

XXH3_BYTES: Final = 16
CHECKSUM_ID: Final = 1
"""In every format that names its checksum: 1 is IEEE CRC-32 over blocks of BLOCK_BYTES."""

_POLYNOMIAL: Final = 0xEDB88320
"""IEEE 802.3, bit-reversed: bit 31 is x^0."""


def crc32_concat(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of a concatenation, from (checksum, length in bytes) of each part in order."""
    total = 0
    for crc, length in parts:
        total = crc32_combine(total, crc, length)
    return total


def crc32_combine_pure(a: int, b: int, length_b: int) -> int:
    """`crc32_combine` by arithmetic alone: n more bytes multiply by x^8n modulo the polynomial."""
    assert length_b >= 0
    factor = _ONE
    square = 0x00800000  # x^8: one byte
    while length_b:
        if length_b & 1:
            factor = _multiply(factor, square)
        square = _multiply(square, square)
        length_b >>= 1
    return _multiply(a, factor) ^ b


_ONE: Final = 0x80000000


def _multiply(a: int, b: int) -> int:
    """a * b in GF(2)[x] modulo the polynomial, both bit-reversed."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def xxh3_128(view: Buffer) -> bytes:
    """xxh3-128 of the bytes: 16 bytes, big-endian as its authors print it."""
    return xxhash.xxh3_128_digest(view)


class Xxh3:
    """xxh3-128 of bytes that come in pieces."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, view: Buffer) -> None:
        """Append the bytes."""
        self._state.update(view)

    def digest(self) -> bytes:
        """The 16 bytes for all that was appended so far."""
        return self._state.digest()


crc32: Callable[..., int]
"""`crc32(view, start=0)`: CRC-32 of the bytes, continued from `start`, the checksum of what came
before. The library's own function: a cell of 4 MiB calls it 32 times.
"""
crc32_combine: Callable[[int, int, int], int]
"""`crc32_combine(a, b, length_b)`: CRC-32 of A followed by B, from their checksums and B's length
in bytes.
"""
try:
    from isal.isal_zlib import crc32, crc32_combine
except ImportError:  # no wheel for this platform: slower by a factor of ten, equal in value
    crc32, crc32_combine = zlib.crc32, crc32_combine_pure
