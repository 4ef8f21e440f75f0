"""A cluster's map whose parts cannot be read is refused before it takes a good one's place."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CatalogPosition, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, TARGET_ID_BYTES_MAX, WORLD_SIZE_MAX
from ckpt.format.documents.cluster_map import (
    TARGETS_BYTES_MAX,
    ClusterMap,
    MapEntry,
    decode_map,
    encode_map,
    make_map,
    target_bytes,
)
from ckpt.protocol.coordinator.cluster.claims import TEXT_BYTES_MAX

LONGEST = TARGET_ID_BYTES_MAX, TEXT_BYTES_MAX, TEXT_BYTES_MAX
"""Of a target's id, domain and directory."""
NONE = msgspec.msgpack.encode([])


@pytest.mark.parametrize("part", [b"", NONE[:-1] + b"\xc1", msgspec.msgpack.encode([["t0"]])])
def test_entries_that_cannot_be_read_are_refused(part: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_map(encode_map(ClusterMap("c0ffee", CatalogPosition(4, 2), part, b"")))


@pytest.mark.parametrize("part", [b"\xc1", msgspec.msgpack.encode({"t0": "one"})])
def test_groups_that_cannot_be_read_are_refused(part: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_map(encode_map(ClusterMap("c0ffee", CatalogPosition(4, 2), NONE, part)))


def test_the_map_of_as_much_as_there_may_be_travels_in_one_frame() -> None:
    """Of texts that cannot be packed, each as long as one may be."""
    texts = np.random.default_rng(1)
    entries: list[MapEntry] = []
    size = 0
    while True:
        words = [texts.integers(33, 127, count, np.uint8).tobytes().decode() for count in LONGEST]
        id, domain, directory = TargetId(words[0]), words[1], words[2]
        size += target_bytes(id, domain, directory)
        if size > TARGETS_BYTES_MAX:
            break
        entries.append(MapEntry(id, domain, directory, texts.bytes(16), "draining"))
    groups = {entry.target: WORLD_SIZE_MAX for entry in entries}
    made = make_map("c" * 64, CatalogPosition(1 << 62, 1 << 62), tuple(entries), groups)
    document = encode_map(made)
    assert 0.9 * FRAME_BULK_BYTES_MAX < len(document) <= FRAME_BULK_BYTES_MAX
    assert decode_map(document) == made


def test_a_map_of_no_targets_is_one() -> None:
    empty = ClusterMap("c0ffee", CatalogPosition(4, 2), NONE, b"")
    assert decode_map(encode_map(empty)) == empty
    assert empty.targets == ()
