"""What a target keeps of its scrub on stable storage: when each file was read last, how far the
pass is, and what was found.

    offset  size  what
         0    32  envelope (ckpt.format.envelope), magic `CKPR`, version 1
        32     .  MessagePack of ScrubNote; `readings`: for each file, 8 bytes of the digest of its
                  name, u32 seconds of the wall clock, little-endian

Times are the wall clock's: a process's own time says nothing to its next life. One that is in the
future counts as now, so that a clock that was wrong costs a reading and no more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.errors import Corrupt
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer, xxh3_128
from ckpt.format.envelope import Packing, decode_body, unwrap, wrap
from ckpt.format.messages.targets import Rot

SCRUB_FILE: Final = "scrub"
NOTE_BYTES_MAX: Final = 64 * MiB
_MAGIC: Final = b"CKPR"
_VERSION: Final = 1
_READING: Final = struct.Struct("<8sI")


class ScrubNote(Struct, frozen=True, gc=False):
    """All of it."""

    pass_began_s: int = 0
    """Of the one under way, else of the last one; 0: none began."""
    pass_ended_s: int = 0
    is_running: bool = False
    is_asked: bool = False
    file: str = ""
    """The one that is being read; empty: none."""
    offset: int = 0
    """Cells of it before this were compared."""
    rot: tuple[Rot, ...] = ()
    readings: bytes = b""
    whole_since_s: int | None = None
    """The begin of the last pass that is over; 0: none is. None: of an earlier version."""


_DECODER: Final = msgspec.msgpack.Decoder(ScrubNote)


def encode_scrub_note(note: ScrubNote) -> bytes:
    """The `scrub` file."""
    return wrap(_MAGIC, _VERSION, msgspec.msgpack.encode(note), Packing.STORED)


def decode_scrub_note(data: Buffer) -> ScrubNote | None:
    """The inverse; None when the bytes are not a note: then all is read again, soon."""
    try:
        return decode_body(_DECODER, unwrap(_MAGIC, _VERSION, data, NOTE_BYTES_MAX))
    except Corrupt:
        return None


def whole_since_of(note: ScrubNote) -> int:
    """The begin of the last pass that is over, in seconds; 0: none is, as far as is known."""
    if note.whole_since_s is not None:
        return note.whole_since_s
    is_over = bool(note.pass_ended_s) and not note.is_running
    return note.pass_began_s if is_over else 0


def digest_of(file: str) -> bytes:
    """By which a note knows a file."""
    return xxh3_128(file.encode())[:8]


def pack_readings(readings: Iterable[tuple[bytes, int]]) -> bytes:
    """Digest of its name, and seconds, of each file."""
    return b"".join(_READING.pack(digest, max(0, at_s)) for digest, at_s in readings)


def unpack_readings(packed: bytes) -> dict[bytes, int]:
    """Digest of a file's name to seconds."""
    whole = len(packed) - len(packed) % _READING.size
    return dict(_READING.iter_unpack(packed[:whole]))
