"""Shares of what all ranks hold: together they are all of it, and no rank writes much more."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.limits import PAGE_BYTES
from ckpt.plan.replicas import LEAF_BYTES_WHOLE, leaf_parts, share_replicas

MiB = 1 << 20
SIZES = st.lists(
    st.one_of(st.integers(0, 3 * MiB), st.integers(0, 64), st.just(0), st.integers(0, 1 << 36)),
    max_size=30,
)


@given(SIZES, st.integers(1, 64))
def test_shares_cover_every_byte_once_and_are_balanced(sizes: list[int], world_size: int) -> None:
    cuts = share_replicas(sizes, world_size)

    assert len(cuts) == world_size + 1
    assert (cuts[0], cuts[-1]) == (0, sum(sizes))
    assert cuts == sorted(cuts)
    small = max((size for size in sizes if size < LEAF_BYTES_WHOLE), default=0)
    mean = sum(sizes) / world_size
    assert max(b - a for a, b in pairwise(cuts)) - mean <= MiB + small


@given(SIZES, st.integers(1, 64))
def test_a_cut_falls_on_a_leaf_border_or_on_a_page_of_a_large_leaf(
    sizes: list[int], world_size: int
) -> None:
    starts = list(accumulate(sizes, initial=0))
    for cut in share_replicas(sizes, world_size):
        inside = [
            (cut - start, size)
            for start, size in zip(starts, sizes, strict=False)
            if start < cut < start + size
        ]
        assert all(size >= LEAF_BYTES_WHOLE and at % PAGE_BYTES == 0 for at, size in inside)


@given(SIZES, st.integers(1, 16))
def test_leaf_parts_of_all_shares_are_the_leaves(sizes: list[int], world_size: int) -> None:
    stored: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for start, end in pairwise(share_replicas(sizes, world_size)):
        parts = leaf_parts(sizes, start, end)
        assert sum(last - first for _, first, last in parts) == end - start
        for leaf, first, last in parts:
            stored[leaf].append((first, last))
    for size, parts_of_leaf in zip(sizes, stored, strict=True):
        borders = [0, *(last for _, last in parts_of_leaf)]
        assert borders[:-1] == [first for first, _ in parts_of_leaf]
        assert borders[-1] == size


def test_the_cuts_are_frozen() -> None:
    assert share_replicas([3 * MiB, 8192, 512 * 1024, 5 * MiB], 4) == [
        0,
        2228224,
        4460544,
        6688768,
        8921088,
    ]
    assert share_replicas([10, 10, 10], 3) == [0, 10, 20, 30]
    assert share_replicas([10, 30, 10], 2) == [0, 10, 50]
    assert share_replicas([30, 10], 2) == [0, 30, 40]
    assert share_replicas([], 3) == [0, 0, 0, 0]
    assert share_replicas([MiB + 5], 3) == [0, 348160, 700416, MiB + 5]
