"""Which pieces of boxes are read at a time, when they pass through memory of bounded size?

    boxes in their order     a a a a b c c c c c c c c c d
    batches of one slot     |a a a a b .|c c c c c c|c c c d . .|

A box that fits into a slot stays whole. A larger one is cut into runs of rows of the first axis of
which one row fits. The cut depends on the boxes and the slot's size alone: ranks that have the same
boxes read the same bytes with each batch, and can share them.

Invariants: every byte of every box lies in exactly one piece; the pieces of a batch lie in its slot
one after the other, each from a multiple of ALIGN_BYTES on. Nothing here touches memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from ckpt.plan.boxes import Extent, volume_of

ALIGN_BYTES: Final = 64
"""Each piece starts at a multiple of it in its slot: enough for every element type."""


@dataclass(frozen=True, slots=True)
class WholeBox:
    """The shape and element size of a box."""

    shape: Extent
    item_bytes: int


@dataclass(frozen=True, slots=True)
class BoxPart:
    """A part of a box, itself a box, and where in the slot its bytes lie in C order."""

    box: int
    """Number of its box among those that were given."""
    start: Extent
    """Where the part begins in the box."""
    shape: Extent
    first: int
    end: int
    """Exclusive."""


Batch = tuple[BoxPart, ...]


def batches(boxes: Sequence[WholeBox], slot_bytes: int) -> Iterator[Batch]:
    """All boxes in their order, a slot's bytes at a time; a box without bytes has no piece.

    slot_bytes: at least one element, and a multiple of ALIGN_BYTES.
    """
    assert slot_bytes % ALIGN_BYTES == 0
    batch: list[BoxPart] = []
    first = 0
    for number, box in enumerate(boxes):
        for start, shape in cut(box, slot_bytes):
            size = volume_of(shape) * box.item_bytes
            if first + size > slot_bytes:
                yield tuple(batch)
                batch, first = [], 0
            batch.append(BoxPart(number, start, shape, first, first + size))
            first += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    if batch:
        yield tuple(batch)


def cut(box: WholeBox, bytes_max: int) -> Iterator[tuple[Extent, Extent]]:
    """(start, shape) of parts of at most so many bytes, in C order; none of a box without bytes."""
    assert 0 < box.item_bytes <= bytes_max
    shape = box.shape
    if not volume_of(shape):
        return
    if volume_of(shape) * box.item_bytes <= bytes_max:
        yield (0,) * len(shape), shape
        return
    axis = 0
    while _row_bytes(box, axis) > bytes_max:
        axis += 1
    count = bytes_max // _row_bytes(box, axis)
    ones, rest = (1,) * axis, shape[axis + 1 :]
    for place in product(*map(range, shape[:axis])):
        for row in range(0, shape[axis], count):
            start = (*place, row, *(0 for _ in rest))
            yield start, (*ones, min(count, shape[axis] - row), *rest)


def _row_bytes(box: WholeBox, axis: int) -> int:
    """Of one index of this axis, with all axes after it."""
    return volume_of(box.shape[axis + 1 :]) * box.item_bytes
