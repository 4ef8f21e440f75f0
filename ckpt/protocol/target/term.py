"""The highest coordinator term that a target has acknowledged, as a file: magic, u64, CRC-32."""

from __future__ import annotations

import struct

from ckpt.format.checksum import crc32

TERM_FILE = "term"
_TERM = struct.Struct("<4sQ")
_TERM_MAGIC = b"CKPT"


def encode_term(term: int) -> bytes:
    """The `term` file: magic, u64 term, CRC-32 of both, all little-endian."""
    body = _TERM.pack(_TERM_MAGIC, term)
    return body + crc32(body).to_bytes(4, "little")


def decode_term(data: bytes) -> int | None:
    """The inverse; None when the bytes are not a term file."""
    body = data[: _TERM.size]
    if len(data) != _TERM.size + 4 or crc32(body) != int.from_bytes(data[-4:], "little"):
        return None
    magic, term = _TERM.unpack(body)
    return int(term) if magic == _TERM_MAGIC else None
