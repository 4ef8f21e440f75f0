"""`ioengine=torch_save`: `torch.save` of a dict into one file for each rank, synced when asked."""

from __future__ import annotations

from pathlib import Path

import torch

from ckptbench.engines.base import LoadedState
from ckptbench.engines.file_engine import FileEngine
from ckptbench.engines.torch_arrays import to_array, to_tensor, told_full_disk
from ckptbench.workload import State, dtype_of


class TorchSaveEngine(FileEngine):
    """One pickled dict for each rank."""

    suffix = "pt"

    def write(self, path: Path, state: State) -> None:
        tensors = {name: to_tensor(array) for name, array in state.arrays.items()}
        with told_full_disk(path.parent, len(state.memory)):
            torch.save(tensors, path)

    def load(self, step: int, rank: int) -> LoadedState:
        found = torch.load(self._path(step, rank), weights_only=True)
        dtype = dtype_of(self._plan.state)
        return LoadedState({name: to_array(one, dtype) for name, one in found.items()}, "file")
