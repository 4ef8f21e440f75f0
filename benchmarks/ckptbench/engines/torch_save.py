"""`ioengine=torch_save`: `torch.save` of a dict into one file for each rank, synced when asked."""

from __future__ import annotations

from pathlib import Path

import torch

from ckptbench.engines.base import LoadedState
from ckptbench.engines.file_engine import FileEngine
from ckptbench.engines.torch_arrays import full_disk_as_oserror, to_array, to_tensor
from ckptbench.workload import State, dtype_of


class TorchSaveEngine(FileEngine):
    """The engine of one rank: a pickled dict for each step."""

    suffix = "pt"

    def write(self, path: Path, state: State) -> None:
        tensors = {name: to_tensor(array) for name, array in state.arrays.items()}
        with full_disk_as_oserror(path.parent, len(state.memory)):
            torch.save(tensors, path)

    def load(self, step: int, rank: int) -> LoadedState:
        found = torch.load(self._path(step, rank), weights_only=True)
        dtype = dtype_of(self._plan.state)
        return LoadedState({name: to_array(one, dtype) for name, one in found.items()}, "file")
