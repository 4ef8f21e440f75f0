"""`ioengine=safetensors`: `safetensors.numpy` into one file for each rank, synced when asked.

bfloat16 is written as its bits (uint16): safetensors.numpy reads no bfloat16 back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    Loaded,
    rank_file,
    remove_old,
    sync_file,
)
from ckptbench.workload import Array, Box, State, dtype_of, empty_state, overlaps


class SafetensorsEngine:
    """The save is synchronous: its stall is all of it."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._saved: list[int] = []
        #: Steps that lie there, oldest first.

    def save(self, step: int, state: State) -> None:
        path = rank_file(self._plan, step, self._plan.rank, "safetensors")
        save_file({name: _portable(array) for name, array in state.arrays.items()}, path)
        if self._plan.settings["end_fsync"] == "1":
            sync_file(path)
        self._saved.append(step)

    def wait(self) -> Done:
        return Done()  # It was done when `save` returned.

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            remove_old(rank_file(self._plan, self._saved.pop(0), self._plan.rank, "safetensors"))

    def load(self, step: int, rank: int) -> Loaded:
        dtype = dtype_of(self._plan.state)
        found = load_file(rank_file(self._plan, step, rank, "safetensors"))
        return Loaded({name: array.view(dtype) for name, array in found.items()}, "file")

    def load_boxes(self, step: int, boxes: Sequence[Box]) -> Loaded:
        plan = self._plan.state
        state = empty_state(plan, boxes)
        for box in boxes:
            for rank, first, count, skipped in overlaps(plan, box):
                path = rank_file(self._plan, step, rank, "safetensors")
                with safe_open(path, "numpy") as file:
                    part = file.get_slice(box.name)[skipped : skipped + count]
                state.arrays[box.name][first : first + count] = part.view(dtype_of(plan))
        return Loaded(state.arrays, "file")

    def close(self) -> None:
        """No file outlives a call."""


def _portable(array: Array) -> Array:
    bits: Array = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return bits
