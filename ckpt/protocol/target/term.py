"""The highest coordinator term that a target has acknowledged, as a file: magic, u64, CRC-32.
And whose it is, as a second one, which counts only while it names the same term: a version that
does not know it leaves it be. A third says what a coordinator, and whoever else comes, has to speak
(docs/decisions/0041): it only grows, whatever the term is.

A new term is written aside and renamed. On a device without a free byte the two files are written
over where they lie, which takes no room: first whose it is, then the term. So at each moment one of
them is whole, and a term file that is torn is known by the other.
"""

from __future__ import annotations

import struct
from functools import partial

from ckpt.format.checksum import crc32
from ckpt.protocol.target.core import Step
from ckpt.protocol.target.disk_events import (
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    WriteAt,
)

TERM_FILE = "term"
_TERM = struct.Struct("<4sQ")
_TERM_MAGIC = b"CKPT"
COORDINATOR_FILE = "coordinator"
_COORDINATOR = struct.Struct("<4sQ16s")
_COORDINATOR_MAGIC = b"CKPC"
PROTOCOL_FILE = "protocol"
_PROTOCOL = struct.Struct("<4sI")
_PROTOCOL_MAGIC = b"CKPV"
PROCESS_BYTES = 16
"""Of a coordinator's incarnation."""


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


def noted_term(term_file: bytes, coordinator_file: bytes) -> int:
    """The highest term that was acknowledged; 0 for none. A term file that was torn as it was
    written over is no matter: the other was durable before.
    """
    term = decode_term(term_file)
    if term is None and term_file:
        named = _decoded_coordinator(coordinator_file)
        term = named[0] if named is not None else None
    return term or 0


def encode_coordinator(term: int, process: bytes) -> bytes:
    """The `coordinator` file: magic, u64 term, 16 bytes, CRC-32 of all three, little-endian."""
    body = _COORDINATOR.pack(_COORDINATOR_MAGIC, term, process)
    return body + crc32(body).to_bytes(4, "little")


def decode_coordinator(data: bytes, term: int) -> bytes:
    """Whose term it is; empty when the bytes say nothing of this term."""
    named = _decoded_coordinator(data)
    return named[1] if named is not None and named[0] == term else b""


def _decoded_coordinator(data: bytes) -> tuple[int, bytes] | None:
    body = data[: _COORDINATOR.size]
    if len(data) != _COORDINATOR.size + 4 or crc32(body) != int.from_bytes(data[-4:], "little"):
        return None
    magic, term, process = _COORDINATOR.unpack(body)
    return (int(term), bytes(process)) if magic == _COORDINATOR_MAGIC else None


def encode_protocol(version: int) -> bytes:
    """The `protocol` file: magic, u32 version, CRC-32 of both, all little-endian."""
    body = _PROTOCOL.pack(_PROTOCOL_MAGIC, version)
    return body + crc32(body).to_bytes(4, "little")


def decode_protocol(data: bytes) -> int:
    """The inverse; 0 when the bytes are no such file."""
    body = data[: _PROTOCOL.size]
    if len(data) != _PROTOCOL.size + 4 or crc32(body) != int.from_bytes(data[-4:], "little"):
        return 0
    magic, version = _PROTOCOL.unpack(body)
    return int(version) if magic == _PROTOCOL_MAGIC else 0


def protocol_steps(version: int, aside: str) -> list[Step]:
    """How it becomes durable what one has to speak; the name of a file for what is on its way."""
    steps = _written(aside, encode_protocol(version), PROTOCOL_FILE)
    return [*steps, partial(SyncDirectory, directory="")]


def term_steps(term: int, process: bytes, named: str, aside: str) -> list[Step]:
    """How a term becomes durable, and before it whose it is, which it makes count; two names of
    files for what is on its way.
    """
    steps = _written(named, encode_coordinator(term, process), COORDINATOR_FILE) if process else []
    steps += _written(aside, encode_term(term), TERM_FILE)
    return [*steps, partial(SyncDirectory, directory="")]


def overwrite_steps(term: int, process: bytes) -> list[Step]:
    """The same without any room, where both files are."""
    named, whole = encode_coordinator(term, process), encode_term(term)
    return [
        partial(WriteAt, file=COORDINATOR_FILE, offset=0, data=named),
        partial(SyncFile, file=COORDINATOR_FILE),
        partial(WriteAt, file=TERM_FILE, offset=0, data=whole),
        partial(SyncFile, file=TERM_FILE),
    ]


def remove_steps(*asides: str) -> list[Step]:
    """What was on its way goes."""
    return [partial(RemoveFile, file=aside) for aside in asides]


def _written(aside: str, data: bytes, file: str) -> list[Step]:
    return [
        partial(WriteAt, file=aside, offset=0, data=data),
        partial(SyncFile, file=aside),
        partial(RenameFile, old=aside, new=file),
    ]
