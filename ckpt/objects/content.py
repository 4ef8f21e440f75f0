"""What a chunk holds of a source's tensors: from the plan's places back to wishes.

An array of its own is one tensor; a chunk of the packed array holds parts of many, each of which is
read whole (it is under 1 MiB) and copied.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.index_pages import IndexTensor
from ckpt.format.table import Meaning
from ckpt.objects.arena import Arena
from ckpt.objects.chunks import Bytes
from ckpt.objects.documents import ArrayPlan, Plan
from ckpt.objects.grid import Region
from ckpt.objects.source import Wish


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose bytes lie somewhere."""

    tensor: IndexTensor
    rank: Rank | None
    start: int
    end: int


@dataclass(slots=True)
class ChunkDraft:
    """A chunk that is being read: `wishes` first, then `content()`."""

    wishes: list[Wish]
    _plan: ArrayPlan
    _region: Region
    _arena: Arena
    #: (byte of the chunk, source, from, to).
    _copies: list[tuple[int, Bytes, int, int]]

    def content(self) -> Bytes:
        """The chunk's elements in C order; what lies outside of the array is zero."""
        shape, dtype = self._plan.chunk_shape, np.dtype((np.void, self._plan.item_bytes))
        size = self._plan.grid.chunk_bytes
        if not self._copies and len(self.wishes) == 1:
            flat = _bytes_of(self.wishes[0])
            if self._region.shape == shape:
                return flat
            whole = self._zeros(size)
            inside = tuple(slice(0, count) for count in self._region.shape)
            whole.view(dtype).reshape(shape)[inside] = flat.view(dtype).reshape(self._region.shape)
            return whole
        packed = self._zeros(size)
        for at, source, start, end in self._copies:
            packed[at : at + end - start] = source[start:end]
        return packed

    def _zeros(self, size: int) -> Bytes:
        memory = self._arena.take(size)
        memory[:] = 0
        return memory


class ArrayContent:
    """I know which tensor each array is made of."""

    def __init__(self, plan: Plan, tensors: Sequence[IndexTensor]) -> None:
        """Raises Corrupt when the plan is not of these tensors."""
        self._plan = plan
        self._owners: dict[int, _Owner] = {}
        packed: list[_Owner] = []
        if len(tensors) != len(plan.tensors):
            raise Corrupt(f"the plan has {len(plan.tensors)} tensors, the source {len(tensors)}")
        for planned, tensor in zip(plan.tensors, tensors, strict=True):
            if (planned.name, planned.dtype, planned.shape) != (
                tensor.name, tensor.dtype, tensor.global_shape,
            ):  # fmt: skip
                raise Corrupt(f"the plan has {planned.name} where the source has {tensor.name}")
            own = tensor.meaning is Meaning.OWN
            for number, place in enumerate(planned.places):
                rank = tensor.boxes[number].rank if own else None
                owner = _Owner(tensor, rank, place.start, place.start + place.length)
                if place.start < 0:
                    self._owners[place.array] = owner
                elif place.length:
                    packed.append(owner)
        self._packed = sorted(packed, key=lambda owner: owner.start)
        self._starts = [owner.start for owner in self._packed]

    def draft(self, array: int, region: Region, arena: Arena) -> ChunkDraft:
        """What must be read for a chunk, into memory of the arena."""
        plan = self._plan.arrays[array]
        owner = self._owners.get(array)
        if owner is None:
            return self._packed_draft(plan, region, arena)
        axes = len(owner.tensor.global_shape)  # Without the axis that carries bytes.
        dtype, shape = dtype_of(owner.tensor.dtype), region.shape[:axes]
        memory = arena.take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        wish = Wish(owner.tensor, owner.rank, region.offset[:axes], memory)
        return ChunkDraft([wish], plan, region, arena, [])

    def _packed_draft(self, plan: ArrayPlan, region: Region, arena: Arena) -> ChunkDraft:
        (low,), (size,) = region.offset, region.shape
        wishes, copies = [], []
        first = max(0, bisect_right(self._starts, low) - 1)
        for owner in self._packed[first:]:
            if owner.start >= low + size:
                break
            start, end = max(low, owner.start), min(low + size, owner.end)
            if start < end:
                tensor = owner.tensor
                memory = np.empty(tensor.global_shape, dtype_of(tensor.dtype))
                wish = Wish(tensor, owner.rank, (0,) * memory.ndim, memory)
                wishes.append(wish)
                source = _bytes_of(wish)
                copies.append((start - low, source, start - owner.start, end - owner.start))
        nothing = (0, np.zeros(0, np.uint8), 0, 0)
        return ChunkDraft(wishes, plan, region, arena, copies or [nothing])


def _bytes_of(wish: Wish) -> Bytes:
    return wish.memory.reshape(-1).view(np.uint8)
