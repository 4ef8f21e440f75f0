"""A chunk that a load wants: where it is stored, and which memory is filled by which part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ckpt.objects.chunks import Bytes
from ckpt.objects.documents import ArrayPlan
from ckpt.objects.grid import Region
from ckpt.objects.source import Array


@dataclass(slots=True, eq=False)
class StoredChunk:
    """One chunk of a stored checkpoint, in one reading of it."""

    array: ArrayPlan
    number: int
    """The array's."""
    shard: int
    position: int
    """In its shard."""
    region: Region
    """What of the array it holds; at the array's edge less than the chunk's shape."""
    parts: list[tuple[Region, Region, Array]] = field(default_factory=list)
    """(region of the memory, what is common, memory: uint8 of shape [*region, item_bytes])."""
    is_shared: bool = False
    """Other ranks may want it at the same time."""

    @property
    def raw_bytes(self) -> int:
        """Of its elements, those beyond the array's edge too."""
        return math.prod(self._shape) * self.array.item_bytes

    @property
    def _shape(self) -> tuple[int, ...]:
        # An archive ends where it ends.
        return self.region.shape if self.array.archive else self.array.chunk_shape

    def fill(self, content: Bytes) -> None:
        """Copy its elements, uint8 of the chunk's bytes, to all that want some of them."""
        elements = content.reshape(*self._shape, self.array.item_bytes)
        for region, common, memory in self.parts:
            memory[_slices(common, region)] = elements[_slices(common, self.region)]

    def landed(self) -> memoryview | None:
        """Its elements' bytes where they were filled in, when these lie there as they are stored:
        uncompressed, whole, in one run."""
        if self.array.compressed or self.region.shape != self._shape:
            return None
        for region, common, memory in self.parts:
            there = memory[_slices(common, region)]
            if common == self.region and there.flags.c_contiguous:
                return there.reshape(-1).view(np.uint8).data
        return None


def _slices(common: Region, of: Region) -> tuple[slice, ...]:
    return tuple(
        slice(o - base, o - base + n)
        for o, n, base in zip(common.offset, common.shape, of.offset, strict=True)
    )
