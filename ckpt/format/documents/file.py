"""The file in which a target keeps a small document: an index, a commit record, labels, a
tombstone.

    offset                     size         field
    0                          4096         header page
    4096                       padded       the document, zero-padded to the page
    4096 + padded              padded       again, when it is at most 64 KiB
    file size - 4096           4096         header page again

    header page: 0  4  magic `CKPD`   4  1  version   5  1  copies   6  2  zero
                 8  4  meta_bytes     12 …  MessagePack of DocumentHeader's other fields
                 4092  4  CRC-32 of the bytes before it

A large document (an index) holds its own second copies and checksums inside.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import msgspec

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import CheckpointId, Generation, check_run_name, check_step
from ckpt.base.limits import INDEX_BYTES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, align_up
from ckpt.format.checksum import Buffer, crc32, xxh3_128
from ckpt.format.envelope import decode_body

DOCUMENT_MAGIC: Final = b"CKPD"
DOCUMENT_VERSION: Final = 1
DOUBLED_BYTES_MAX: Final = 64 * KiB
"""A document up to this size is written twice."""

_HEAD = struct.Struct("<4sBBHI")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class DocumentHeader:
    """Whose document it is, and how to see that it is whole."""

    cluster: str
    kind: str
    """`index`, `record`, `labels` or `tombstone`."""
    checkpoint: CheckpointId
    total_bytes: int
    digest: bytes
    """xxh3-128 of the document."""

    @property
    def copies(self) -> int:
        return _copies(self.total_bytes)

    @property
    def padded_bytes(self) -> int:
        return align_up(self.total_bytes, PAGE_BYTES)

    @property
    def file_bytes(self) -> int:
        return document_file_bytes(self.total_bytes)

    def copy_offset(self, copy: int) -> int:
        """Where a copy of the document begins in the file."""
        assert 0 <= copy < self.copies
        return PAGE_BYTES + copy * self.padded_bytes


def document_file_bytes(total_bytes: int) -> int:
    """Of the file of a document of so many bytes."""
    return 2 * PAGE_BYTES + _copies(total_bytes) * align_up(total_bytes, PAGE_BYTES)


def _copies(total_bytes: int) -> int:
    return 2 if total_bytes <= DOUBLED_BYTES_MAX else 1


def document_name(kind: str, checkpoint: CheckpointId) -> str:
    """The file's name: the run's name only as a digest, so that it is never used as a path."""
    run = xxh3_128(checkpoint.run.encode()).hex()
    return f"{kind}-{run}-{checkpoint.step}-{checkpoint.generation}"


def encode_document_header(header: DocumentHeader) -> bytes:
    """One page."""
    generation = header.checkpoint.generation
    meta = msgspec.msgpack.encode(
        (
            header.cluster, header.kind, header.checkpoint.run, header.checkpoint.step,
            generation.term, generation.counter, header.total_bytes, header.digest,
        )
    )  # fmt: skip
    head = _HEAD.pack(DOCUMENT_MAGIC, DOCUMENT_VERSION, header.copies, 0, len(meta))
    body = (head + meta).ljust(PAGE_BYTES - _CRC.size, b"\0")
    assert len(body) == PAGE_BYTES - _CRC.size, "names are bounded, so the meta fits the page"
    return body + _CRC.pack(crc32(body))


_META = msgspec.msgpack.Decoder(tuple[str, str, str, int, int, int, int, bytes])


def decode_document_header(page: Buffer) -> DocumentHeader:
    """The inverse; raises Corrupt when the page is not a header or fails its checksum."""
    if len(page) != PAGE_BYTES:
        raise Corrupt(f"document header of {len(page)} bytes")
    body = bytes(page[: -_CRC.size])
    magic, version, copies, _, meta_bytes = _HEAD.unpack_from(body)
    if magic != DOCUMENT_MAGIC or _CRC.unpack(page[-_CRC.size :])[0] != crc32(body):
        raise Corrupt("document header fails its checksum")
    if version != DOCUMENT_VERSION:
        raise Corrupt(f"document header of version {version}")
    cluster, kind, run, step, term, counter, total_bytes, digest = decode_body(
        _META, body[_HEAD.size : _HEAD.size + meta_bytes]
    )
    try:
        checkpoint = CheckpointId(check_run_name(run), check_step(step), Generation(term, counter))
    except Refused as error:
        raise Corrupt(f"document header: {error.message}") from None
    header = DocumentHeader(cluster, kind, checkpoint, total_bytes, digest)
    if not 0 <= total_bytes <= INDEX_BYTES_MAX or len(digest) != 16 or header.copies != copies:
        raise Corrupt("document header contradicts itself")
    return header
