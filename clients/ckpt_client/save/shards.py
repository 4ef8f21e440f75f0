"""How a caller says what an array means: Shard, Replicated; and what a load asks for or returns:
Box, PerRank.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from ckpt.base.errors import Refused

Value = TypeVar("Value")


def _whole_numbers(what: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """The numbers as plain ints; numpy integers are taken, floats and negatives refused."""
    try:
        plain = tuple(operator.index(number) for number in numbers)
    except TypeError:
        raise Refused(f"{what} {numbers!r} is not a sequence of integers") from None
    if any(number < 0 for number in plain):
        raise Refused(f"{what} {numbers!r} has a negative number")
    return plain


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """This rank's box of one global tensor, which is named by the leaf's path in the tree.

    Raises Refused when the box does not fit into `global_shape`.
    """

    array: object
    """The box's elements, in its shape: a numpy array, or anything with `__dlpack__` or
    `__array__`.
    """
    global_shape: tuple[int, ...]
    """The tensor's shape, in elements."""
    offset: tuple[int, ...]
    """Where the box's first element lies in the tensor: an index for each axis."""
    holders: tuple[int, ...] = ()
    """Ranks that declare exactly this box, ascending, this one included: they share the writing of
    its bytes, and their copies are compared. All of them must give the same. Empty: this rank
    stores all of it.
    """

    def __post_init__(self) -> None:
        global_shape = _whole_numbers("global_shape", self.global_shape)
        offset = _whole_numbers("offset", self.offset)
        holders = _whole_numbers("holders", self.holders)
        if any(before >= after for before, after in pairwise(holders)):
            raise Refused(f"holders {holders} do not ascend")
        object.__setattr__(self, "global_shape", global_shape)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "holders", holders)
        shape = getattr(self.array, "shape", None)
        if shape is None:
            raise Refused(f"a Shard holds an array, not a {type(self.array).__name__}")
        check_box("Shard", tuple(shape), global_shape, offset)


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """All boxes that this rank holds of one global tensor, when it holds several.

    Raises Refused when their global shapes differ.
    """

    boxes: tuple[Shard, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boxes", tuple(self.boxes))
        shapes = {box.global_shape for box in self.boxes}
        if len(shapes) != 1:
            raise Refused(f"Shards are boxes of one tensor; these have {sorted(shapes)}")


@dataclass(frozen=True, slots=True, eq=False)
class Replicated:
    """Every plain leaf below is the same on all ranks of the launch and is stored once."""

    tree: object


@dataclass(frozen=True, slots=True)
class Box:
    """A leaf of a `like` tree: load these elements of a global tensor into a new array, of
    whatever dtype was saved. Raises Refused when offset and shape differ in their number of axes.
    """

    offset: tuple[int, ...]
    """Where the box's first element lies in the tensor: an index for each axis."""
    shape: tuple[int, ...]
    """The box's shape, in elements."""

    def __post_init__(self) -> None:
        offset = _whole_numbers("offset", self.offset)
        shape = _whole_numbers("shape", self.shape)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "shape", shape)
        if len(offset) != len(shape):
            raise Refused(f"Box offset {offset} and shape {shape} differ in their number of axes")


@dataclass(frozen=True, slots=True, eq=False)
class PerRank(Generic[Value]):
    """A leaf with a value for each rank, as `whole=True` gives it: `leaf[rank]`, if that rank has
    one.
    """

    values: Mapping[int, Value]
    """Rank -> its value."""

    def __getitem__(self, rank: int) -> Value:
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)


def check_box(
    what: str, shape: Sequence[int], global_shape: Sequence[int], offset: Sequence[int]
) -> None:
    """Raises Refused unless the box (offset, shape) lies within the global shape."""
    if not len(shape) == len(global_shape) == len(offset):
        raise Refused(
            f"{what} of shape {tuple(shape)} at {tuple(offset)} and global shape "
            f"{tuple(global_shape)} differ in their number of axes"
        )
    for start, extent, whole in zip(offset, shape, global_shape, strict=True):
        if start + extent > whole:
            raise Refused(
                f"{what} of shape {tuple(shape)} at {tuple(offset)} reaches beyond "
                f"global shape {tuple(global_shape)}"
            )
