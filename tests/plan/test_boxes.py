"""Boxes: what two share, what one leaves of another, and the first hole among many."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckpt.plan import boxes as module
from ckpt.plan.boxes import bounds_of, crossing_pairs, first_hole, intersect, subtract

Region = tuple[tuple[int, ...], tuple[int, ...]]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Region]]:
    """A shape of 0 to 3 axes and boxes inside it, none of them empty."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    boxes = draw(st.lists(regions(shape), max_size=8))
    return shape, boxes


def regions(shape: tuple[int, ...]) -> st.SearchStrategy[Region]:
    axes = [
        st.integers(0, n - 1).flatmap(lambda a, n=n: st.tuples(st.just(a), st.integers(1, n - a)))
        for n in shape
    ]
    return st.tuples(*axes).map(lambda axes: (tuple(a for a, _ in axes), tuple(n for _, n in axes)))


def filled(
    shape: tuple[int, ...], region: Region
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    cells = np.zeros(shape, dtype=np.int64)
    cells[tuple(slice(a, a + n) for a, n in zip(*region, strict=True))] = 1
    return cells


@given(tensors())
def test_crossing_pairs_are_those_that_share_an_item(
    case: tuple[tuple[int, ...], list[Region]],
) -> None:
    shape, boxes = case
    pairs = crossing_pairs(*bounds_of(boxes, len(shape)), 1000).tolist()
    expected = {
        (a, b)
        for a in range(len(boxes))
        for b in range(a + 1, len(boxes))
        if (filled(shape, boxes[a]) & filled(shape, boxes[b])).any()
    }
    assert {(min(p), max(p)) for p in pairs} == expected
    assert len(pairs) == len(expected)


@given(tensors())
def test_a_hole_is_found_exactly_when_there_is_one(
    case: tuple[tuple[int, ...], list[Region]],
) -> None:
    shape, boxes = case
    covered = np.zeros(shape, dtype=np.int64)
    for box in boxes:
        covered |= filled(shape, box)
    hole = first_hole(shape, *bounds_of(boxes, len(shape)))
    if hole is None:
        assert covered.all()
    else:
        assert not (covered & filled(shape, hole)).any()
        assert min(hole[1], default=1) >= 1


@given(tensors())
def test_a_box_is_its_part_and_the_rest(case: tuple[tuple[int, ...], list[Region]]) -> None:
    shape, boxes = case
    for a in boxes:
        for b in boxes:
            part = intersect(*a, *b)
            common = filled(shape, a) & filled(shape, b)
            assert (part is not None) == bool(common.any())
            if part is not None:
                assert (filled(shape, part) == common).all()
                rest = sum(
                    (filled(shape, piece) for piece in subtract(*a, part)),
                    np.zeros(shape, dtype=np.int64),
                )
                assert (rest + common == filled(shape, a)).all()


def test_the_sweep_in_small_portions_finds_the_same_pairs() -> None:
    side = 12
    boxes = [((x, y), (2, 2)) for x in range(side) for y in range(side)]
    bounds = bounds_of(boxes, 2)
    whole = sorted(map(sorted, crossing_pairs(*bounds, 10_000).tolist()))
    portion = module.PAIRS_AT_ONCE
    module.PAIRS_AT_ONCE = 7  # type: ignore[misc]
    try:
        assert sorted(map(sorted, crossing_pairs(*bounds, 10_000).tolist())) == whole
        assert len(crossing_pairs(*bounds, 5)) > 5
    finally:
        module.PAIRS_AT_ONCE = portion  # type: ignore[misc]


def test_a_large_grid_is_looked_at_without_comparing_all_with_all() -> None:
    side = 64
    boxes = [((8 * x, 8 * y), (8, 8)) for x in range(side) for y in range(side)]
    bounds = bounds_of(boxes, 2)
    assert len(crossing_pairs(*bounds, 1)) == 0
    assert first_hole((8 * side, 8 * side), *bounds) is None
    assert first_hole((8 * side, 8 * side), bounds[0][:-1], bounds[1][:-1]) == ((504, 504), (8, 8))
