"""`ioengine=zarr`: one Zarr v3 group for each rank, uncompressed, a chunk for each tensor.

Files are synced when asked, as zarr itself never does. bfloat16 is written as its bits (uint16).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zarr
from zarr.core.metadata import ArrayV3Metadata

from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    LoadedState,
    rank_file,
    remove_old,
    sync_tree,
)
from ckptbench.workload import Array, State, TensorRange, dtype_of, empty_state, overlaps


class ZarrEngine:
    """The save is synchronous: its stall is all of it."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        #: Steps whose groups lie there, oldest first.
        self._saved: list[int] = []

    def save(self, step: int, state: State) -> None:
        path = rank_file(self._plan, step, self._plan.rank, "zarr")
        group = zarr.create_group(store=str(path), overwrite=True)
        for name, array in state.arrays.items():
            bits = _portable(array)
            made = group.create_array(
                name,
                shape=bits.shape,
                chunks=bits.shape,
                dtype=bits.dtype,
                compressors=None,
                config={"write_empty_chunks": True},
            )
            made[:] = bits
        if self._plan.settings["end_fsync"] == "1":
            sync_tree(path)
        self._saved.append(step)

    def wait(self) -> Done:
        return Done()  # It was done when `save` returned.

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            remove_old(rank_file(self._plan, self._saved.pop(0), self._plan.rank, "zarr"))

    def load(self, step: int, rank: int) -> LoadedState:
        group = zarr.open_group(str(rank_file(self._plan, step, rank, "zarr")), mode="r")
        dtype = dtype_of(self._plan.state)
        return LoadedState({name: _read(group, name, dtype) for name in group.array_keys()}, "file")

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        plan = self._plan.state
        state = empty_state(plan, boxes)
        groups = {
            rank: zarr.open_group(str(rank_file(self._plan, step, rank, "zarr")), mode="r")
            for rank in range(plan.world_size)
        }
        for box in boxes:
            for rank, first, count, skipped in overlaps(plan, box):
                part = np.asarray(_array(groups[rank], box.name)[skipped : skipped + count])
                state.arrays[box.name][first : first + count] = part.view(dtype_of(plan))
        return LoadedState(state.arrays, "file")

    def close(self) -> None:
        """No file outlives a call."""


def _read(group: zarr.Group, name: str, dtype: np.dtype[np.generic]) -> Array:
    found: Array = np.asarray(_array(group, name)[:]).view(dtype)
    return found


def _array(group: zarr.Group, name: str) -> zarr.Array[ArrayV3Metadata]:
    found = group[name]
    assert isinstance(found, zarr.Array)
    return found


def _portable(array: Array) -> Array:
    bits: Array = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return bits
