"""What does each rank hold, and which bytes are they? From a plan alone, so that any process can
say what another one saved.

A rank's state is a list of one-dimensional tensors, one after another in one page-aligned arena.
Tensor i of all ranks is one global tensor: the ranks' parts in rank order. The bytes come from
(seed, rank, tensor); every step adds 1 to each 32-bit word, or, with `refill`, makes new ones.

Compressible: the first part of each 4 KiB page is one value. Duplicate: pages that are copies of
the tensor's first page.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ckpt.base.units import align_up

PAGE_BYTES: Final = 4096
UNIT_BYTES: Final = 16
"""Every tensor is a multiple of it, so that it is whole elements of any dtype."""

Words = npt.NDArray[np.uint32]
Array = npt.NDArray[np.generic]

_DTYPES: Final[Mapping[str, np.dtype[np.generic]]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "uint8": np.dtype(np.uint8),
}


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Everything that decides what the ranks hold."""

    rank_bytes: tuple[int, ...]
    """Of each rank; whole pages."""
    tensor_bytes: tuple[int, int]
    """Least and greatest of a tensor, inclusive; the last one takes what is left."""
    dtype: str = "float32"
    compress_percent: int = 0
    dedupe_percent: int = 0
    refill: bool = False
    seed: int = 0

    @property
    def world_size(self) -> int:
        return len(self.rank_bytes)

    @property
    def element_bytes(self) -> int:
        return _DTYPES[self.dtype].itemsize

    def tensor_sizes(self, rank: int) -> list[int]:
        """Bytes of each tensor of a rank. Two ranks of one size have the same ones."""
        low, high = self.tensor_bytes
        draw = random.Random(self.seed)
        sizes, left = [], self.rank_bytes[rank]
        while left:
            size = max(UNIT_BYTES, draw.randint(low, high) // UNIT_BYTES * UNIT_BYTES)
            sizes.append(min(size, left))
            left -= sizes[-1]
        return sizes

    def extents(self) -> list[list[tuple[int, int]]]:
        """By tensor and rank: where its part begins in the global tensor and how many elements it
        has.
        """
        by_rank = [self.tensor_sizes(rank) for rank in range(self.world_size)]
        found = []
        for index in range(max(len(sizes) for sizes in by_rank)):
            start, parts = 0, []
            for sizes in by_rank:
                count = (sizes[index] if index < len(sizes) else 0) // self.element_bytes
                parts.append((start, count))
                start += count
            found.append(parts)
        return found


@dataclass(frozen=True, slots=True)
class TensorRange:
    """A range of a global tensor, in elements."""

    name: str
    index: int
    start: int
    count: int
    total: int
    """Of the global tensor."""


@dataclass(slots=True)
class State:
    """One rank's tensors, in memory of its own."""

    memory: memoryview
    """The arena: every tensor begins on a page; what lies between is zero."""
    boxes: list[TensorRange]
    """Of each tensor in the global one."""
    offsets: list[int]
    """Of each tensor in the arena."""
    arrays: dict[str, Array] = field(default_factory=dict)
    """The tensors by name, over the arena."""


def tensor_name(index: int) -> str:
    """As every engine stores it."""
    return f"layer{index}"


def rank_boxes(plan: StatePlan, rank: int) -> list[TensorRange]:
    """What a rank holds of each global tensor; only what is not empty."""
    return [
        TensorRange(tensor_name(index), index, *parts[rank], sum(count for _, count in parts))
        for index, parts in enumerate(plan.extents())
        if parts[rank][1]
    ]


def reader_boxes(plan: StatePlan, reader: int, readers: int) -> list[TensorRange]:
    """What one of `readers` processes takes of each global tensor; only what is not empty."""
    found = []
    for index, parts in enumerate(plan.extents()):
        total = sum(count for _, count in parts)
        start, end = reader * total // readers, (reader + 1) * total // readers
        if end > start:
            found.append(TensorRange(tensor_name(index), index, start, end - start, total))
    return found


def arena_offsets(plan: StatePlan, boxes: Sequence[TensorRange]) -> tuple[list[int], int]:
    """Where each tensor begins in an arena, and the arena's bytes."""
    offsets, end = [], 0
    for box in boxes:
        offsets.append(end)
        end = align_up(end + box.count * plan.element_bytes, PAGE_BYTES)
    return offsets, end


def empty_state(plan: StatePlan, boxes: Sequence[TensorRange]) -> State:
    """Tensors over memory that was never touched."""
    offsets, total = arena_offsets(plan, boxes)
    memory = memoryview(mmap.mmap(-1, max(total, PAGE_BYTES), flags=_PRIVATE))
    state = State(memory, list(boxes), offsets)
    for box, offset in zip(boxes, offsets, strict=True):
        size = box.count * plan.element_bytes
        part = np.frombuffer(memory[offset : offset + size], _DTYPES[plan.dtype])
        state.arrays[box.name] = part
    return state


def fill(plan: StatePlan, rank: int, state: State, step: int, last: int | None) -> None:
    """Make the state that of `step`; `last` is the step that it holds now, None for none."""
    for box in state.boxes:
        words = _words(state.arrays[box.name])
        if last is None or plan.refill:
            words[:] = content(plan, rank, box.index, step, words.size)
        else:
            words += np.uint32(step - last)


def content(plan: StatePlan, rank: int, index: int, step: int, count: int) -> Words:
    """The 32-bit words of one tensor of one rank at a step."""
    key = (plan.seed, rank, index, step if plan.refill else 0)
    generator = np.random.default_rng(key)
    words = generator.integers(0, 1 << 32, count, np.uint32)
    pages = words[: count // _PAGE_WORDS * _PAGE_WORDS].reshape(-1, _PAGE_WORDS)
    if plan.compress_percent:
        pages[:, : _PAGE_WORDS * plan.compress_percent // 100] = 0
    if plan.dedupe_percent and len(pages):
        copies = generator.random(len(pages)) * 100 < plan.dedupe_percent
        pages[copies] = pages[0]
    return words if plan.refill else words + np.uint32(step)


def is_equal(
    plan: StatePlan, step: int, boxes: Sequence[TensorRange], found: Mapping[str, Array]
) -> bool:
    """Whether the arrays hold exactly these boxes of a step, bit by bit.

    Tensor by tensor and part by part, so that a reader never holds a second state.
    """
    if {box.name for box in boxes} != set(found):
        return False
    extents = plan.extents()
    return all(_box_is_equal(plan, step, box, extents[box.index], found[box.name]) for box in boxes)


def dtype_of(plan: StatePlan) -> np.dtype[np.generic]:
    """Of all its tensors."""
    return _DTYPES[plan.dtype]


def array_bytes(array: Array) -> memoryview:
    """The array's own bytes, writable; it is contiguous."""
    flat: npt.NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat.data


# --------------------------------------------------------------------------- inside

_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_PAGE_WORDS: Final = PAGE_BYTES // 4


def _words(array: Array) -> Words:
    words: Words = array.view(np.uint32)
    return words


def _box_is_equal(
    plan: StatePlan, step: int, box: TensorRange, parts: Sequence[tuple[int, int]], found: Array
) -> bool:
    if found.dtype != _DTYPES[plan.dtype] or found.size != box.count:
        return False
    size = plan.element_bytes
    have = np.ascontiguousarray(found).reshape(-1).view(np.uint8)
    for rank, first, count, skipped in _overlaps(box, parts):
        whole = content(plan, rank, box.index, step, parts[rank][1] * size // 4).view(np.uint8)
        expected = whole[skipped * size : (skipped + count) * size]
        if not np.array_equal(have[first * size : (first + count) * size], expected):
            return False
    return True


def _overlaps(
    box: TensorRange, parts: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    """(rank, where in the box, how many elements, where in the rank's part)."""
    for rank, (start, count) in enumerate(parts):
        low, high = max(start, box.start), min(start + count, box.start + box.count)
        if high > low:
            yield rank, low - box.start, high - low, low - start


def overlaps(plan: StatePlan, box: TensorRange) -> list[tuple[int, int, int, int]]:
    """Which ranks' parts make up a box: (rank, where in the box, elements, where in the part)."""
    return list(_overlaps(box, plan.extents()[box.index]))
