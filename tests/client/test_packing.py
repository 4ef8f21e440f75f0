"""Every byte that a rank stages has its place, all ranks together store each replica once,
and nothing overlaps.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.format.checksum import xxh3_128
from ckpt.format.dtypes import dtype_of
from ckpt.format.messages.saving import BoxQuery, ReplicaPolicy
from ckpt.format.table import Meaning, RankTable, TensorEntry
from ckpt.format.tree import decode_tree
from ckpt_client.save.copying import HalfWriter, copy_bytes
from ckpt_client.save.packing import (
    ITEM_ALIGN,
    TAIL_BYTES,
    PackingPlan,
    PackingPlanner,
    plan_packing,
)
from ckpt_client.save.shards import Replicated, Shard, Shards
from ckpt_client.save.state import flatten, unflatten
from ckpt_client.stager.declaration import read_declaration
from ckpt_client.stager.fingerprint import Fingerprinter, fingerprint_boxes
from tests.client import trees
from tests.client.bits import bits_of


def _staged(packing: PackingPlan) -> memoryview:
    half = memoryview(bytearray(b"\xaa" * packing.layout.half_bytes))
    HalfWriter(half).write(packing)
    return half


def _declaration(packing: PackingPlan, half: memoryview) -> memoryview:
    return half[packing.layout.declaration_offset : packing.layout.half_bytes]


def _fingerprinted(packing: PackingPlan, half: memoryview) -> RankTable:
    """The table with the fingerprint of every copy."""
    fingerprinter = Fingerprinter(half, read_declaration(_declaration(packing, half)))
    return fingerprinter.table(None, warn=False, refer=False)


def _read(half: memoryview, entry: TensorEntry) -> np.ndarray:
    stored = b"".join(half[p.payload_offset : p.payload_offset + p.length] for p in entry.pieces)
    return np.frombuffer(stored, dtype_of(entry.dtype), np.prod(entry.shape, dtype=int)).reshape(
        entry.shape
    )


@given(trees.states)
def test_a_staged_state_is_read_back_from_the_half_alone(state: object) -> None:
    packing = plan_packing(flatten(state), 0, 1)
    half = _staged(packing)
    table = read_declaration(_declaration(packing, half)).table
    entries = {entry.name: entry for entry in table.entries}
    root = decode_tree(half[: len(packing.document)])
    back = unflatten(root, lambda name: _read(half, entries[name]))
    assert bits_of(back) == bits_of(state)


@given(trees.states, st.integers(1, 5))
def test_items_are_aligned_and_do_not_overlap_and_zeros_follow_the_payload(
    state: object, world_size: int
) -> None:
    packing = plan_packing(
        flatten({"a": state, "r": Replicated(state)}), world_size - 1, world_size
    )
    half = _staged(packing)
    end = len(packing.document)
    for span in packing.layout.spans:
        assert span.offset % ITEM_ALIGN == 0
        assert span.offset >= end
        end = span.offset + span.length
    assert end <= packing.layout.declaration_offset
    assert bytes(
        half[packing.layout.payload_bytes : packing.layout.payload_bytes + TAIL_BYTES]
    ) == bytes(TAIL_BYTES)


def _replicas() -> dict[str, object]:
    numbers = np.random.default_rng(1)
    return {
        "large": Replicated(np.asfortranarray(numbers.random((700, 901)))),
        "odd": Replicated(numbers.random(1_100_003).astype("<f2")[::-1]),
        "text": Replicated(np.array(["abc"] * 100_001, "<U3").reshape(11, -1).T),
        "small": Replicated({"n": 7, "a": np.arange(5)}),
        "own": np.arange(9),
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_all_ranks_together_store_every_replicated_byte_once_and_in_balance(
    world_size: int,
) -> None:
    flat = flatten(_replicas())
    stored: dict[str, list[tuple[int, bytes]]] = {}
    sizes = []
    for rank in range(world_size):
        packing = plan_packing(flat, rank, world_size)
        half = _staged(packing)
        sizes.append(packing.layout.payload_bytes)
        for entry in read_declaration(_declaration(packing, half)).table.entries:
            for piece in entry.pieces:
                data = bytes(half[piece.payload_offset : piece.payload_offset + piece.length])
                if entry.meaning is Meaning.REPLICATED:
                    stored.setdefault(entry.name, []).append((piece.start, data))
    for leaf in flat.leaves:
        if leaf.meaning is Meaning.REPLICATED:
            pieces = sorted(stored[leaf.name])
            assert b"".join(data for _, data in pieces) == leaf.array.tobytes()
            starts = np.cumsum([0, *(len(data) for _, data in pieces)])[:-1]
            assert [start for start, _ in pieces] == list(starts)
    assert max(sizes) - min(sizes) < 2 << 20


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_rank_fingerprints_its_whole_replica(rank: int) -> None:
    flat = flatten(_replicas())
    packing = plan_packing(flat, rank, 3)
    half = _staged(packing)
    table = _fingerprinted(packing, half)
    for leaf, entry in zip(flat.leaves, table.entries, strict=True):
        whole = xxh3_128(leaf.array.tobytes())
        assert entry.fingerprint == (whole if leaf.meaning is Meaning.REPLICATED else b"")


def test_replicas_that_may_differ_are_stored_whole_by_each_rank() -> None:
    packing = plan_packing(flatten(_replicas()), 1, 3, ReplicaPolicy.KEEP)
    declaration = read_declaration(_declaration(packing, _staged(packing)))
    assert not declaration.witnesses
    for entry, leaf in zip(declaration.table.entries, flatten(_replicas()).leaves, strict=True):
        assert sum(piece.length for piece in entry.pieces) == leaf.array.nbytes


@given(trees.arrays(), st.data())
def test_any_byte_range_of_any_array_is_copied(array: np.ndarray, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, array.nbytes))
    end = data.draw(st.integers(start, array.nbytes))
    target = np.zeros(end - start, np.uint8)
    copy_bytes(array, start, target)
    assert target.tobytes() == array.tobytes()[start:end]


def test_a_box_of_a_shard_is_fingerprinted_by_global_offset() -> None:
    whole = np.random.default_rng(2).random((40, 30, 20)).astype(">f4")
    shard = Shard(whole[10:30, 5:], whole.shape, (10, 5, 0))
    packing = plan_packing(flatten({"w": shard}), 0, 2)
    half = _staged(packing)
    declared = read_declaration(_declaration(packing, half))
    asked = [((12, 7, 3), (9, 20, 10)), ((10, 5, 0), (20, 25, 20)), ((15, 5, 0), (0, 1, 1))]
    boxes = [BoxQuery("w", offset, shape) for offset, shape in asked]
    for (offset, shape), digest in zip(
        asked, fingerprint_boxes(half, declared, boxes), strict=True
    ):
        inside = tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))
        assert digest == xxh3_128(whole[inside].tobytes())


def test_a_box_that_the_rank_does_not_hold_is_an_error() -> None:
    packing = plan_packing(flatten({"w": Shard(np.zeros((2, 2)), (4, 2), (2, 0))}), 0, 2)
    half = _staged(packing)
    declared = read_declaration(_declaration(packing, half))
    for box in (
        BoxQuery("w", (1, 0), (1, 1)),
        BoxQuery("x", (2, 0), (1, 1)),
        BoxQuery("w", (2,), (1,)),
    ):
        with pytest.raises(Corrupt):
            fingerprint_boxes(half, declared, [box])


def test_holders_of_a_box_share_its_writing_and_each_fingerprints_it_whole() -> None:
    box = np.random.default_rng(3).random((1500, 200))
    shard = Shard(box, (3000, 200), (1500, 0), (0, 2))
    stored: list[tuple[int, bytes]] = []
    tables = []
    for rank in shard.holders:
        packing = plan_packing(flatten({"m": np.zeros(rank), "w": shard}), rank, 3)
        half = _staged(packing)
        tables.append(_fingerprinted(packing, half))
        for piece in tables[-1].entries[1].pieces:
            data = bytes(half[piece.payload_offset : piece.payload_offset + piece.length])
            stored.append((piece.start, data))
    assert len(stored) == 2
    assert b"".join(data for _, data in sorted(stored)) == box.tobytes()
    assert {table.entries[1].fingerprint for table in tables} == {xxh3_128(box.tobytes())}
    assert {table.entries[0].fingerprint for table in tables} == {b""}


def test_a_box_that_others_store_in_part_is_fingerprinted_from_stored_bytes_and_witness() -> None:
    box = np.random.default_rng(4).random((3000, 100))
    packing = plan_packing(flatten({"w": Shard(box, (4000, 100), (500, 0), (0, 1))}), 1, 2)
    half = _staged(packing)
    declared = read_declaration(_declaration(packing, half))
    assert declared.witnesses
    (digest,) = fingerprint_boxes(half, declared, [BoxQuery("w", (600, 10), (2500, 30))])
    assert digest == xxh3_128(box[100:2600, 10:40].tobytes())


def test_holders_that_leave_this_rank_out_are_refused_by_path() -> None:
    flat = flatten({"a": {"w": Shard(np.zeros(4), (4,), (0,), (0, 2))}})
    with pytest.raises(Refused, match=r"a/w: holders \(0, 2\) do not fit rank 1 of 3"):
        plan_packing(flat, 1, 3)
    with pytest.raises(Refused, match=r"do not fit rank 0 of 2"):
        plan_packing(flat, 0, 2)
    with pytest.raises(Refused, match="do not ascend"):
        Shard(np.zeros(4), (4,), (0,), (2, 1))


def test_several_boxes_of_a_tensor_share_a_name_and_are_found_by_offset() -> None:
    boxes = tuple(Shard(np.full((2, 3), n), (8, 3), (4 * n, 0)) for n in (1, 0))
    packing = plan_packing(flatten({"w": Shards(boxes)}), 0, 1)
    half = _staged(packing)
    declared = read_declaration(_declaration(packing, half))
    assert [(e.name, e.offset) for e in declared.table.entries] == [("w", (0, 0)), ("w", (4, 0))]
    (digest,) = fingerprint_boxes(half, declared, [BoxQuery("w", (5, 0), (1, 3))])
    assert digest == xxh3_128(np.full((1, 3), 1).tobytes())
    with pytest.raises(Refused, match="Shards are boxes of one tensor"):
        Shards((boxes[0], Shard(np.zeros(2), (2,), (0,))))


def test_a_declaration_that_does_not_parse_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        read_declaration(memoryview(b"\xff\x00"))


@given(st.lists(trees.states, min_size=1, max_size=3), st.data())
def test_a_planner_that_remembers_stages_what_one_that_does_not_would(
    states: list[object], data: st.DataObject
) -> None:
    planner = PackingPlanner()
    for _ in range(6):
        state = data.draw(st.sampled_from(states))
        replicated = data.draw(st.booleans())
        world_size = data.draw(st.integers(1, 3))
        rank = data.draw(st.integers(0, world_size - 1))
        kept = data.draw(st.sampled_from(ReplicaPolicy))
        found = planner.plan(state, rank, world_size, kept, replicated=replicated)
        fresh = plan_packing(flatten(state, replicated=replicated), rank, world_size, kept)
        assert _staged(found) == _staged(fresh)


def _counting(number: int, **more: object) -> dict[str, object]:
    """A state as a training has it: of one form, with other values at each step."""
    return {
        "step": number,
        "lr": Replicated(0.1 / number),
        "w": {"a": np.full((50, 3), number, "f4"), ("t", 1): np.full(7, number, ">i8").T},
        "rows": [Shard(np.full((2, 5), number), (4, 5), (2, 0)), np.float64(number)],
        **more,
    }


def test_a_state_of_the_same_form_is_recognised_and_its_new_values_are_staged() -> None:
    planner = PackingPlanner()
    first = planner.plan(_counting(1), 0, 1)
    half = HalfWriter(memoryview(bytearray(b"\xaa" * first.layout.half_bytes)))
    half.write(first)
    second = planner.plan(_counting(2), 0, 1)
    assert second.layout is first.layout
    half.write(second)
    assert half.memory == _staged(plan_packing(flatten(_counting(2)), 0, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1.5j},
        {"step": 1 << 70},
        {"step": "x" * 10_000},
        {"more": np.zeros(3)},
        {"w": {"a": np.zeros((3, 50), "f4"), ("t", 1): np.zeros(7, ">i8")}},
        {"w": {"a": np.zeros((50, 3), "f8"), ("t", 1): np.zeros(7, ">i8")}},
        {"w": {"a": np.zeros((50, 3), "f4"), ("t", True): np.zeros(7, ">i8")}},
        {"w": {("t", 1): np.zeros(7, ">i8"), "a": np.zeros((50, 3), "f4")}},
        {"rows": (Shard(np.zeros((2, 5)), (4, 5), (2, 0)), np.float64(1))},
        {"rows": [Shard(np.zeros((2, 5), int), (4, 5), (1, 0)), np.float64(1)]},
        {"rows": [Shard(np.zeros((2, 5), int), (4, 5), (2, 0), (0,)), np.float64(1)]},
        {"lr": Replicated("a text")},
        {"lr": 0.1},
    ],
)
def test_what_changed_is_staged_as_a_new_planner_would_stage_it(change: dict[str, object]) -> None:
    planner = PackingPlanner()
    planner.plan(_counting(1), 0, 1)
    state = _counting(2, **change)
    assert _staged(planner.plan(state, 0, 1)) == _staged(plan_packing(flatten(state), 0, 1))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"step": object()}, "step"),
        ({"step": "\ud800"}, "step"),
        ({"w": {"a": np.ma.masked_array([[0.0] * 3] * 50, dtype="f4")}}, "w/a"),
        ({"w": {"a": np.array([None] * 9)}}, "w/a"),
        ({1.5: 1}, "1.5"),
        ({"rows": [Shard(np.zeros((2, 5), object), (4, 5), (2, 0)), np.float64(1)]}, "rows/#0"),
    ],
)
def test_a_leaf_that_went_bad_is_refused_by_path_also_in_a_known_form(
    change: dict[object, object], path: str
) -> None:
    planner = PackingPlanner()
    planner.plan(_counting(1), 0, 1)
    with pytest.raises(Refused, match=path):
        planner.plan({**_counting(2), **change}, 0, 1)
    assert planner.plan(_counting(3), 0, 1).document, "and the planner is as good as new"


class Turning:
    """What becomes an array, and turns a dict's order when it does: as another thread might."""

    def __init__(self, turned: dict[str, object]) -> None:
        self._turned = turned

    def __array__(self, *_: object, **__: object) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        first = next(iter(self._turned))
        self._turned[first] = self._turned.pop(first)
        return np.arange(3)


def test_an_order_that_turns_in_a_save_moves_no_value_to_another_name() -> None:
    planner = PackingPlanner()
    for number in range(6):
        inner: dict[str, object] = {"a": np.full(9, number), "b": np.full(9, number + 100)}
        state = {"inner": inner, "turning": Turning(inner)}
        if number % 2:
            inner["a"] = inner.pop("a")
        planned = planner.plan(state, 0, 1)
        found = dict(zip(planned.layout.names, planned.arrays, strict=True))
        for name in ("a", "b"):
            assert found[f"inner/{name}"] is inner[name], number


def test_a_state_that_grew_is_laid_out_anew() -> None:
    planner = PackingPlanner()
    for count in (10, 10, 11, 10):
        state = {"step": 3, "a": np.arange(count), "b": np.zeros(5, ">f4")}
        half = _staged(packing := planner.plan(state, 0, 1))
        assert read_declaration(_declaration(packing, half)).table.entries[0].shape == (count,)
