"""How is a checkpoint written? Its arrays, where each tensor's bytes go, and the units of work.

The plan is made once, before the first byte, and lies in the store until the checkpoint is
committed: whoever goes on with the work, after a crash or beside others, writes the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ckpt.base.errors import Refused
from ckpt.base.units import format_bytes
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.objects import names
from ckpt.objects.archive.layout import (
    MEMBERS_MAX,
    SmallArray,
    chunk_bytes,
    is_stacked,
    make_member,
    tail,
)
from ckpt.objects.chunks import encoder_versions
from ckpt.objects.documents import (
    FORMAT,
    VERSION,
    ArrayPlan,
    BoxPlan,
    DocumentPlace,
    Header,
    Plan,
    TensorPlan,
)
from ckpt.objects.elements import element_of
from ckpt.objects.grid import (
    CHUNK_BYTES,
    CHUNK_BYTES_RANGE,
    PACK_BELOW_BYTES,
    SHARD_BYTES,
    SHARD_BYTES_RANGE,
    Extent,
    cut,
)

ITEM_BYTES: Final = SHARD_BYTES


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What may be chosen about the stored form."""

    portable: bool = False
    """bfloat16 and float8 as unsigned integers with an attribute, for plain Zarr readers."""
    compression: str = "auto"
    """auto (by sampling each array), none or always."""
    chunk_bytes: int = CHUNK_BYTES
    shard_bytes: int = SHARD_BYTES

    def __post_init__(self) -> None:
        if self.compression not in ("auto", "none", "always"):
            raise Refused(f"compression {self.compression!r}: auto, none or always")
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                least, most = format_bytes(low), format_bytes(high)
                raise Refused(f"{name} {getattr(self, name)}: {least} to {most}")


_RANGES: Final = {"chunk_bytes": CHUNK_BYTES_RANGE, "shard_bytes": SHARD_BYTES_RANGE}

Pays = Callable[[Sequence[tuple[ArrayPlan, IndexTensor, IndexBox | None]]], list[bool]]
"""Whether to compress each of some arrays, by a sample of its bytes; of an archive nobody asks."""


def make_plan(
    header: Header, tensors: Sequence[IndexTensor], options: WriteOptions, pays: Pays
) -> Plan:
    """The plan; `pays` is asked once, for all arrays, when compression is by sampling."""
    layout = _Layout(header, options)
    planned = tuple(layout.add(tensor) for tensor in tensors)
    arrays = layout.finish(pays)
    return Plan(
        format=FORMAT,
        version=VERSION,
        header=header,
        encoder=encoder_versions(),
        portable=options.portable,
        arrays=arrays,
        tensors=planned,
        items=tuple(_items(arrays)),
    )


@dataclass(frozen=True, slots=True)
class _Large:
    """A tensor, or one rank's own box of it, with an array of its own."""

    array: ArrayPlan
    tensor: IndexTensor
    box: IndexBox | None


@dataclass(slots=True)
class _Archive:
    """Small tensors that share an object."""

    path: str
    members: list[SmallArray] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Of its elements so far."""
        return self.members[-1].end if self.members else 0


@dataclass(slots=True)
class _Layout:
    """I give every tensor its place."""

    header: Header
    options: WriteOptions
    arrays: list[_Large | _Archive] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    """Paths of arrays; none lies below another."""
    groups: set[str] = field(default_factory=set)
    """Paths of the groups above them."""
    archives: list[int] = field(default_factory=list)
    """Their numbers; the last one is filled."""

    def add(self, tensor: IndexTensor) -> TensorPlan:
        boxes = (BoxPlan(int(box.rank), box.offset, box.shape) for box in tensor.boxes)
        return TensorPlan(
            tensor.name,
            tensor.meaning,
            tensor.dtype,
            tensor.global_shape,
            tuple(boxes),
            tuple(self._places(tensor)),
        )

    def finish(self, pays: Pays) -> tuple[ArrayPlan, ...]:
        large = [
            (each.array, each.tensor, each.box) for each in self.arrays if isinstance(each, _Large)
        ]
        match self.options.compression:
            case "none":
                chosen = [False] * len(large)
            case "always":
                chosen = [True] * len(large)
            case _:
                chosen = pays(large)
        answers = iter(chosen)
        return tuple(
            self._archive(each) if isinstance(each, _Archive)
            else msgspec.structs.replace(each.array, compressed=next(answers))
            for each in self.arrays
        )  # fmt: skip

    def _places(self, tensor: IndexTensor) -> Iterable[DocumentPlace]:
        own = tensor.meaning is Meaning.OWN
        length = math.prod(tensor.global_shape) * dtype_of(tensor.dtype).itemsize
        small = length < PACK_BELOW_BYTES
        if small and is_stacked(tensor.meaning, len(tensor.boxes), length):
            yield from self._stack(tensor, length)
            return
        for box in tensor.boxes if own else (None,):
            folder = names.TENSORS if box is None else f"{names.RANKS}/{box.rank}"
            path = self._free_path(f"{folder}/{names.node_path(tensor.name)}")
            if small:
                (place,) = self._pack(tensor, path, (), length, 1)
                yield place
            else:
                array = self._array(path, tensor.dtype, tensor.global_shape)
                self.arrays.append(_Large(array, tensor, box))
                yield DocumentPlace(len(self.arrays) - 1)

    def _stack(self, tensor: IndexTensor, length: int) -> Iterable[DocumentPlace]:
        """One place for each rank that has it."""
        path = self._free_path(f"{names.EACH}/{names.node_path(tensor.name)}")
        ranks = tuple(int(box.rank) for box in tensor.boxes)
        return self._pack(tensor, path, ranks, length, len(ranks))

    def _pack(
        self, tensor: IndexTensor, path: str, ranks: tuple[int, ...], length: int, count: int
    ) -> Iterable[DocumentPlace]:
        """In an archive: so many places of `length` bytes."""
        archive = self._open_archive(length * count)
        member = make_member(
            path, tensor.dtype, tensor.global_shape, ranks, archive.end,
            portable=self.options.portable,
        )  # fmt: skip
        archive.members.append(member)
        for start, number in zip(member.row_starts(), range(count), strict=False):
            yield DocumentPlace(self.archives[-1], start, length, "" if number else path)

    def _open_archive(self, length: int) -> _Archive:
        """With room for so many bytes."""
        last = self.arrays[self.archives[-1]] if self.archives else None
        if (
            isinstance(last, _Archive)
            and len(last.members) < MEMBERS_MAX
            and last.end + length <= self.options.shard_bytes
        ):
            return last
        self.archives.append(len(self.arrays))
        made = _Archive(f"{names.PACKED}/{len(self.archives) - 1}.zip")
        self.arrays.append(made)
        return made

    def _free_path(self, wanted: str) -> str:
        """The path, unless an array or a group has it: ranks may hold a name in several forms."""
        path, number = wanted, 2
        while (
            path in self.paths or path in self.groups or self.paths & set(names.groups_above(path))
        ):
            # A name has no `=` of its own, so that no other tensor is meant by this.
            folder, _, rest = wanted.partition("/")
            path, number = f"{folder}/=={number}/{rest}", number + 1
        self.paths.add(path)
        self.groups.update(names.groups_above(path))
        return path

    def _array(self, path: str, dtype: str, shape: Extent) -> ArrayPlan:
        element = element_of(dtype, portable=self.options.portable)
        stored = element.stored_shape(shape)
        grid = cut(stored, element.item_bytes, self.options.chunk_bytes, self.options.shard_bytes)
        return ArrayPlan.of(path, dtype, element, stored, grid.chunk_shape, grid.shard_shape)

    def _archive(self, archive: _Archive) -> ArrayPlan:
        """One shard, whose last chunk ends where the archive does."""
        nothing = [0 for member in archive.members for _ in member.pieces]
        size = archive.end + len(tail(self.header, archive.members, nothing))
        chunk = min(size, chunk_bytes(archive.end, self.options.chunk_bytes))
        return ArrayPlan(
            path=archive.path,
            dtype="|u1",
            data_type="uint8",
            endian="",
            item_bytes=1,
            shape=(size,),
            chunk_shape=(chunk,),
            shard_shape=(-(-size // chunk) * chunk,),
            archive=True,
        )


def _items(arrays: Sequence[ArrayPlan]) -> Iterable[tuple[tuple[int, int, int], ...]]:
    """Runs of shards of about ITEM_BYTES together: small arrays share an item."""
    item: list[tuple[int, int, int]] = []
    item_bytes = 0
    for number, array in enumerate(arrays):
        grid = array.grid
        shard_bytes = math.prod(grid.shard_shape) * grid.item_bytes
        for shard in range(grid.shard_count):
            if item and item_bytes + shard_bytes > ITEM_BYTES:
                yield tuple(item)
                item, item_bytes = [], 0
            if item and item[-1][0] == number:
                item[-1] = (number, item[-1][1], item[-1][2] + 1)
            else:
                item.append((number, shard, 1))
            item_bytes += shard_bytes
    if item:
        yield tuple(item)
