"""The pure parts: names, grids, element types and trees."""

from __future__ import annotations

import math
import string
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import Generation, Rank
from ckpt.format.dtypes import dtype_name
from ckpt.format.tree import (
    DictNode,
    LeafNode,
    ListNode,
    Node,
    ScalarNode,
    TupleNode,
    leaf_names,
)
from ckpt.objects import names
from ckpt.objects.elements import element_of
from ckpt.objects.grid import Region, cut
from ckpt.objects.planning import WriteOptions, make_plan
from ckpt.objects.trees import decode_trees, encode_trees
from ckpt.plan.boxes import intersect
from tests.objects.sources import HEADER, MemorySource

# --------------------------------------------------------------------------- names


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_names_never_share_a_key(a: str, b: str) -> None:
    assert (names.node_path(a) == names.node_path(b)) == (a == b)


@given(st.text(min_size=1, max_size=30))
def test_a_key_is_plain_everywhere(name: str) -> None:
    path = names.node_path(name)
    assert set(path) <= set(string.ascii_letters + string.digits + "._-=/")
    for part in path.split("/"):
        assert part
        assert part not in (".", "..", "c", "zarr.json")
        assert not part.startswith("__")


def test_a_generation_has_a_folder_of_its_own() -> None:
    prefix = names.generation_prefix("team/llama 7b", 500, Generation(2, 17))
    assert prefix == "team/llama=207b@500/2.17/"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/run@12", ("s3://bucket", "run", 12)),
        ("s3://bucket/a/b/run@12", ("s3://bucket/a/b", "run", 12)),
        ("s3://bucket/a//team/run@12", ("s3://bucket/a", "team/run", 12)),
        ("file:///scratch/store/run", ("file:///scratch/store", "run", None)),
        ("obstore+s3://bucket/run@0", ("obstore+s3://bucket", "run", 0)),
    ],
)
def test_a_url_names_store_run_and_step(url: str, parts: tuple[str, str, int | None]) -> None:
    assert names.parse_stored(url) == parts


@pytest.mark.parametrize("url", ["run@12", "s3://bucket/run@new", "s3://", "s3://bucket/run@"])
def test_a_url_without_them_is_refused(url: str) -> None:
    with pytest.raises(Refused):
        names.parse_stored(url)


# --------------------------------------------------------------------------- grids

SHAPES = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.sampled_from([1, 2, 4, 16]), st.integers(16, 2000), st.integers(1, 20))
def test_chunks_cover_every_item_once(
    shape: tuple[int, ...], item_bytes: int, chunk_bytes: int, chunks: int
) -> None:
    grid = cut(shape, item_bytes, chunk_bytes, chunk_bytes * chunks)
    seen = np.zeros(shape, np.int8)
    pairs = zip(grid.shard_shape, grid.chunk_shape, strict=True)
    in_shard = math.prod(shard // chunk for shard, chunk in pairs)
    for number in range(grid.shard_count):
        assert grid.shard_number(grid.shard_at(number)) == number
        regions = list(grid.chunks(grid.shard_at(number)))
        assert len(regions) == in_shard
        for region in regions:
            if region is not None:
                pairs = zip(region.offset, region.shape, strict=True)
                seen[tuple(slice(offset, offset + size) for offset, size in pairs)] += 1
    assert (seen == 1).all()
    assert grid.chunk_bytes <= max(chunk_bytes, item_bytes)
    assert math.prod(grid.shard_shape) * item_bytes <= max(chunk_bytes * chunks, grid.chunk_bytes)


@given(SHAPES, st.data())
def test_the_shards_of_a_region_are_those_that_share_an_item(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    grid = cut(shape, 1, 64, 256)
    offset = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    size = tuple(data.draw(st.integers(1, n - o)) for n, o in zip(shape, offset, strict=True))
    found = list(grid.shards_of(Region(offset, size)))
    expected = [
        at
        for at in product(*(range(count) for count in grid.shard_counts))
        if intersect(
            offset, size, tuple(a * s for a, s in zip(at, grid.shard_shape, strict=True)),
            grid.shard_shape,
        )
    ]  # fmt: skip
    assert found == expected


def test_sizes_are_evened_so_that_edges_waste_little() -> None:
    grid = cut((1001, 1 << 20), 4)
    assert grid.chunk_shape == (2, 1 << 20)
    assert math.prod(grid.shard_shape) * 4 <= 128 << 20
    assert grid.shard_count == 32


def test_a_row_larger_than_a_chunk_is_cut_on_the_next_axis() -> None:
    grid = cut((3, 10, 1 << 20), 8)
    assert grid.chunk_shape == (1, 1, 1 << 20)


# --------------------------------------------------------------------------- elements, trees


def test_what_zarr_has_is_stored_as_it_is() -> None:
    found = {
        name: element_of(name, portable=False).data_type for name in ("|b1", "<f4", ">i8", "<c16")
    }
    assert found == {"|b1": "bool", "<f4": "float32", ">i8": "int64", "<c16": "complex128"}
    assert element_of(">i8", portable=False).endian == "big"


@pytest.mark.parametrize("name", ["<U7", "<M8[ns]", "int4", dtype_name(np.dtype(np.longdouble))])
def test_what_zarr_lacks_is_carried_as_bytes(name: str) -> None:
    element = element_of(name, portable=False)
    assert (element.data_type, element.logical_dtype) == ("uint8", name)
    assert element.stored_shape((3,)) == (3, element.bytes_axis)


KEYS: st.SearchStrategy[object] = st.one_of(
    st.text(max_size=5), st.booleans(), st.integers(), st.tuples(st.text(max_size=3), st.integers())
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.binary(max_size=8), st.complex_numbers(),
).map(ScalarNode)  # fmt: skip
NODES: st.SearchStrategy[Node] = st.recursive(
    SCALARS | st.text(max_size=8).map(LeafNode),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: ListNode(tuple(items))),
        st.lists(inner, max_size=3).map(lambda items: TupleNode(tuple(items))),
        st.lists(st.tuples(KEYS, inner), max_size=3, unique_by=lambda pair: repr(pair[0])).map(
            lambda items: DictNode(tuple(items))  # type: ignore[arg-type]
        ),
    ),
    max_leaves=12,
)


@given(NODES, NODES)
def test_trees_come_back_exactly(a: Node, b: Node) -> None:
    trees = {Rank(0): a, Rank(1): a, Rank(2): b, Rank(3): a}
    found = decode_trees(encode_trees(trees))
    assert repr(dict(sorted(found.items()))) == repr(
        trees
    )  # repr tells NaN from NaN with nothing, and 1 from True.
    assert [*leaf_names(found[Rank(2)])] == [*leaf_names(b)]


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"trees": [{"ranks": [[0, 0]], "tree": {"x": 1}}]}', b'{"trees": [NaN]}']
)
def test_a_document_that_cannot_be_is_refused(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_trees(raw)


# --------------------------------------------------------------------------- plans


def test_small_tensors_are_packed_and_large_ones_have_an_array() -> None:
    source = MemorySource({"small": np.zeros(100), "large": np.zeros(1 << 17)})
    plan = make_plan(HEADER, source.tensors(), WriteOptions(compression="none"), list)
    assert [array.path for array in plan.arrays] == ["packed/0.zip", "tensors/large"]
    assert [tensor.places[0].array for tensor in plan.tensors] == [0, 1]
    assert [tensor.places[0].path for tensor in plan.tensors] == ["tensors/small", ""]


def test_a_name_that_is_also_a_folder_gets_a_place_of_its_own() -> None:
    big = np.zeros(1 << 18)
    source = MemorySource({"a": big, "a/b": big, "b/x": big, "b": big})
    plan = make_plan(HEADER, source.tensors(), WriteOptions(compression="none"), list)
    paths = [array.path for array in plan.arrays]
    assert paths == ["tensors/a", "tensors/==2/a/b", "tensors/b/x", "tensors/==2/b"]


@pytest.mark.parametrize(
    "options", [{"compression": "zip"}, {"chunk_bytes": 1 << 20}, {"shard_bytes": 1 << 30}]
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(Refused):
        WriteOptions(**options)  # type: ignore[arg-type]
