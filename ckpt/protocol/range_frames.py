"""How ranges that were read become frames: a long one alone and as it lies, so that it is received
where it belongs; short ones together, copied behind each other.

A frame costs as much as copying a megabyte, and a tensor that is cut along its last axis is wanted
in runs of a few KiB. These are thousands, so that all of them are kept in one array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from ckpt.base.limits import BLOCK_BYTES, CELL_BYTES_MAX
from ckpt.format.checksum import crc32
from ckpt.format.combs import Run, combs_of, ranges_of
from ckpt.format.messages import ByteRuns, RangeData
from ckpt.format.runs import Offsets, Ranges
from ckpt.protocol.wire_runs import to_wire

LONG_BYTES: Final = BLOCK_BYTES
"""From here on a range comes alone."""
TOGETHER_MAX: Final = 1024
"""Names of ranges in one frame: they must fit its meta. A comb has one."""


class Content(Protocol):
    """Where ranges of a column's fragment bytes are found."""

    def one(self, start: int, end: int) -> memoryview:
        """A range as it lies."""
        ...

    def checksum(self, start: int, end: int) -> int:
        """CRC-32 of it."""
        ...

    def copied(self, ranges: Ranges) -> memoryview:
        """Ranges behind each other."""
        ...


class RangeFrame(NamedTuple):
    """One answer."""

    message: RangeData
    bulk: memoryview
    is_copy: bool


def range_frames(ranges: Ranges, content: Content) -> Iterator[RangeFrame]:
    """The answers that bring the ranges: the long ones first."""
    if len(ranges) == 1:  # As nearly all that is loaded comes.
        start, end = ranges[0].tolist()
        yield _alone(start, end, content)
        return
    sizes = ranges[:, 1] - ranges[:, 0]
    is_long = sizes >= LONG_BYTES
    for start, end in ranges[is_long].tolist():
        yield _alone(start, end, content)
    short = ranges[~is_long]
    for first, behind in _bounds(sizes[~is_long]):
        yield from _together(short[first:behind], content)


def _alone(start: int, end: int, content: Content) -> RangeFrame:
    message = RangeData((ByteRuns(start, end),), content.checksum(start, end))
    return RangeFrame(message, content.one(start, end), is_copy=False)


def _bounds(sizes: Offsets) -> Iterator[tuple[int, int]]:
    """Which short ranges make a frame: as many as its bulk holds."""
    reach, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(reach[first - 1]) if first else 0
        behind = int(np.searchsorted(reach, before + CELL_BYTES_MAX, side="right"))
        yield first, behind
        first = behind


def _together(short: Ranges, content: Content) -> Iterator[RangeFrame]:
    """One frame, or as many as their names need."""
    runs = combs_of(short)
    for first in range(0, len(runs), TOGETHER_MAX):
        some = runs[first : first + TOGETHER_MAX]
        yield _named(some, short if len(some) == len(runs) else ranges_of(some), content)


def _named(runs: tuple[Run, ...], ranges: Ranges, content: Content) -> RangeFrame:
    if len(ranges) == 1:
        start, end = ranges[0].tolist()
        return _alone(start, end, content)
    bulk = content.copied(ranges)
    return RangeFrame(RangeData(to_wire(runs), crc32(bulk)), bulk, is_copy=True)
