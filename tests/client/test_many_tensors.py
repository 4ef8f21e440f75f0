"""States of 70,000 small tensors: every bit comes back, and the work grows with their number."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, Rank, RunName, Step
from ckpt.erasure.code import Code
from ckpt.format.index.document import Index
from ckpt.format.index.pages import IndexPayload
from ckpt.format.index.reader import IndexReader
from ckpt.format.tree import decode_tree
from ckpt.plan.reads import PayloadKey
from ckpt.testing.indexes import encode_index
from ckpt.transfer.read_set import ReadSet
from ckpt_client.load.trees import LikeWalk, own_tree, scalars_of
from ckpt_client.save.copying import HalfWriter
from ckpt_client.save.packing import plan_packing
from ckpt_client.save.state import flatten
from ckpt_client.stager.declaration import read_declaration
from tests.calls import counted
from tests.client.test_end_to_end import stop
from tests.landing import at_turn
from tests.plan.merged import merge_tables

COUNT = 70_000
"""Arrays of which some are empty. 16 bits do not count those that are left."""
CALLS_SAVE_MAX = 130
CALLS_LOAD_MAX = 45
CALLS_LIKE_MAX = 80
"""Of Python and C functions, for each tensor; one look through a page of the index would be 180."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="ckpt-many-"))
    yield f"ckpt+local://{directory}?targets=3&code=2+1"
    stop(directory)
    shutil.rmtree(directory)


def many(count: int) -> dict[str, object]:
    """Arrays of 0 to 31 numbers, and scalars between them, nested."""
    numbers = np.random.default_rng(count).integers(0, 1 << 30, count + 32, dtype=np.int32)
    layers = [
        {f"p{i}": numbers[n + i : n + i + (n + i) % 32] for i in range(min(10, count - n))}
        for n in range(0, count, 10)
    ]
    return {"layers": layers, "steps": tuple(range(100)), "names": {"a": None, "b": "x", 3: 1.5}}


def layers_of(state: object) -> list[dict[str, np.ndarray]]:
    assert isinstance(state, dict)
    found: list[dict[str, np.ndarray]] = state["layers"]
    return found


def assert_equal(found: object, wanted: dict[str, object]) -> None:
    assert isinstance(found, dict)
    assert {k: v for k, v in found.items() if k != "layers"} == {
        k: v for k, v in wanted.items() if k != "layers"
    }
    for mine, theirs in zip(layers_of(found), layers_of(wanted), strict=True):
        assert list(mine) == list(theirs)
        for name, array in theirs.items():
            assert mine[name].dtype == array.dtype
            assert np.array_equal(mine[name], array)


@at_turn(0, every=2)
def test_seventy_thousand_tensors_come_back_bit_by_bit_also_in_place(url: str) -> None:
    state = many(COUNT)
    with ckpt.open(url) as store:
        for step in (1, 2):
            layers_of(state)[step]["p1"] = layers_of(state)[step]["p1"] + step
            store.save("own", step, state, rank=0, world_size=1).wait(300)
        assert_equal(store.load("own", rank=0, world_size=1), state)
        like = many(COUNT)
        for layer in layers_of(like):
            for name, array in layer.items():
                layer[name] = np.full_like(array, -1)
        before = [layer["p9"] for layer in layers_of(like)]
        found = store.load("own", like=like, rank=0, world_size=1)
        assert_equal(found, state)
        assert all(layer["p9"] is one for layer, one in zip(layers_of(found), before, strict=True))


@at_turn(1, every=2)
def test_thousands_of_small_shards_are_cut_anew(url: str) -> None:
    wholes = {f"w{n}": np.arange(n, n + 24, dtype=np.int64).reshape(6, 4) for n in range(2000)}
    with ckpt.open(url) as store:
        saves = [
            store.save(
                "shards",
                1,
                {
                    name: ckpt.Shard(whole[3 * rank : 3 * rank + 3], (6, 4), (3 * rank, 0))
                    for name, whole in wholes.items()
                },
                rank=rank,
                world_size=2,
            )
            for rank in (0, 1)
        ]
        for save in saves:
            save.wait(120)
        for rank in range(3):
            like = {name: ckpt.Box((2 * rank, 0), (2, 4)) for name in wholes}
            found = store.load("shards", like=like, rank=rank, world_size=3)
            assert isinstance(found, dict)
            for name, whole in wholes.items():
                assert np.array_equal(found[name], whole[2 * rank : 2 * rank + 2])
        whole_state = store.load("shards", whole=True)
        assert isinstance(whole_state, dict)
        assert all(np.array_equal(whole_state[name], whole) for name, whole in wholes.items())


# --------------------------------------------------------------------------- work


def calls_of(count: int) -> tuple[int, int, int]:
    """Of a save's planning on all sides, of a load and of one in place."""
    state = many(count)

    def save() -> tuple[bytes, bytes, bytearray]:
        packing = plan_packing(flatten(state), 0, 1)
        half = bytearray(packing.layout.half_bytes)
        HalfWriter(memoryview(half)).write(packing)
        declared = read_declaration(memoryview(packing.layout.declaration))
        merged = merge_tables([declared.table])
        assert not merged.problems
        payload = IndexPayload(
            Rank(0), Code(2, 1), packing.layout.payload_bytes, 4096, 0, len(packing.document),
            bytes(16), (None, None, None), (0, 0, 0),
        )  # fmt: skip
        checkpoint = CheckpointId(RunName("run"), Step(1), Generation(1, 1))
        index = Index(checkpoint, LaunchNumber(1), 1, (payload,), merged.tensors)
        return encode_index(index), packing.document, half

    (document, tree, half), saving = counted(save)

    def reader() -> IndexReader:
        return IndexReader(lambda start, end: memoryview(document)[start:end])

    def fill(reads: ReadSet) -> None:
        reads.landings[PayloadKey(None, Rank(0))].fill(np.frombuffer(half, np.uint8))

    def load() -> object:
        reads = ReadSet()
        found = own_tree(reader(), Rank(0), decode_tree(tree), reads)
        fill(reads)
        return found

    found, loading = counted(load)
    assert_equal(found, state)

    def in_place() -> object:
        reads = ReadSet()
        scalars = scalars_of(decode_tree(tree))
        filled = LikeWalk(reader(), Rank(0), scalars, reads, strict=True).fill(found)
        fill(reads)
        return filled

    _, placing = counted(in_place)
    return saving, loading, placing


def test_the_work_for_each_tensor_stays_the_same() -> None:
    few, twice = calls_of(4000), calls_of(8000)
    for before, after in zip(few, twice, strict=True):
        assert after < 2.1 * before
    assert twice[0] < CALLS_SAVE_MAX * 8000
    assert twice[1] < CALLS_LOAD_MAX * 8000
    assert twice[2] < CALLS_LIKE_MAX * 8000
