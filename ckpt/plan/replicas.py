"""Which rank writes which part of the replicated bytes.

Every rank holds the same replicated leaves; each byte is stored once. The leaves, one after the
other in name order, form one run of bytes that is cut into world_size shares of nearly equal size:

    leaves   | a: 3 MiB                    | b: 8 KiB | c: 512 KiB | d: 5 MiB                     |
    shares   | rank 0       | rank 1       (no cut in b, c)    | rank 2        | rank 3           |

A cut falls on a page of a large leaf, counted from the leaf's beginning, so that no item of any
dtype is cut in two and reads stay aligned; a leaf below LEAF_BYTES_WHOLE is never cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB, align_down

LEAF_BYTES_WHOLE: Final = MiB
"""Leaves below this are written by one rank: metadata would cost more than the balance gains."""


def share_replicas(sizes: Sequence[int], world_size: int) -> list[int]:
    """Cut positions c[0 .. world_size]: rank r writes bytes [c[r], c[r + 1])
    of the concatenated leaves.

    `sizes` are the leaves' bytes, in the order that all ranks agree on. c[0] is 0 and the last is
    the sum. Each cut lies at most half a small leaf from the even one, so a share exceeds the mean
    by less than 1 MiB. Every rank computes the same cuts by itself.
    """
    assert world_size >= 1
    assert all(size >= 0 for size in sizes)
    starts = list(accumulate(sizes, initial=0))
    total = starts[-1]
    cuts = [_nearest_cut(starts, rank * total // world_size) for rank in range(world_size)]
    return [*cuts, total]


def leaf_parts(sizes: Sequence[int], start: int, end: int) -> list[tuple[int, int, int]]:
    """(leaf index, first byte, end byte) of each leaf under concatenated bytes [start, end).

    Empty leaves are left out.
    """
    if start >= end:  # Of what others store, where nobody else does.
        return []
    starts = list(accumulate(sizes, initial=0))
    if start <= 0 and end >= starts[-1]:
        return [(leaf, 0, size) for leaf, size in enumerate(sizes) if size]
    parts: list[tuple[int, int, int]] = []
    leaf = max(0, bisect_right(starts, start) - 1)
    while leaf < len(sizes) and starts[leaf] < end:
        first, last = max(start - starts[leaf], 0), min(end - starts[leaf], sizes[leaf])
        if first < last:
            parts.append((leaf, first, last))
        leaf += 1
    return parts


def _nearest_cut(starts: Sequence[int], ideal: int) -> int:
    """The allowed position nearest to `ideal`; the lower one of two equally near.

    Monotone in `ideal`.
    """
    total = starts[-1]
    if ideal >= total:
        return total
    leaf = bisect_right(starts, ideal) - 1
    start, end = starts[leaf], starts[leaf + 1]
    if end - start < LEAF_BYTES_WHOLE:
        return start if ideal - start <= end - ideal else end
    lower = start + align_down(ideal - start, PAGE_BYTES)
    upper = min(lower + PAGE_BYTES, end)
    return lower if ideal - lower <= upper - ideal else upper
