"""Boxes of a global tensor: which ones cross, and what a set of them leaves uncovered.

A box is (offset, shape), both with one number for each axis; a 0-d tensor has one box, ((), ()).
Many boxes are int64 arrays `starts` and `ends` of shape [box_count, axis_count], ends exclusive.
Everything here is exact; the loops over boxes are numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Extent = tuple[int, ...]
Bounds = npt.NDArray[np.int64]

PAIRS_AT_ONCE: Final = 1 << 20
"""Candidate pairs that are expanded in memory at once."""


def volume_of(shape: Extent) -> int:
    """Items in a box; 1 without axes."""
    return math.prod(shape)


def bounds_of(boxes: Sequence[tuple[Extent, Extent]], axis_count: int) -> tuple[Bounds, Bounds]:
    """(starts, ends) of (offset, shape) pairs."""
    starts = np.array([offset for offset, _ in boxes], dtype=np.int64).reshape(
        len(boxes), axis_count
    )
    shapes = np.array([shape for _, shape in boxes], dtype=np.int64).reshape(len(boxes), axis_count)
    return starts, starts + shapes


def intersect(
    offset: Extent, shape: Extent, other_offset: Extent, other_shape: Extent
) -> tuple[Extent, Extent] | None:
    """The common part of two boxes, or None when they share no item."""
    starts = tuple(map(max, offset, other_offset))
    ends = tuple(
        min(a + n, b + m)
        for a, n, b, m in zip(offset, shape, other_offset, other_shape, strict=True)
    )
    if any(a >= b for a, b in zip(starts, ends, strict=True)):
        return None
    return starts, tuple(b - a for a, b in zip(starts, ends, strict=True))


def subtract(
    offset: Extent, shape: Extent, part: tuple[Extent, Extent]
) -> list[tuple[Extent, Extent]]:
    """Disjoint boxes that make up a box without `part`, which lies inside it;
    at most two for each axis.
    """
    rest: list[tuple[Extent, Extent]] = []
    low, size = list(offset), list(shape)
    for axis, (start, count) in enumerate(zip(*part, strict=True)):
        end = low[axis] + size[axis]
        for first, last in ((low[axis], start), (start + count, end)):
            if first < last:
                rest.append(
                    (
                        (*low[:axis], first, *low[axis + 1 :]),
                        (*size[:axis], last - first, *size[axis + 1 :]),
                    )
                )
        low[axis], size[axis] = start, count
    return rest


def crossing_pairs(starts: Bounds, ends: Bounds, pair_count_max: int) -> npt.NDArray[np.int64]:
    """Index pairs [pair_count, 2] of boxes that share an item; none of the boxes is empty.

    Sweep (Bentley and Ottmann's idea for boxes): in order of their start on one axis, a box can
    only cross those that start before it ends. The axis with fewest such candidates is swept, the
    others filter. Stops soon after `pair_count_max` pairs.
    """
    box_count, axis_count = starts.shape
    if axis_count == 0:
        return np.stack(np.triu_indices(box_count, 1), axis=1)[: pair_count_max + 1]
    if box_count < 2:
        return np.empty((0, 2), dtype=np.int64)
    order, counts = min(
        (_sweep(starts[:, a], ends[:, a]) for a in range(axis_count)), key=lambda s: int(s[1].sum())
    )

    found: list[npt.NDArray[np.int64]] = []
    found_count = row = 0
    reach = np.cumsum(counts)
    while row < box_count and found_count <= pair_count_max:
        done = int(reach[row - 1]) if row else 0
        stop = max(row + 1, int(np.searchsorted(reach, done + PAIRS_AT_ONCE, side="right")))
        pairs = order[_expand(row, counts[row:stop])]
        a, b = pairs[:, 0], pairs[:, 1]
        pairs = pairs[((starts[a] < ends[b]) & (starts[b] < ends[a])).all(axis=1)]
        found.append(pairs)
        found_count += len(pairs)
        row = stop
    return np.concatenate(found)


def first_hole(shape: Extent, starts: Bounds, ends: Bounds) -> tuple[Extent, Extent] | None:
    """A box of a tensor of this shape that no given box covers, or None when every item is covered.

    All boxes lie inside the tensor. Coordinates are compressed: between two neighbouring starts or
    ends on an axis nothing changes, so one look at each slab is exact.
    """
    if 0 in shape:
        return None
    if not shape:
        return None if len(starts) else ((), ())
    if len(shape) == 1:
        return _first_gap(shape[0], starts[:, 0], ends[:, 0])
    cuts = sorted({0, shape[0], *starts[:, 0].tolist(), *ends[:, 0].tolist()})
    for low, high in pairwise(cuts):
        inside = (starts[:, 0] <= low) & (ends[:, 0] >= high)
        hole = first_hole(shape[1:], starts[inside, 1:], ends[inside, 1:])
        if hole is not None:
            return (low, *hole[0]), (high - low, *hole[1])
    return None


# --------------------------------------------------------------------------- helpers


def _sweep(starts: Bounds, ends: Bounds) -> tuple[npt.NDArray[np.intp], Bounds]:
    """Boxes in order of start, and for each how many later ones start before it ends."""
    order = np.argsort(starts, kind="stable")
    behind = np.searchsorted(starts[order], ends[order], side="left")
    return order, behind - np.arange(len(order)) - 1


def _expand(row: int, counts: Bounds) -> npt.NDArray[np.int64]:
    """Pairs (i, i + 1), (i, i + 2), .. (i, i + counts[i]) for each row from `row` on."""
    first = np.repeat(np.arange(row, row + len(counts)), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack((first, first + 1 + np.arange(len(first)) - begins), axis=1)


def _first_gap(length: int, starts: Bounds, ends: Bounds) -> tuple[Extent, Extent] | None:
    order = np.argsort(starts, kind="stable")
    reach = np.concatenate(([0], np.maximum.accumulate(ends[order]) if len(order) else []))
    begins = np.concatenate((starts[order], [length]))
    gaps = np.flatnonzero(begins > reach)
    if not len(gaps):
        return None
    low, high = int(reach[gaps[0]]), int(begins[gaps[0]])
    return (low,), (high - low,)
