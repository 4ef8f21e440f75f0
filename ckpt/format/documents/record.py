"""The two facts of a checkpoint's life: the commit record and the tombstone.

Each is a MessagePack map by field name in an envelope (`ckpt.format.envelope`; `CKPR` and `CKPS`,
version 1, stored), at most one page. A target stores it twice (`file.py`), so that one damaged page
does not lose the fact.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import CheckpointId, TargetId, check_checkpoint
from ckpt.base.limits import COMMIT_RECORD_BYTES_MAX, INDEX_BYTES_MAX, PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.format.checksum import XXH3_BYTES, Buffer
from ckpt.format.envelope import ENVELOPE_BYTES, Packing, decode_body, unwrap, wrap
from ckpt.format.messages.saving import CommitInfo

RECORD_MAGIC: Final = b"CKPR"
TOMBSTONE_MAGIC: Final = b"CKPS"
VERSION: Final = 1
REASON_CHARS_MAX: Final = 256

assert COMMIT_RECORD_BYTES_MAX <= PAGE_BYTES
_RECORD_BODY_BYTES_MAX: Final = COMMIT_RECORD_BYTES_MAX - ENVELOPE_BYTES


class CommitRecord(Struct, frozen=True):
    """The checkpoint is committed. What is not in here can be found from here."""

    cluster: str
    info: CommitInfo
    index_digest: bytes
    """xxh3-128 of the index document."""
    index_bytes: int
    index_targets: tuple[TargetId, ...]
    term: int
    """The coordinator's, when it decided."""


class Tombstone(Struct, frozen=True):
    """The checkpoint is deleted, or will never commit; nobody resurrects its columns."""

    cluster: str
    checkpoint: CheckpointId
    term: int
    reason: str


def fitting(record: CommitRecord) -> CommitRecord:
    """The record with as many of its warnings as fit beside the rest."""
    while record.info.warnings and len(_ENCODER.encode(record)) > _RECORD_BODY_BYTES_MAX:
        record = replace(record, info=replace(record.info, warnings=record.info.warnings[:-1]))
    return record


def encode_record(record: CommitRecord) -> bytes:
    """The document, at most COMMIT_RECORD_BYTES_MAX."""
    return _encode(RECORD_MAGIC, record)


def decode_record(document: Buffer) -> CommitRecord:
    """The inverse; zeros may follow it. Raises Corrupt."""
    record = _decode(RECORD_MAGIC, _RECORD, document)
    _check_checkpoint(record.info.checkpoint)
    try:
        Code.parse(record.info.code)
    except Refused as error:
        raise Corrupt(f"commit record: {error.message}") from None
    if len(record.index_digest) != XXH3_BYTES or not 0 < record.index_bytes <= INDEX_BYTES_MAX:
        raise Corrupt("commit record: it names no possible index")
    return record


def encode_tombstone(tombstone: Tombstone) -> bytes:
    """The document, at most one page; a longer reason is cut."""
    return _encode(TOMBSTONE_MAGIC, replace(tombstone, reason=tombstone.reason[:REASON_CHARS_MAX]))


def decode_tombstone(document: Buffer) -> Tombstone:
    """The inverse; zeros may follow it. Raises Corrupt."""
    tombstone = _decode(TOMBSTONE_MAGIC, _TOMBSTONE, document)
    _check_checkpoint(tombstone.checkpoint)
    return tombstone


_Fact = TypeVar("_Fact", CommitRecord, Tombstone)

_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORD: Final = msgspec.msgpack.Decoder(CommitRecord)
_TOMBSTONE: Final = msgspec.msgpack.Decoder(Tombstone)


def _encode(magic: bytes, value: CommitRecord | Tombstone) -> bytes:
    document = wrap(magic, VERSION, _ENCODER.encode(value), Packing.STORED)
    assert len(document) <= COMMIT_RECORD_BYTES_MAX, "all its texts are bounded"
    return document


def _decode(magic: bytes, decoder: msgspec.msgpack.Decoder[_Fact], document: Buffer) -> _Fact:
    return decode_body(decoder, unwrap(magic, VERSION, document, COMMIT_RECORD_BYTES_MAX))


def _check_checkpoint(checkpoint: CheckpointId) -> None:
    try:
        check_checkpoint(checkpoint)
    except Refused as error:
        raise Corrupt(error.message) from None
