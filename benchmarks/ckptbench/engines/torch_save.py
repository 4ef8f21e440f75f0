"""`ioengine=torch_save`: `torch.save` of a dict into one file for each rank, synced when asked."""

from __future__ import annotations

import torch

from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    Loaded,
    rank_file,
    remove_old,
    sync_file,
)
from ckptbench.engines.torch_arrays import to_array, to_tensor
from ckptbench.workload import State, dtype_of


class TorchSaveEngine:
    """The save is synchronous: its stall is all of it."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._saved: list[int] = []
        #: Steps that lie there, oldest first.

    def save(self, step: int, state: State) -> None:
        path = rank_file(self._plan, step, self._plan.rank, "pt")
        torch.save({name: to_tensor(array) for name, array in state.arrays.items()}, path)
        if self._plan.settings["end_fsync"] == "1":
            sync_file(path)
        self._saved.append(step)

    def wait(self) -> Done:
        return Done()  # It was done when `save` returned.

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            remove_old(rank_file(self._plan, self._saved.pop(0), self._plan.rank, "pt"))

    def load(self, step: int, rank: int) -> Loaded:
        found = torch.load(rank_file(self._plan, step, rank, "pt"), weights_only=True)
        dtype = dtype_of(self._plan.state)
        return Loaded({name: to_array(one, dtype) for name, one in found.items()}, "file")

    def close(self) -> None:
        """No file outlives a call."""
