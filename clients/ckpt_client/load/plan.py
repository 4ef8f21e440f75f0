"""What a load asks of a checkpoint's index: look-ups, new arrays, and the caller's own memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ckpt.aio.first_touch import FirstTouch
from ckpt.base.errors import Corrupt, NotFound, Refused
from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_name, dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.index.rows import boxes_of
from ckpt.format.table import Meaning
from ckpt_client.save.arrays import AnyArray, check_own_memory

PAIRS_MAX: Final = 100_000
"""Of arrays of one load that are looked at for memory that they share; of more, those count whose
first and last items say that they may."""
WORK_MAX: Final = 10_000
"""What numpy may try to find out whether two arrays share an item."""


class TensorIndex(Protocol):
    """Which tensors a checkpoint has: an index in the tier, or a store's manifest."""

    def variants(self, name: str) -> tuple[IndexTensor, ...]:
        """Every form of a name, at least one; raises NotFound."""

    def tensors(self) -> Iterable[IndexTensor]:
        """All of them."""

    def names_beyond(self, seen: Set[str], rank: Rank) -> Iterable[str]:
        """Names that are not among these, of what is global or what the rank has of its own."""


class BoxReads(Protocol):
    """Notes what a load will read."""

    memory: FirstTouch
    """Of the arrays that the load makes; to be entered while they are filled."""

    def add_box(
        self, tensor: IndexTensor, boxes: Sequence[IndexBox], offset: tuple[int, ...],
        array: AnyArray,
        prefer: Rank | None = None, replica: bool = False,
    ) -> None:  # fmt: skip
        """Fill the array with the box at `offset` of the tensor, from the given index boxes.

        replica: other ranks of the load read the same box.
        """


def new_array(reads: BoxReads, tensor: IndexTensor, shape: tuple[int, ...]) -> AnyArray:
    """Memory for a box of the tensor, not filled."""
    return reads.memory.array(shape, dtype_of(tensor.dtype))


def variants_of(index: TensorIndex, name: str) -> tuple[IndexTensor, ...]:
    """Every form of a name; empty when there is none."""
    try:
        return index.variants(name)
    except NotFound:
        return ()


def tensor_of_rank(
    index: TensorIndex, name: str, rank: Rank
) -> tuple[IndexTensor, Sequence[IndexBox]]:
    """The rank's tensor of that name, and the boxes that it declared; Corrupt without one."""
    for tensor in variants_of(index, name):
        if tensor.meaning is Meaning.REPLICATED:
            return tensor, tensor.boxes[:1]
        boxes = boxes_of(tensor.boxes, rank)
        if boxes:
            return tensor, boxes
    raise Corrupt(f"{name}: rank {rank}'s tree names it, the index does not")


def checked_dtype(name: str, tensor: IndexTensor, array: AnyArray) -> None:
    """Raises Refused by path unless the array has exactly the stored dtype: nothing is
    converted."""
    if dtype_name(array.dtype) != tensor.dtype:
        raise Refused(
            f"{name}: stored as {tensor.dtype}, like has {dtype_name(array.dtype)}",
            hint="nothing is converted: load into an array of the stored dtype",
        )


def in_place(name: str, value: object) -> AnyArray:
    """The value's own memory as a writable array; raises Refused by path when it cannot be filled
    in place."""
    if type(value) is np.ndarray:
        array: AnyArray = value
    else:
        array = value.view(np.ndarray) if isinstance(value, np.ndarray) else _foreign(name, value)
    if not array.flags.writeable:
        raise Refused(f"{name}: a read-only array cannot be filled")
    if not array.flags.c_contiguous:
        check_places(name, array.shape, array.strides, array.itemsize)
    return array


def address_of(array: AnyArray) -> int:
    """Of its first item."""
    return int(array.__array_interface__["data"][0])


def check_places(
    name: str, shape: Sequence[int], strides: Sequence[int], item_size: int = 1
) -> None:
    """Raises Refused by path if items share memory, as in what was expanded: what is stored for one
    would lie over what is stored for another. item_size: counted as the strides are.
    """
    if shares_places(shape, strides, item_size):
        raise Refused(
            f"{name}: several of its items share one place in memory",
            hint="load into memory of its own, and expand that afterwards",
        )


def shares_places(shape: Sequence[int], strides: Sequence[int], item_size: int) -> bool:
    """Whether two items of an array share some of their memory."""
    if 0 in shape:
        return False
    axes = sorted((abs(s), count) for s, count in zip(strides, shape, strict=True) if count > 1)
    reach = item_size
    for stride, count in axes:
        if stride < reach:
            break
        reach += stride * (count - 1)
    else:
        return False  # Each axis steps over all that those with smaller steps reach.
    extent = item_size + sum(stride * (count - 1) for stride, count in axes)
    if math.prod(shape) * item_size > extent:
        return True
    places: npt.NDArray[np.int64] = np.zeros(1, np.int64)
    for stride, count in axes:
        places = np.add.outer(places, np.arange(count) * stride).reshape(-1)
    places.sort()
    return bool((np.diff(places) < item_size).any())


Spans = npt.NDArray[np.int64]
"""Shape [arrays, 3]: first address, end and number of each array, of those that have items."""


@dataclass(frozen=True, slots=True)
class ItemPlaces:
    """Where the items of an array lie."""

    start: int
    """The address of the first one."""
    shape: Sequence[int]
    strides: Sequence[int]
    """In bytes."""
    item_size: int


def overlapping(spans: Iterable[Spans], place_of: Callable[[int], ItemPlaces]) -> dict[int, int]:
    """Which arrays share some of their memory with another one, and one such: by their numbers.

    spans: of the arrays in each memory that there is.
    place_of: asked for those whose spans meet; columns of one array share nothing.
    """
    found: dict[int, int] = {}
    pairs = 0
    for group in spans:
        near = _neighbours(group)
        seen = {number: _unread(place_of(number)) for number in near}
        before: list[list[int]] = []
        for span in sorted(one for one in group.tolist() if one[2] in near):
            before = [other for other in before if other[1] > span[0]]
            pairs += len(before)
            if pairs > PAIRS_MAX:
                found |= near
                break
            for _, _, other in before:
                if _meet(seen[span[2]], seen[other]):
                    found.setdefault(span[2], other)
                    found.setdefault(other, span[2])
            before.append(span)
    return found


def _neighbours(spans: Spans) -> dict[int, int]:
    """Those that meet, each with another one."""
    found: dict[int, int] = {}
    if not any_meet(spans):
        return found
    furthest, other = 0, -1
    for start, end, number in sorted(spans.tolist()):
        if start < furthest:
            found.setdefault(number, other)
            found.setdefault(other, number)
        if end > furthest:
            furthest, other = end, number
    return found


def any_meet(spans: Spans) -> bool:
    """Whether two of them do, at a tenth of the time of a look at each: they hardly ever do."""
    table = spans[spans[:, 0].argsort()]
    return bool((table[1:, 0] < np.maximum.accumulate(table[:-1, 1])).any())


def _unread(place: ItemPlaces) -> AnyArray:
    """An array that lies there, also on a device: nothing is read of it."""
    seen = _Seen()
    seen.__array_interface__ = {
        "version": 3,
        "data": (place.start, True),
        "shape": tuple(place.shape),
        "strides": tuple(place.strides),
        "typestr": f"|V{place.item_size}",
    }
    return np.asarray(seen)


class _Seen:
    """What numpy asks where an array lies."""

    __array_interface__: dict[str, object]


def _meet(one: AnyArray, other: AnyArray) -> bool:
    try:
        return np.shares_memory(one, other, max_work=WORK_MAX)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _foreign(name: str, value: object) -> AnyArray:
    """Another library's array that shares its memory with numpy."""
    check_own_memory(value, name)
    kind = type(value).__qualname__
    if hasattr(value, "__array__") and not isinstance(value, type | np.generic):
        try:
            first, second = np.asarray(value), np.asarray(value)
        except Exception as error:  # Whatever a foreign array type raises is its answer.
            raise Refused(f"{name}: a {kind} gives no array: {error}") from None
        if first.flags.writeable and np.shares_memory(first, second):
            return first
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        try:
            return np.from_dlpack(value)
        except Exception as error:  # The same.
            raise Refused(f"{name}: a {kind} gives no array: {error}") from None
    raise Refused(
        f"{name}: a {kind} cannot be filled", hint="like holds Box, arrays, Shards and plain values"
    )
