"""A checkpoint as other formats know one: a flat list of named arrays, and nothing of ranks.

What belongs to ranks is named `NAME@rank-R`, unless only one rank has it. A name in several forms
is exported form by form, and plain values not at all: formats for weights have no place for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import Rank
from ckpt.base.units import MiB
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import leaf_names
from ckpt.objects.grid import cut
from ckpt.objects.source import Array, Source, Wish

PIECE_BYTES: Final = 16 * MiB
"""What is in memory at once."""


@dataclass(frozen=True, slots=True)
class NamedArray:
    """One array to export."""

    name: str
    tensor: IndexTensor
    rank: Rank | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.global_shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return dtype_of(self.tensor.dtype)

    @property
    def byte_count(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def named_arrays(source: Source, prefix: str, separator: str) -> list[NamedArray]:
    """All arrays whose tensor's path begins with `prefix`, which is cut off, ascending by name.

    separator: what stands between the steps of a path in the exported name.
    Raises NotFound when there is none, Refused when two arrays would share a name.
    """
    found: dict[str, NamedArray] = {}
    # A replicated plain value is also a small tensor, but no leaf of a tree.
    leaves = {name for tree in source.trees().values() for name in leaf_names(tree)}
    for tensor in source.tensors():
        if tensor.name not in leaves or not tensor.name.startswith(prefix):
            continue
        name = tensor.name[len(prefix) :].lstrip("/").replace("/", separator)
        for array in _arrays_of(name, tensor):
            if array.name in found:
                raise Refused(
                    f"{array.name}: several tensors of {source.header} would have this name",
                    hint="export a part of it with --prefix",
                )
            found[array.name] = array
    if not found and not prefix:
        raise NotFound(
            f"{source.header} has no tensor: what it holds are plain values",
            hint="ckpt.load(RUN, STEP) gives these",
        )
    if not found:
        raise NotFound(f"{source.header} has no tensor below {prefix!r}", hint="see ckpt show")
    return [found[name] for name in sorted(found)]


def pieces(
    source: Source, array: NamedArray, piece_bytes: int = PIECE_BYTES
) -> Iterator[memoryview]:
    """The array's bytes in C order, piece by piece; each is valid until the next is asked for."""
    if not array.byte_count:
        return
    shape = array.shape or (1,)
    grid = cut(shape, array.dtype.itemsize, piece_bytes, piece_bytes)
    for number in range(grid.shard_count):
        for region in grid.chunks(grid.shard_at(number)):
            if region is None:
                continue
            axes = len(array.shape)
            memory = np.empty(region.shape[:axes], array.dtype)
            source.read([Wish(array.tensor, array.rank, region.offset[:axes], memory)])
            yield memory.reshape(-1).view(np.uint8).data


def values(
    source: Source, arrays: Iterable[NamedArray], batch_bytes: int = PIECE_BYTES
) -> Iterator[tuple[NamedArray, Array]]:
    """Every array's elements in C order, in one or several parts, each of one dimension; small
    arrays are read together. A part is valid until the next is asked for. Arrays of the same shapes
    and dtypes give the same parts.
    """
    small: list[NamedArray] = []
    waiting = 0
    for array in arrays:
        if waiting + array.byte_count > batch_bytes:
            yield from _together(source, small)
            small, waiting = [], 0
        if array.byte_count <= batch_bytes:
            small.append(array)
            waiting += array.byte_count
            continue
        for piece in pieces(source, array, batch_bytes):
            yield array, np.frombuffer(piece, array.dtype)
    yield from _together(source, small)


def _together(source: Source, arrays: Sequence[NamedArray]) -> Iterator[tuple[NamedArray, Array]]:
    memories = [np.empty(array.shape, array.dtype) for array in arrays]
    source.read([
        Wish(array.tensor, array.rank, (0,) * len(array.shape), memory)
        for array, memory in zip(arrays, memories, strict=True)
        if array.byte_count
    ])  # fmt: skip
    for array, memory in zip(arrays, memories, strict=True):
        yield array, memory.reshape(-1)


def _arrays_of(name: str, tensor: IndexTensor) -> Sequence[NamedArray]:
    if tensor.meaning is not Meaning.OWN:
        return [NamedArray(name, tensor, None)]
    if len(tensor.boxes) == 1:
        return [NamedArray(name, tensor, tensor.boxes[0].rank)]
    return [NamedArray(f"{name}@rank-{box.rank}", tensor, box.rank) for box in tensor.boxes]
