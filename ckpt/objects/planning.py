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
from ckpt.base.units import align_up, format_bytes
from ckpt.format.dtypes import dtype_of
from ckpt.format.index_pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.objects import names
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

PACK_ALIGN_BYTES: Final = 64
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
"""Whether to compress each of some arrays, by a sample of its bytes; of an array of bytes of many
tensors nobody asks."""


def make_plan(
    header: Header, tensors: Sequence[IndexTensor], options: WriteOptions, pays: Pays
) -> Plan:
    """The plan; `pays` is asked once, for all arrays, when compression is by sampling."""
    layout = _Layout(options)
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


@dataclass(slots=True)
class _Layout:
    """I give every tensor its place. Array 0 is the packed one."""

    options: WriteOptions
    arrays: list[tuple[ArrayPlan, IndexTensor, IndexBox | None]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    """Paths of arrays; none lies below another."""
    groups: set[str] = field(default_factory=set)
    """Paths of the groups above them."""
    packed_bytes: int = 0

    def add(self, tensor: IndexTensor) -> TensorPlan:
        if tensor.meaning is Meaning.OWN:
            places = [self._place(tensor, box) for box in tensor.boxes]
        else:
            places = [self._place(tensor, None)]
        boxes = (BoxPlan(int(box.rank), box.offset, box.shape) for box in tensor.boxes)
        return TensorPlan(
            tensor.name,
            tensor.meaning,
            tensor.dtype,
            tensor.global_shape,
            tuple(boxes),
            tuple(places),
        )

    def finish(self, pays: Pays) -> tuple[ArrayPlan, ...]:
        match self.options.compression:
            case "none":
                chosen = [False] * len(self.arrays)
            case "always":
                chosen = [True] * len(self.arrays)
            case _:
                chosen = pays(self.arrays)
        own = (
            _compressed(array) if yes else array
            for (array, _, _), yes in zip(self.arrays, chosen, strict=True)
        )
        shape = (max(1, self.packed_bytes),)
        return (self._array(names.PACKED, "|u1", shape), *own)

    def _place(self, tensor: IndexTensor, box: IndexBox | None) -> DocumentPlace:
        length = math.prod(tensor.global_shape) * dtype_of(tensor.dtype).itemsize
        if length < PACK_BELOW_BYTES:
            start = align_up(self.packed_bytes, PACK_ALIGN_BYTES)
            self.packed_bytes = start + length
            return DocumentPlace(0, start, length)
        folder = names.TENSORS if box is None else f"{names.RANKS}/{box.rank}"
        path = self._free_path(f"{folder}/{names.node_path(tensor.name)}")
        self.arrays.append((self._array(path, tensor.dtype, tensor.global_shape), tensor, box))
        return DocumentPlace(len(self.arrays))

    def _free_path(self, wanted: str) -> str:
        """The path, unless an array or a group has it: ranks may hold a name in several forms."""
        path, number = wanted, 2
        while path in self.paths or path in self.groups or self.paths & set(_parents(path)):
            # A name has no `=` of its own, so that no other tensor is meant by this.
            folder, _, rest = wanted.partition("/")
            path, number = f"{folder}/=={number}/{rest}", number + 1
        self.paths.add(path)
        self.groups.update(_parents(path))
        return path

    def _array(self, path: str, dtype: str, shape: Extent) -> ArrayPlan:
        element = element_of(dtype, portable=self.options.portable)
        stored = element.stored_shape(shape)
        grid = cut(stored, element.item_bytes, self.options.chunk_bytes, self.options.shard_bytes)
        return ArrayPlan(
            path=path,
            dtype=dtype,
            data_type=element.data_type,
            endian=element.endian,
            item_bytes=element.item_bytes,
            shape=stored,
            chunk_shape=grid.chunk_shape,
            shard_shape=grid.shard_shape,
            logical_dtype=element.logical_dtype,
        )


def _parents(path: str) -> list[str]:
    """Groups above a node, the root apart."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _compressed(array: ArrayPlan) -> ArrayPlan:
    return msgspec.structs.replace(array, compressed=True)


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
