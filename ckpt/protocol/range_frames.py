"""How ranges that were read become frames: a long one alone and as it lies, so that it is received
where it belongs; short ones together, copied behind each other.

A frame costs as much as copying a megabyte, and a tensor that is cut along its last axis is wanted
in runs of a few KiB. These are thousands, so that all of them are kept in one array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, Protocol

import numpy as np

from ckpt.base.limits import BLOCK_BYTES, CELL_BYTES_MAX
from ckpt.format.checksum import crc32
from ckpt.format.messages import ByteRange, RangeData
from ckpt.format.runs import Offsets, Ranges

LONG_BYTES: Final = BLOCK_BYTES
"""From here on a range comes alone."""
TOGETHER_MAX: Final = 1024
"""Ranges of one frame: their names must fit its meta."""


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


def array_of(ranges: Sequence[ByteRange]) -> Ranges:
    """The ranges of a message. Raises OverflowError for numbers that no column has."""
    flat = chain.from_iterable([(each.start, each.end) for each in ranges])
    return np.fromiter(flat, np.int64, 2 * len(ranges)).reshape(-1, 2)


def byte_ranges(ranges: Ranges) -> tuple[ByteRange, ...]:
    """The ranges for a message."""
    return tuple([ByteRange(start, end) for start, end in ranges.tolist()])


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
        yield _together(short[first:behind], content)


def _alone(start: int, end: int, content: Content) -> RangeFrame:
    message = RangeData((ByteRange(start, end),), content.checksum(start, end))
    return RangeFrame(message, content.one(start, end), is_copy=False)


def _bounds(sizes: Offsets) -> Iterator[tuple[int, int]]:
    """Which short ranges make a frame: as many as it holds."""
    reach, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(reach[first - 1]) if first else 0
        behind = int(np.searchsorted(reach, before + CELL_BYTES_MAX, side="right"))
        behind = min(behind, first + TOGETHER_MAX)
        yield first, behind
        first = behind


def _together(short: Ranges, content: Content) -> RangeFrame:
    if len(short) == 1:
        start, end = short[0].tolist()
        return _alone(start, end, content)
    bulk = content.copied(short)
    return RangeFrame(RangeData(byte_ranges(short), crc32(bulk)), bulk, is_copy=True)
