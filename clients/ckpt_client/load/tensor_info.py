"""What a checkpoint says of one tensor, for people and programs that choose what to load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import Node, leaf_names


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One form of one name. Ranks whose own tensors of a name differ in dtype or shape give
    several forms of it."""

    name: str
    """Its path in the state, with `/` between the steps."""
    dtype: np.dtype[np.generic]
    """As it was saved."""
    shape: tuple[int, ...]
    """Of the whole tensor, whatever its shards are."""
    shards: int
    """Parts in which it was declared; 1 for a whole tensor."""
    ranks: tuple[int, ...]
    """Who declared them, ascending; of what is the same on all ranks, one of them."""
    per_rank: bool
    """Each of `ranks` has one of its own under this name."""

    @property
    def bytes(self) -> int:
        """Of all its elements; of all ranks' where each has its own."""
        copies = len(self.ranks) if self.per_rank else 1
        return copies * math.prod(self.shape) * self.dtype.itemsize


def tensor_infos(
    tensors: Iterable[IndexTensor],
    documents: Callable[[Iterable[Rank]], Mapping[Rank, Node]],
) -> list[TensorInfo]:
    """Ascending by name. `documents` reads the trees of ranks, of as few as are needed.

    Raises Refused for a dtype that is unknown here, and what `documents` raises.
    """
    found = list(tensors)
    # A plain value that all ranks share is also stored as bytes under its name: trees tell.
    bytes_of_all = [t for t in found if t.meaning is Meaning.REPLICATED and t.dtype == "|u1"]
    trees = documents({tensor.boxes[0].rank for tensor in bytes_of_all})
    leaves = {name for tree in trees.values() for name in leaf_names(tree)}
    plain = {tensor.name for tensor in bytes_of_all} - leaves
    infos = [_info_of(tensor) for tensor in found if tensor.name not in plain]
    return sorted(infos, key=lambda info: (info.name, info.ranks))


def _info_of(tensor: IndexTensor) -> TensorInfo:
    return TensorInfo(
        tensor.name,
        dtype_of(tensor.dtype),
        tensor.global_shape,
        len(tensor.boxes) if tensor.meaning is Meaning.SHARD else 1,
        tuple(sorted({int(box.rank) for box in tensor.boxes})),
        tensor.meaning is Meaning.OWN,
    )
