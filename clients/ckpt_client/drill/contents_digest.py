"""Everything that a load can give, as one digest for each array and each rank's tree.

Read in parts of bounded memory, by the same reader as a load's, from the tier or from an object
store: equal digests say that both gave the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ckpt.base.ids import Rank
from ckpt.base.units import MiB
from ckpt.format.checksum import Xxh3, xxh3_128
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import encode_tree, leaf_names
from ckpt_client.load.batches import Batch, WholeBox, batches
from ckpt_client.load.reading import Reading

MEMORY_BYTES: Final = 64 * MiB
"""Bytes of arrays that are read at once."""

OnBytes = Callable[[int], None]


class ArrayName(NamedTuple):
    """One array of a checkpoint."""

    name: str
    rank: Rank | None
    """The rank that it belongs to; None for one of all ranks."""
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name if self.rank is None else f"{self.name} of rank {self.rank}"


@dataclass(slots=True)
class ContentsDigest:
    """What one complete read gave."""

    trees: dict[Rank, bytes] = field(default_factory=dict)
    """Each rank's structure and plain values."""
    arrays: dict[ArrayName, bytes] = field(default_factory=dict)
    read_bytes: int = 0

    def differences(self, other: ContentsDigest) -> list[str]:
        """Names that only one of them has, or that are not the same in both; ascending."""
        trees = {r for r, _ in self.trees.items() ^ other.trees.items()}
        arrays = {name for name, _ in self.arrays.items() ^ other.arrays.items()}
        return [f"the tree of rank {rank}" for rank in sorted(trees)] + sorted(map(str, arrays))


class _Wanted(NamedTuple):
    name: ArrayName
    tensor: IndexTensor
    boxes: Sequence[IndexBox]
    """Where its bytes may come from."""


def contents_digest(reading: Reading, on_bytes: OnBytes) -> ContentsDigest:
    """Read all of it and digest it. Raises as `Reading.read`. on_bytes: called with the bytes that
    have come since its last call.
    """
    digest = ContentsDigest()
    documents = reading.documents(reading.ranks())
    for rank, node in documents.items():
        tree = encode_tree(node)
        digest.trees[rank] = xxh3_128(tree)
        digest.read_bytes += len(tree)
    # A plain value that all ranks share is stored as bytes as well, and no leaf of a tree.
    leaves = {name for node in documents.values() for name in leaf_names(node)}
    wanted = [
        one
        for tensor in reading.index.tensors()
        if tensor.name in leaves
        for one in _arrays_of(tensor)
    ]
    states = [Xxh3() for _ in wanted]
    slot = np.empty(MEMORY_BYTES, np.uint8)
    boxes = [_box(one.name) for one in wanted]
    for batch in batches(boxes, MEMORY_BYTES):
        _fill(reading, batch, wanted, slot)
        for part in batch:
            states[part.box].update(slot[part.first : part.end].data)
            digest.read_bytes += part.end - part.first
            on_bytes(part.end - part.first)
    digest.arrays = {
        one.name: state.digest() for one, state in zip(wanted, states, strict=True)
    }  # fmt: skip
    return digest


def _arrays_of(tensor: IndexTensor) -> Iterator[_Wanted]:
    form = tensor.dtype, tensor.global_shape
    if tensor.meaning is not Meaning.OWN:
        yield _Wanted(ArrayName(tensor.name, None, *form), tensor, tensor.boxes)
        return
    for box in tensor.boxes:
        yield _Wanted(ArrayName(tensor.name, box.rank, *form), tensor, (box,))


def _box(name: ArrayName) -> WholeBox:
    """Empty where elements have no bytes, as empty texts."""
    size = dtype_of(name.dtype).itemsize
    return WholeBox(name.shape, size) if size else WholeBox((0,), 1)


def _fill(
    reading: Reading,
    batch: Batch,
    wanted: list[_Wanted],
    slot: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> None:
    reads = reading.new_reads()
    for part in batch:
        one = wanted[part.box]
        memory = slot[part.first : part.end].view(dtype_of(one.name.dtype)).reshape(part.shape)
        reads.add_box(one.tensor, one.boxes, part.start, memory, one.name.rank)
    reading.read(reads)
