"""Headers of document files: equal or refused, never anything else."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId
from ckpt.base.limits import INDEX_BYTES_MAX, PAGE_BYTES
from ckpt.format.checksum import crc32
from ckpt.format.documents.file import (
    DocumentHeader,
    decode_document_header,
    document_name,
    encode_document_header,
)
from tests.format.strategies import checkpoints, flipped, masks, positions, read_or_refused

headers = st.builds(
    DocumentHeader,
    cluster=st.text("0123456789abcdef", min_size=1, max_size=64),
    kind=st.sampled_from(["index", "record", "tombstone"]),
    checkpoint=checkpoints,
    total_bytes=st.integers(0, INDEX_BYTES_MAX),
    digest=st.binary(min_size=16, max_size=16),
)


def page_of(meta: bytes) -> bytes:
    """A page with a right checksum around any meta."""
    body = (struct.pack("<4sBBHI", b"CKPD", 1, 2, 0, len(meta)) + meta).ljust(PAGE_BYTES - 4, b"\0")
    return body + crc32(body).to_bytes(4, "little")


@given(headers)
def test_a_header_comes_back_equal(header: DocumentHeader) -> None:
    assert decode_document_header(encode_document_header(header)) == header


@given(headers)
def test_copies_lie_one_behind_the_other_between_two_header_pages(header: DocumentHeader) -> None:
    ends = [header.copy_offset(copy) + header.padded_bytes for copy in range(header.copies)]
    assert header.copy_offset(0) == PAGE_BYTES
    assert ends[-1] + PAGE_BYTES == header.file_bytes
    assert header.copies == 1 or header.copy_offset(1) == ends[0]


@given(headers, positions, masks)
def test_a_damaged_header_is_refused(header: DocumentHeader, position: int, mask: int) -> None:
    with pytest.raises(Corrupt):
        decode_document_header(flipped(encode_document_header(header), position, mask))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(noise: bytes) -> None:
    for page in (noise, page_of(noise)):
        with pytest.raises(Corrupt):
            decode_document_header(page)


@given(headers, positions, masks)
def test_a_lying_header_is_refused_or_read(
    header: DocumentHeader, position: int, mask: int
) -> None:
    page = encode_document_header(header)
    size = struct.unpack_from("<I", page, 8)[0]
    found = read_or_refused(
        decode_document_header, page_of(flipped(page[12 : 12 + size], position, mask))
    )
    assert found is None or 0 <= found.total_bytes <= INDEX_BYTES_MAX


@pytest.mark.parametrize(
    ("run", "step"), [("../x", 1), ("", 1), ("r", -1)], ids=["segments", "empty", "step"]
)
def test_a_checkpoint_that_cannot_be_is_refused(run: str, step: int) -> None:
    meta = msgspec.msgpack.encode(("c", "index", run, step, 1, 1, 0, bytes(16)))
    with pytest.raises(Corrupt):
        decode_document_header(page_of(meta))


@given(checkpoints, checkpoints)
def test_names_are_safe_and_tell_checkpoints_apart(a: CheckpointId, b: CheckpointId) -> None:
    assert "/" not in document_name("index", a)
    assert (document_name("index", a) == document_name("index", b)) == (a == b)
