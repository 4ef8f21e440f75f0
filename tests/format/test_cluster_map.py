"""A cluster's map whose parts cannot be read is refused before it takes a good one's place."""

from __future__ import annotations

import msgspec
import pytest

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CatalogPosition
from ckpt.format.documents.cluster_map import ClusterMap, decode_map, encode_map

NONE = msgspec.msgpack.encode([])


@pytest.mark.parametrize("part", [b"", NONE[:-1] + b"\xc1", msgspec.msgpack.encode([["t0"]])])
def test_entries_that_cannot_be_read_are_refused(part: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_map(encode_map(ClusterMap("c0ffee", CatalogPosition(4, 2), part, b"")))


@pytest.mark.parametrize("part", [b"\xc1", msgspec.msgpack.encode({"t0": "one"})])
def test_groups_that_cannot_be_read_are_refused(part: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_map(encode_map(ClusterMap("c0ffee", CatalogPosition(4, 2), NONE, part)))


def test_a_map_of_no_targets_is_one() -> None:
    empty = ClusterMap("c0ffee", CatalogPosition(4, 2), NONE, b"")
    assert decode_map(encode_map(empty)) == empty
    assert empty.targets == ()
