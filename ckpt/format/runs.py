"""Copies many runs of bytes at once, and memory for what is copied together.

A tensor that is cut along its last axis is wanted in runs of one length at one distance: thousands
in a cell, which one call copies, without the GIL. Only the first and the last one may be cut by a
border. Others are copied one by one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from ckpt.base.units import KiB, MiB

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Ranges = npt.NDArray[np.int64]
"""Shape (n, 2): positions [start, end)."""

RUNS_MIN: Final = 8
"""Fewer are copied one by one."""
SPARE_BYTES_MIN: Final = 64 * KiB
"""The smallest buffer."""
SPARE_BYTES_MAX: Final = 64 * MiB
"""Most unused buffers of one size that are kept, in bytes."""


class SpareBuffers:
    """Memory for runs that follow each other, in sizes of powers of two; the last used, whose
    cache is warm, comes first. Thread safe.
    """

    def __init__(self) -> None:
        #: By size; taken and given back by one call each, which no other thread comes between.
        self._free: dict[int, deque[Bytes]] = {}

    def take(self, size: int) -> memoryview:
        """With whatever was there before."""
        # No more than fits: pages are zeroed when they are first touched, huge ones as a whole.
        capacity = max(SPARE_BYTES_MIN, 1 << (size - 1).bit_length())
        try:
            buffer = self._free[capacity].pop()
        except LookupError:
            buffer = np.empty(capacity, np.uint8)
        return buffer.data[:size]

    def give_back(self, view: memoryview) -> None:
        """Give the memory back; nobody may touch it afterwards."""
        buffer = view.obj
        if isinstance(buffer, np.ndarray):
            free = self._free.setdefault(len(buffer), deque())
            if len(free) * len(buffer) < SPARE_BYTES_MAX:
                free.append(buffer)


def copy_runs(target: Bytes, to: Offsets, source: Bytes, at: Offsets, lengths: Offsets) -> None:
    """`lengths[i]` bytes of the source from `at[i]` on go to `to[i]` of the target.

    Runs are not empty, inside of both, and disjoint in the target.
    """
    if not len(to):
        return
    assert int(min(to.min(), at.min(), lengths.min() - 1)) >= 0
    assert int((to + lengths).max()) <= len(target)
    assert int((at + lengths).max()) <= len(source)
    inner = slice(1, -1)
    if _regular(to, at, lengths):
        _copy_regular(target, to, source, at, lengths)
    elif _regular(to[inner], at[inner], lengths[inner]):
        ends = np.array([0, len(to) - 1])
        _copy_each(target, to[ends], source, at[ends], lengths[ends])
        _copy_regular(target, to[inner], source, at[inner], lengths[inner])
    else:
        _copy_each(target, to, source, at, lengths)


def _regular(to: Offsets, at: Offsets, lengths: Offsets) -> bool:
    """Of one length, at one distance on either side, ascending in the target."""
    if len(to) < RUNS_MIN or not (lengths == lengths[0]).all():
        return False
    steps = np.diff(to), np.diff(at)
    return bool(steps[0][0] >= lengths[0]) and all(bool((s == s[0]).all()) for s in steps)


def _copy_regular(target: Bytes, to: Offsets, source: Bytes, at: Offsets, lengths: Offsets) -> None:
    shape = len(to), int(lengths[0])
    rows = as_strided(target[int(to[0]) :], shape, (int(to[1] - to[0]), 1))
    np.copyto(rows, as_strided(source[int(at[0]) :], shape, (int(at[1] - at[0]), 1)))


def _copy_each(target: Bytes, to: Offsets, source: Bytes, at: Offsets, lengths: Offsets) -> None:
    """Plain numbers and views: a run may have a few bytes."""
    target_view, source_view = target.data, source.data
    for low, begin, length in zip(to.tolist(), at.tolist(), lengths.tolist(), strict=True):
        target_view[low : low + length] = source_view[begin : begin + length]
