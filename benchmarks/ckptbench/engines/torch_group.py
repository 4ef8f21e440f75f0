"""A gloo group of a launch's ranks, and a state as DTensors over it: as torch trainings have it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from ckpt.base.errors import Refused
from ckptbench.engines.base import EnginePlan
from ckptbench.engines.torch_arrays import to_tensor
from ckptbench.workload import State

GROUP_TIMEOUT_S: Final = 120


class TorchGroup:
    """Its ranks meet in a directory. DTensors are cut as torch cuts them, into equal parts."""

    def __init__(self, plan: EnginePlan, directory: Path) -> None:
        if len(set(plan.state.rank_bytes)) > 1:
            raise Refused("DTensors need ranks of one size", hint="say size=")
        dist.init_process_group(
            "gloo",
            init_method=f"file://{directory / f'group-{plan.launch}'}",
            rank=plan.rank,
            world_size=plan.world_size,
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        self._plan = plan
        self._mesh: DeviceMesh = init_device_mesh("cpu", (plan.world_size,))

    def tree(self, state: State) -> dict[str, object]:
        """DTensors over the state's own memory."""
        return {
            name: DTensor.from_local(to_tensor(array), self._mesh, [Shard(0)], run_check=False)
            for name, array in state.arrays.items()
        }

    def destination(self, state: State) -> dict[str, object]:
        """The same of a state that is loaded. Raises Refused for what torch would cut otherwise."""
        if any(box.total % self._plan.world_size for box in state.boxes):
            raise Refused("tensors are not whole parts for so many readers", hint="see readers=")
        return self.tree(state)

    def check_rank(self, rank: int) -> None:
        """Raises Refused for the part of another rank."""
        if rank != self._plan.rank:
            raise Refused("a rank loads its own part of the mesh", hint="reader=same")

    def close(self) -> None:
        dist.destroy_process_group()
