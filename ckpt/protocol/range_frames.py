"""How ranges that were read become frames: a long one alone and as it lies, so that it is received
where it belongs; short ones together, copied behind each other.

A frame costs as much as copying a megabyte, and a tensor that is cut along its last axis is wanted
in runs of a few KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ckpt.base.limits import BLOCK_BYTES, CELL_BYTES_MAX
from ckpt.format.checksum import crc32
from ckpt.format.messages import ByteRange, RangeData

LONG_BYTES: Final = BLOCK_BYTES
"""From here on a range comes alone."""
TOGETHER_MAX: Final = 1024
"""Ranges of one frame: their names must fit its meta."""

Found = tuple[ByteRange, memoryview]
Checksum = Callable[[ByteRange, memoryview], int]


def range_frames(
    found: Iterable[Found], checksum: Checksum
) -> Iterator[tuple[RangeData, bytes | memoryview]]:
    """Messages with their bulks. `checksum` gives the CRC-32 of a range that comes alone."""
    short: list[Found] = []
    short_bytes = 0
    for each, view in found:
        if len(view) >= LONG_BYTES:
            yield RangeData((each,), checksum(each, view)), view
            continue
        if len(short) == TOGETHER_MAX or short_bytes + len(view) > CELL_BYTES_MAX:
            yield _together(short)
            short, short_bytes = [], 0
        short.append((each, view))
        short_bytes += len(view)
    if short:
        yield _together(short)


def _together(short: list[Found]) -> tuple[RangeData, bytes | memoryview]:
    bulk = short[0][1] if len(short) == 1 else b"".join(view for _, view in short)
    return RangeData(tuple(each for each, _ in short), crc32(bulk)), bulk
