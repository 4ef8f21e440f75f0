"""Every process can say what every other one holds; compressibility and copies are as asked."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptbench.workload import (
    PAGE_BYTES,
    StatePlan,
    content,
    empty_state,
    fill,
    is_equal,
    overlaps,
    rank_boxes,
    reader_boxes,
)

PLANS = st.builds(
    StatePlan,
    rank_bytes=st.lists(st.integers(1, 8).map(lambda pages: pages * PAGE_BYTES), min_size=1, max_size=4).map(tuple),
    tensor_bytes=st.sampled_from([(16, 5000), (PAGE_BYTES, PAGE_BYTES), (1 << 20, 1 << 20)]),
    dtype=st.sampled_from(["bfloat16", "float32", "uint8"]),
    refill=st.booleans(),
    seed=st.integers(0, 5),
)  # fmt: skip


def held(plan: StatePlan, rank: int, *steps: int) -> dict[str, np.ndarray]:
    """What a rank holds after these steps."""
    state = empty_state(plan, rank_boxes(plan, rank))
    last = None
    for step in steps:
        fill(plan, rank, state, step, last)
        last = step
    return state.arrays


@given(PLANS)
def test_a_rank_holds_exactly_its_bytes_and_parts_make_up_the_whole(plan: StatePlan) -> None:
    for rank, size in enumerate(plan.rank_bytes):
        arrays = held(plan, rank, 1)
        assert sum(array.nbytes for array in arrays.values()) == size
    for readers in (1, 3):
        for index, parts in enumerate(plan.extents()):
            boxes = [
                box
                for reader in range(readers)
                for box in reader_boxes(plan, reader, readers)
                if box.index == index
            ]
            assert sum(box.count for box in boxes) == sum(count for _, count in parts)


@given(PLANS, st.integers(1, 3))
def test_boxes_put_together_from_other_ranks_are_equal(plan: StatePlan, readers: int) -> None:
    everyone = [held(plan, rank, 1, 4) for rank in range(plan.world_size)]
    for reader in range(readers):
        boxes = reader_boxes(plan, reader, readers)
        state = empty_state(plan, boxes)
        for box in boxes:
            for rank, first, count, skipped in overlaps(plan, box):
                part = everyone[rank][box.name][skipped : skipped + count]
                state.arrays[box.name][first : first + count] = part
        assert is_equal(plan, 4, boxes, state.arrays)
        assert not boxes or not is_equal(plan, 5, boxes, state.arrays)


def test_one_wrong_bit_and_one_missing_tensor_are_seen() -> None:
    plan = StatePlan((8192,), (4096, 4096))
    arrays, boxes = held(plan, 0, 1), rank_boxes(plan, 0)
    assert is_equal(plan, 1, boxes, arrays)
    arrays["layer1"].view(np.uint8)[77] ^= 1
    assert not is_equal(plan, 1, boxes, arrays)
    assert not is_equal(plan, 1, boxes, {"layer0": arrays["layer0"]})


def test_arenas_begin_every_tensor_on_a_page() -> None:
    plan = StatePlan((12288,), (100, 5000), seed=3)
    state = empty_state(plan, rank_boxes(plan, 0))
    assert all(offset % PAGE_BYTES == 0 for offset in state.offsets)
    assert len(state.memory) % PAGE_BYTES == 0


@pytest.mark.parametrize(
    ("compress", "low", "high"), [(0, 0.98, 1.05), (50, 0.4, 0.6), (100, 0, 0.1)]
)
def test_so_much_can_be_compressed(compress: int, low: float, high: float) -> None:
    plan = StatePlan((1 << 17,), (1 << 17, 1 << 17), compress_percent=compress)
    words = content(plan, 0, 0, 3, 1 << 15).tobytes()
    assert low <= len(lzma.compress(words, preset=0)) / len(words) <= high


def test_so_many_pages_are_copies() -> None:
    plan = StatePlan((1 << 20,), (1 << 20, 1 << 20), dedupe_percent=50)
    pages = content(plan, 0, 0, 1, 1 << 18).reshape(-1, 1024)
    unique = len({page.tobytes() for page in pages})
    assert 0.35 * len(pages) < unique < 0.65 * len(pages)
    assert (
        len(
            {
                p.tobytes()
                for p in content(StatePlan((4096,), (16, 16)), 0, 0, 1, 1 << 18).reshape(-1, 1024)
            }
        )
        == 256
    )


def test_a_refilled_state_has_nothing_of_the_one_before() -> None:
    plan = StatePlan((1 << 16,), (1 << 16, 1 << 16), refill=True)
    one, two = content(plan, 0, 0, 1, 1 << 14), content(plan, 0, 0, 2, 1 << 14)
    assert np.mean(one == two) < 0.01
    assert np.mean(two - one == 1) < 0.01
