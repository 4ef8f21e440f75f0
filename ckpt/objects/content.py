"""What a chunk holds of a source's tensors: from the plan's places back to wishes.

An array of its own is one tensor; a chunk of an archive, or of the array of bytes that was there
before 1.0, holds parts of many, each of which is read whole (it is under 1 MiB) and copied.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexTensor
from ckpt.format.table import Meaning
from ckpt.objects.archive.drafts import ArchiveDrafts
from ckpt.objects.archive.layout import members_of
from ckpt.objects.arena import Arena
from ckpt.objects.chunks import Bytes
from ckpt.objects.documents import ArrayPlan, Plan
from ckpt.objects.grid import Region
from ckpt.objects.source import Owner, Wish


class Draft(Protocol):
    """A chunk that is being read: `wishes` first, then `content()`."""

    @property
    def wishes(self) -> list[Wish]:
        """To be filled first."""

    def content(self) -> Bytes:
        """The chunk's elements in C order; what lies outside of the array is zero."""


class Drafts(Protocol):
    """Draws the chunks of one shard, which are filled in order by one thread."""

    def draft(self, region: Region, arena: Arena) -> Draft:
        """What must be read for a chunk, into memory of the arena."""


class ArrayContent:
    """I know which tensors each array is made of."""

    def __init__(self, plan: Plan, tensors: Sequence[IndexTensor]) -> None:
        """Raises Corrupt when the plan is not of these tensors."""
        self._plan = plan
        self._whole: dict[int, Owner] = {}
        #: Of each array that holds several: (first byte, byte after the last, owner), as they lie.
        self._parts: defaultdict[int, list[tuple[int, int, Owner]]] = defaultdict(list)
        if len(tensors) != len(plan.tensors):
            raise Corrupt(f"the plan has {len(plan.tensors)} tensors, the source {len(tensors)}")
        for planned, tensor in zip(plan.tensors, tensors, strict=True):
            if (planned.name, planned.dtype, planned.shape) != (
                tensor.name, tensor.dtype, tensor.global_shape,
            ):  # fmt: skip
                raise Corrupt(f"the plan has {planned.name} where the source has {tensor.name}")
            own = tensor.meaning is Meaning.OWN
            for number, place in enumerate(planned.places):
                owner = Owner(tensor, tensor.boxes[number].rank if own else None)
                if place.is_whole:
                    self._whole[place.array] = owner
                else:
                    part = (place.start, place.start + place.length, owner)
                    self._parts[place.array].append(part)

    def drafts(self, array: int) -> Drafts:
        """Of one shard of the array."""
        plan, owner = self._plan.arrays[array], self._whole.get(array)
        if owner is not None:
            return _WholeDrafts(plan, owner)
        parts = self._parts[array]
        if plan.archive:
            owners = [owner for _, _, owner in parts]
            return ArchiveDrafts(self._plan.header, members_of(self._plan, array), owners)
        return _PackedDrafts(plan, [part for part in parts if part[0] < part[1]])


class _WholeDrafts:
    """Of an array that is one tensor."""

    def __init__(self, plan: ArrayPlan, owner: Owner) -> None:
        self._plan = plan
        self._owner = owner

    def draft(self, region: Region, arena: Arena) -> Draft:
        tensor = self._owner.tensor
        axes = len(tensor.global_shape)  # Without the axis that carries bytes.
        dtype, shape = dtype_of(tensor.dtype), region.shape[:axes]
        memory = arena.take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        wish = Wish(tensor, self._owner.rank, region.offset[:axes], memory)
        return _WholeDraft([wish], self._plan, region, arena)


@dataclass(slots=True)
class _WholeDraft:
    wishes: list[Wish]
    _plan: ArrayPlan
    _region: Region
    _arena: Arena

    def content(self) -> Bytes:
        shape, dtype = self._plan.chunk_shape, np.dtype((np.void, self._plan.item_bytes))
        flat = _bytes_of(self.wishes[0])
        if self._region.shape == shape:
            return flat
        whole = _zeros(self._arena, self._plan.grid.chunk_bytes)
        inside = tuple(slice(0, count) for count in self._region.shape)
        whole.view(dtype).reshape(shape)[inside] = flat.view(dtype).reshape(self._region.shape)
        return whole


class _PackedDrafts:
    """Of an array of bytes under a plan from before 1.0: tensors one after the other."""

    def __init__(self, plan: ArrayPlan, parts: Sequence[tuple[int, int, Owner]]) -> None:
        self._plan = plan
        self._parts = parts
        self._starts = [start for start, _, _ in parts]

    def draft(self, region: Region, arena: Arena) -> Draft:
        (low,), (size,) = region.offset, region.shape
        copies: list[tuple[int, int, int, Wish]] = []
        for first, last, owner in self._parts[max(0, bisect_right(self._starts, low) - 1) :]:
            if first >= low + size:
                break
            start, end = max(low, first), min(low + size, last)
            if start < end:
                copies.append((start - low, start - first, end - first, owner.wish_whole()))
        return _PackedDraft(copies, self._plan.grid.chunk_bytes, arena)


@dataclass(slots=True)
class _PackedDraft:
    #: (byte of the chunk, from, to, source).
    _copies: list[tuple[int, int, int, Wish]]
    _size: int
    _arena: Arena

    @property
    def wishes(self) -> list[Wish]:
        return [wish for _, _, _, wish in self._copies]

    def content(self) -> Bytes:
        packed = _zeros(self._arena, self._size)
        for at, start, end, wish in self._copies:
            packed[at : at + end - start] = _bytes_of(wish)[start:end]
        return packed


def _bytes_of(wish: Wish) -> Bytes:
    return wish.memory.reshape(-1).view(np.uint8)


def _zeros(arena: Arena, size: int) -> Bytes:
    memory = arena.take(size)
    memory[:] = 0
    return memory
