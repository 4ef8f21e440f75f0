"""Which boxes of a global tensor does this rank hold, and in which local memory?

A plain tensor is one whole box. A DTensor's placements are applied from the left, as torch does;
a _StridedShard (FSDP2 over TP) may leave a rank with several boxes. A rank outside of a mesh holds
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.nn.parameter import is_lazy

from ckpt.base.errors import Refused
from ckpt_torch.dtensors import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

Extent = tuple[int, ...]


class LocalBox(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A box of a global tensor in this rank's memory."""

    tensor: torch.Tensor
    """Of the box's shape; on any device."""
    offset: Extent


class Held(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What this rank holds of one tensor."""

    global_shape: Extent
    boxes: tuple[LocalBox, ...]
    replicated: bool = False
    """Other ranks of a mesh hold the same boxes."""


def is_tensor(value: object) -> bool:
    """Whether `held` takes it."""
    return isinstance(value, torch.Tensor | ShardedTensor)


def held(value: object) -> Held:
    """The rank's boxes of a tensor. Raises Refused for one whose parts are not summed yet, and for
    a nested one or one of a lazy module, which have no shape.
    """
    if is_dtensor(value):
        return _held_of_dtensor(value)
    if isinstance(value, ShardedTensor):
        boxes = tuple(
            LocalBox(shard.tensor, tuple(shard.metadata.shard_offsets))
            for shard in value.local_shards()
        )
        return Held(tuple(value.size()), boxes)
    assert isinstance(value, torch.Tensor)
    if value.is_nested and value.layout is torch.strided:
        raise Refused("a nested tensor", hint="save the tensors that it is made of")
    if is_lazy(value):
        raise Refused("a parameter without a shape", hint="call its module once, then save it")
    shape = tuple(value.shape)
    return Held(shape, (LocalBox(value, (0,) * len(shape)),))


def _held_of_dtensor(value: DTensor) -> Held:
    from torch.distributed.tensor import Replicate

    shape = tuple(value.shape)
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return Held(shape, ())
    local = value.to_local()
    placements = tuple(value.placements)
    axes = _axis_parts(shape, tuple(mesh.shape), tuple(coordinate), placements)
    boxes = []
    for parts in product(*axes):
        view = local
        for axis, (local_start, _, length) in enumerate(parts):
            view = view.narrow(axis, local_start, length)
        boxes.append(LocalBox(view, tuple(start for _, start, _ in parts)))
    expected = tuple(sum(length for _, _, length in parts) for parts in axes)
    if tuple(local.shape) != expected:
        raise Refused(f"a DTensor whose local shape is {tuple(local.shape)}, not {expected}")
    replicated = any(
        size > 1 and isinstance(placement, Replicate)
        for size, placement in zip(mesh.shape, placements, strict=True)
    )
    return Held(shape, tuple(boxes), replicated)


def mesh_holders(value: object) -> Extent:
    """Ranks that hold the same boxes of a DTensor as this one, ascending, as far as its mesh says;
    empty for anything else.
    """
    if not is_dtensor(value) or value.device_mesh.get_coordinate() is None:
        return ()
    return _same_place(value.device_mesh, tuple(value.placements))


@lru_cache(maxsize=1024)
def _same_place(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Extent:
    from torch.distributed.tensor import Replicate

    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    index = tuple(
        slice(None) if isinstance(placement, Replicate) else place
        for place, placement in zip(coordinate, placements, strict=True)
    )
    return tuple(sorted(mesh.mesh[index].reshape(-1).tolist()))


@lru_cache(maxsize=65536)
def _axis_parts(
    shape: Extent, mesh_shape: Extent, coordinate: Extent, placements: tuple[Placement, ...]
) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each axis, runs (local start, global start, length); an empty axis has one empty run."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as ShardPlacement
    from torch.distributed.tensor.placement_types import _StridedShard

    runs = [[(0, size)] for size in shape]
    for parts, place, placement in zip(mesh_shape, coordinate, placements, strict=True):
        if isinstance(placement, Replicate):
            continue
        if isinstance(placement, _StridedShard):
            pieces = _chunks(runs[placement.dim], int(placement.split_factor))
            chosen = [_chunks(piece, parts)[place] for piece in pieces]
            runs[placement.dim] = _joined([run for piece in chosen for run in piece])
        elif isinstance(placement, ShardPlacement):
            runs[placement.dim] = _chunks(runs[placement.dim], parts)[place]
        else:
            raise Refused(
                f"a DTensor with placement {placement}", hint="redistribute() it before saving"
            )
    axes = []
    for size, axis in zip(shape, runs, strict=True):
        starts = np.cumsum([0, *(length for _, length in axis)]).tolist()
        found = [(at, start, length) for at, (start, length) in zip(starts, axis, strict=False)]
        axes.append(tuple(found) or ((0, size, 0),))
    return tuple(axes)


def _chunks(runs: Sequence[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    """`count` parts of the runs' indices as torch.chunk makes them; the last may be empty."""
    total = sum(length for _, length in runs)
    step = -(-total // count)
    return [_cut(runs, min(n * step, total), min((n + 1) * step, total)) for n in range(count)]


def _cut(runs: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The runs of indices number [first, last)."""
    found = []
    at = 0
    for start, length in runs:
        low, high = max(first - at, 0), min(last - at, length)
        if low < high:
            found.append((start + low, high - low))
        at += length
    return found


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring runs made one."""
    found: list[tuple[int, int]] = []
    for start, length in runs:
        if found and found[-1][0] + found[-1][1] == start:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((start, length))
    return found
