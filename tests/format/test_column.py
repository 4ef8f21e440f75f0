"""Column files: headers and trailers come back equal; one flipped byte never loses both copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnId, ColumnNumber
from ckpt.base.limits import PAGE_BYTES
from ckpt.format import column
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.column import (
    FRAGMENTS_OFFSET,
    HEADER_BYTES,
    ColumnHeader,
    decode_header,
    decode_trailer,
    encode_header,
    encode_trailer,
    file_bytes,
    manifest_bytes_bound,
    trailer_bytes,
    trailer_offset,
)
from ckpt.format.manifest import RankManifest, encode_manifest
from tests.format.strategies import flipped, headers, manifests, masks, positions, read_or_refused


def column_file(manifest: RankManifest) -> tuple[ColumnHeader, bytes]:
    """The header and the whole file of a payload's last column, with zeros as fragments."""
    layout, document = manifest.layout, encode_manifest(manifest)
    fragments = bytes(layout.column_bytes)
    header = ColumnHeader(
        cluster="c1",
        column=ColumnId(manifest.payload, ColumnNumber(layout.code.n - 1)),
        launch=manifest.launch,
        code=layout.code,
        payload_bytes=layout.payload_bytes,
        cell_bytes=layout.cell_bytes,
        column_bytes=layout.column_bytes,
        column_crc=crc32(fragments),
        trailer_bytes=trailer_bytes(layout, len(document)),
        manifest_bytes=len(document),
        manifest_digest=xxh3_128(document),
    )
    page = encode_header(header)
    trailer = encode_trailer(np.arange(layout.block_count, dtype=np.uint32), document)
    return header, b"".join((page, fragments, trailer, trailer, page))


def whole_parts(header: ColumnHeader, image: bytes) -> tuple[list[ColumnHeader], list[bytes]]:
    """What can still be read: headers and manifests, of two copies each."""
    pages: list[ColumnHeader] = []
    documents: list[bytes] = []
    for page in (image[:HEADER_BYTES], image[-HEADER_BYTES:]):
        try:
            pages.append(decode_header(page))
        except Corrupt:
            continue
    for copy in (0, 1):
        start = trailer_offset(header, copy)
        try:
            crcs, document = decode_trailer(header, image[start : start + header.trailer_bytes])
        except Corrupt:
            continue
        assert crcs.tolist() == list(range(header.layout.block_count))
        documents.append(document)
    return pages, documents


@given(headers())
def test_a_header_comes_back_equal(header: ColumnHeader) -> None:
    page = encode_header(header)
    assert len(page) == PAGE_BYTES
    assert decode_header(memoryview(page)) == header


@given(headers(), positions, masks)
def test_a_damaged_header_is_refused(header: ColumnHeader, position: int, mask: int) -> None:
    with pytest.raises(Corrupt):
        decode_header(flipped(encode_header(header), position, mask))


@given(headers(), st.integers(0, 431), masks)
def test_a_lying_header_is_refused_or_read(header: ColumnHeader, position: int, mask: int) -> None:
    body = flipped(encode_header(header)[:-4], position, mask)
    found = read_or_refused(decode_header, body + crc32(body).to_bytes(4, "little"))
    assert found is None or found.column_bytes == found.layout.column_bytes


@given(st.binary(max_size=5000))
def test_random_bytes_are_no_header(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_header(noise)


@given(manifests(), st.data(), masks)
def test_one_flipped_byte_loses_neither_header_nor_manifest(
    manifest: RankManifest, data: st.DataObject, mask: int
) -> None:
    header, image = column_file(manifest)
    assert whole_parts(header, image) == ([header] * 2, [encode_manifest(manifest)] * 2)
    front = data.draw(st.booleans())
    position = data.draw(st.integers(0, HEADER_BYTES - 1))
    trailer = data.draw(st.integers(0, 2 * header.trailer_bytes + HEADER_BYTES - 1))
    position = position if front else FRAGMENTS_OFFSET + header.column_bytes + trailer
    pages, documents = whole_parts(header, flipped(image, position, mask))
    assert header in pages
    assert encode_manifest(manifest) in documents


@given(manifests())
def test_the_file_has_the_size_that_was_reserved(manifest: RankManifest) -> None:
    header, image = column_file(manifest)
    bound = manifest_bytes_bound(manifest.layout)
    assert len(image) == file_bytes(manifest.layout, bound) == header.file_bytes
    assert len(image) % PAGE_BYTES == 0


@given(manifests())
def test_another_payloads_trailer_is_refused(manifest: RankManifest) -> None:
    header, image = column_file(manifest)
    start = trailer_offset(header, 0)
    trailer = image[start : start + header.trailer_bytes]
    with pytest.raises(Corrupt, match="not the one"):
        decode_trailer(replace(header, manifest_digest=bytes(16)), trailer)
    with pytest.raises(Corrupt):
        decode_trailer(header, trailer[:-1])


@given(headers())
def test_a_header_with_checksums_of_another_kind_is_refused_by_name(header: ColumnHeader) -> None:
    """A program to come wrote it: whole, and not to be read with ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column, "CHECKSUM_ID", column.CHECKSUM_ID + 1)
        page = encode_header(header)
    with pytest.raises(Corrupt, match="checksums of kind"):
        decode_header(page)
