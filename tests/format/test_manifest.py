"""Manifests come back equal, have the size that the layout foretells, and are whole or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, PayloadId, Rank, RunName, Step
from ckpt.base.limits import WORLD_SIZE_MAX
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32
from ckpt.format.layout import Layout
from ckpt.format.manifest import (
    RankManifest,
    decode_manifest,
    encode_manifest,
    manifest_bytes,
)
from tests.format.strategies import flipped, manifests, masks, positions, read_or_refused

PAYLOAD = PayloadId(CheckpointId(RunName("run"), Step(7), Generation(1, 2)), Rank(3))


@given(manifests())
def test_a_manifest_comes_back_equal(manifest: RankManifest) -> None:
    document = encode_manifest(manifest)
    assert len(document) == manifest_bytes(manifest.layout)
    found = decode_manifest(document)
    assert found == manifest
    assert found.payload == manifest.payload
    assert np.array_equal(found.fragment_crcs, manifest.fragment_crcs)
    # What is checked against it may lie with several readers.
    assert not found.fragment_crcs.flags.writeable
    assert not found.column_crcs.flags.writeable


@given(manifests(), positions, masks)
def test_a_damaged_manifest_is_refused(manifest: RankManifest, position: int, mask: int) -> None:
    with pytest.raises(Corrupt):
        decode_manifest(flipped(encode_manifest(manifest), position, mask))


@given(manifests(), positions)
def test_a_cut_manifest_is_refused(manifest: RankManifest, position: int) -> None:
    document = encode_manifest(manifest)
    with pytest.raises(Corrupt):
        decode_manifest(document[: position % len(document)])


@given(st.binary(max_size=600), st.booleans())
def test_random_bytes_are_refused(noise: bytes, with_crc: bool) -> None:
    document = noise + crc32(noise).to_bytes(4, "little") if with_crc else noise
    with pytest.raises(Corrupt):
        decode_manifest(document)


@given(manifests(), positions, masks)
def test_a_lying_writer_is_refused_or_read(
    manifest: RankManifest, position: int, mask: int
) -> None:
    body = flipped(encode_manifest(manifest)[:-4], position, mask)
    found = read_or_refused(decode_manifest, body + crc32(body).to_bytes(4, "little"))
    assert found is None or found.fragment_crcs.shape == manifest.fragment_crcs.shape


def test_a_payload_too_large_for_its_cells_is_refused() -> None:
    with pytest.raises(Refused, match="larger cells"):
        manifest_bytes(Layout(Code(4, 2), 1 << 44, 4096))


@pytest.mark.parametrize(("rank", "is_read"), [(WORLD_SIZE_MAX - 1, True), (WORLD_SIZE_MAX, False)])
def test_a_rank_that_no_world_has_is_refused(rank: int, is_read: bool) -> None:
    """Ranks are numbered below the size of the largest world."""
    layout = Layout(Code(2, 1), 8192, 4096)
    document = encode_manifest(
        RankManifest(
            PayloadId(PAYLOAD.checkpoint, Rank(rank)), LaunchNumber(1), layout.code, 1, 1,
            layout.payload_bytes, layout.cell_bytes, np.zeros((1, 3), np.uint32),
            np.zeros(3, np.uint32),
        )
    )  # fmt: skip
    if is_read:
        assert decode_manifest(document).payload.rank == rank
        return
    with pytest.raises(Corrupt, match="out of bounds"):
        decode_manifest(document)


def test_a_document_over_the_bound_is_refused_before_anything_is_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = Layout(Code(2, 1), 5 * 8192, 4096)
    document = encode_manifest(
        RankManifest(
            PAYLOAD, LaunchNumber(1), layout.code, 1, 1, layout.payload_bytes, layout.cell_bytes,
            np.zeros((5, 3), np.uint32), np.zeros(3, np.uint32),
        )
    )  # fmt: skip
    monkeypatch.setattr("ckpt.format.manifest.MANIFEST_BYTES_MAX", len(document))
    assert decode_manifest(document).layout == layout
    monkeypatch.setattr("ckpt.format.manifest.MANIFEST_BYTES_MAX", len(document) - 1)
    with pytest.raises(Corrupt, match="cannot be"):
        decode_manifest(document)
    with pytest.raises(Refused):
        manifest_bytes(layout)


@given(manifests())
def test_the_tables_do_not_alias_the_buffer(manifest: RankManifest) -> None:
    buffer = bytearray(encode_manifest(manifest))
    found = decode_manifest(buffer)
    buffer[:] = bytes(len(buffer))
    assert found == manifest
