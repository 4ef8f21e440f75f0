"""Into which chunks and shards is an array cut?

A chunk is what a reader fetches (8 MiB), a shard is one object of the store (128 MiB, of whole
chunks). Both are runs of rows of the first axis; only where one row is larger than a chunk, the
next axis is cut as well. Sizes are evened out, since what an edge chunk has outside of the array is
stored as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from ckpt.base.units import MiB

CHUNK_BYTES: Final = 8 * MiB
CHUNK_BYTES_RANGE: Final = (4 * MiB, 16 * MiB)
SHARD_BYTES: Final = 128 * MiB
SHARD_BYTES_RANGE: Final = (64 * MiB, 512 * MiB)
PACK_BELOW_BYTES: Final = 1 * MiB
"""Smaller tensors lie together in an archive."""

Extent = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of an array: items [offset, offset + shape) on each axis."""

    offset: Extent
    shape: Extent


@dataclass(frozen=True, slots=True)
class Grid:
    """An array cut into chunks, and chunks gathered in shards. No axis is empty."""

    shape: Extent
    chunk_shape: Extent
    shard_shape: Extent
    """A multiple of the chunk's on each axis; may reach beyond the array."""
    item_bytes: int

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk_shape) * self.item_bytes

    @property
    def shard_counts(self) -> Extent:
        """Shards on each axis."""
        return tuple(_parts(n, s) for n, s in zip(self.shape, self.shard_shape, strict=True))

    @property
    def shard_count(self) -> int:
        return math.prod(self.shard_counts)

    def shard_at(self, number: int) -> Extent:
        """Coordinates of a shard, numbered in C order."""
        found: list[int] = []
        for count in reversed(self.shard_counts):
            number, at = divmod(number, count)
            found.append(at)
        return tuple(reversed(found))

    def shard_number(self, coordinates: Extent) -> int:
        """The inverse."""
        number = 0
        for at, count in zip(coordinates, self.shard_counts, strict=True):
            number = number * count + at
        return number

    def chunks(self, shard: Extent) -> Iterator[Region | None]:
        """What each chunk of a shard holds of the array, in the order of its index; None
        outside."""
        inside = tuple(s // c for s, c in zip(self.shard_shape, self.chunk_shape, strict=True))
        for at in product(*(range(count) for count in inside)):
            offset = tuple(
                number * s + i * c
                for number, s, i, c in zip(
                    shard, self.shard_shape, at, self.chunk_shape, strict=True
                )
            )
            shape = tuple(
                min(c, n - o) for c, n, o in zip(self.chunk_shape, self.shape, offset, strict=True)
            )
            yield Region(offset, shape) if all(size > 0 for size in shape) else None

    def shards_of(self, region: Region) -> Iterator[Extent]:
        """Coordinates of the shards that share an item with a region that is not empty."""
        yield from product(
            *(
                range(o // s, _parts(o + n, s))
                for o, n, s in zip(region.offset, region.shape, self.shard_shape, strict=True)
            )
        )


def cut(
    shape: Extent,
    item_bytes: int,
    chunk_bytes: int = CHUNK_BYTES,
    shard_bytes: int = SHARD_BYTES,
) -> Grid:
    """The grid of an array that has items."""
    assert item_bytes > 0
    assert all(size > 0 for size in shape)
    chunk = list(shape)
    for axis, size in enumerate(shape):
        row_bytes = math.prod(shape[axis + 1 :]) * item_bytes
        if row_bytes <= chunk_bytes:
            chunk[axis] = _even(size, chunk_bytes // row_bytes)
            break
        chunk[axis] = 1
    room = max(1, shard_bytes // (math.prod(chunk) * item_bytes))
    shard = list(chunk)
    for axis in reversed(range(len(shape))):
        count = _parts(shape[axis], chunk[axis])
        taken = _even(count, room)
        shard[axis] = chunk[axis] * taken
        if taken < count:
            break
        room //= taken
    return Grid(shape, tuple(chunk), tuple(shard), item_bytes)


def _even(size: int, most: int) -> int:
    """The smallest part that cuts `size` into as few parts as parts of `most` would."""
    return _parts(size, _parts(size, max(1, most)))


def _parts(size: int, part: int) -> int:
    return -(-size // part)
