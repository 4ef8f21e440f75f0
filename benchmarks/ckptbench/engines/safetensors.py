"""`ioengine=safetensors`: `safetensors.numpy` into one file for each rank, synced when asked.

bfloat16 is written as its bits (uint16): safetensors.numpy reads no bfloat16 back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ckptbench.engines.base import LoadedState
from ckptbench.engines.file_engine import FileEngine
from ckptbench.workload import Array, State, TensorRange, dtype_of, empty_state, overlaps


class SafetensorsEngine(FileEngine):
    """One file of all tensors for each rank."""

    suffix = "safetensors"

    def write(self, path: Path, state: State) -> None:
        save_file({name: _portable(array) for name, array in state.arrays.items()}, path)

    def load(self, step: int, rank: int) -> LoadedState:
        dtype = dtype_of(self._plan.state)
        found = load_file(self._path(step, rank))
        return LoadedState({name: array.view(dtype) for name, array in found.items()}, "file")

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        plan = self._plan.state
        state = empty_state(plan, boxes)
        for box in boxes:
            for rank, first, count, skipped in overlaps(plan, box):
                with safe_open(self._path(step, rank), "numpy") as file:
                    part = file.get_slice(box.name)[skipped : skipped + count]
                state.arrays[box.name][first : first + count] = part.view(dtype_of(plan))
        return LoadedState(state.arrays, "file")


def _portable(array: Array) -> Array:
    bits: Array = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return bits
