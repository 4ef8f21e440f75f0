"""`ioengine=dcp`: torch.distributed.checkpoint over gloo, each tensor a DTensor sharded over ranks.

    dcp_mode=default  dcp.save as it is
    dcp_mode=tuned    two writer threads, one file for each of them, syncs files as asked
    dcp_mode=async    dcp.async_save: the stall ends when its copy is made

DTensors are cut as torch cuts them: all ranks must hold as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from ckpt.base.errors import Refused
from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    LoadedState,
    remove_old,
    step_directory,
)
from ckptbench.engines.torch_arrays import to_tensor, told_full_disk
from ckptbench.workload import State, TensorRange, empty_state, rank_boxes

TUNED_THREADS: Final = 2
GROUP_TIMEOUT_S: Final = 120


class DcpEngine:
    """One rank of a process group of its own."""

    def __init__(self, plan: EnginePlan) -> None:
        if len(set(plan.state.rank_bytes)) > 1:
            raise Refused("ioengine=dcp: DTensors need ranks of one size", hint="say size=")
        self._plan = plan
        #: Steps whose files lie there, oldest first.
        self._saved: list[int] = []
        #: What dcp.async_save gave, until `wait`.
        self._pending: Future[object] | None = None
        meeting = Path(plan.url) / f"group-{plan.launch}"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=plan.rank,
            world_size=plan.world_size,
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        self._mesh: DeviceMesh = init_device_mesh("cpu", (plan.world_size,))

    def save(self, step: int, state: State) -> None:
        tree = self._tree(state)
        if self._plan.settings["dcp_mode"] == "async":
            pending = async_save(tree, storage_writer=self._writer(step))
            assert isinstance(pending, Future)
            self._pending = pending
        else:
            with self._errors():
                save(tree, storage_writer=self._writer(step))
        self._saved.append(step)

    def wait(self) -> Done:
        if self._pending is not None:
            with self._errors():
                self._pending.result(GROUP_TIMEOUT_S)
            self._pending = None
        dist.barrier()
        return Done()

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            old = self._saved.pop(0)
            if self._plan.rank == 0:
                remove_old(step_directory(self._plan, old))

    def load(self, step: int, rank: int) -> LoadedState:
        if rank != self._plan.rank:
            raise Refused("ioengine=dcp: a rank loads its own part of the mesh", hint="reader=same")
        return self._load(step, rank_boxes(self._plan.state, rank))

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        return self._load(step, boxes)

    def close(self) -> None:
        dist.destroy_process_group()

    def _load(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        if any(box.total % self._plan.world_size for box in boxes):
            raise Refused("ioengine=dcp: tensors are not whole parts for so many readers")
        state = empty_state(self._plan.state, boxes)
        load(self._tree(state), checkpoint_id=str(step_directory(self._plan, step)))
        return LoadedState(state.arrays, "file")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What DCP raises is no Exception: its first cause takes its place."""
        with told_full_disk(Path(self._plan.url), self._plan.state.rank_bytes[0]):
            try:
                yield
            except CheckpointException as error:
                cause, _ = next(iter(error.failures.values()))
                raise RuntimeError(f"{type(cause).__name__}: {cause}") from cause

    def _tree(self, state: State) -> dict[str, object]:
        return {
            name: DTensor.from_local(to_tensor(array), self._mesh, [Shard(0)], run_check=False)
            for name, array in state.arrays.items()
        }

    def _writer(self, step: int) -> FileSystemWriter:
        path = step_directory(self._plan, step)
        sync = self._plan.settings["end_fsync"] == "1"
        if self._plan.settings["dcp_mode"] == "tuned":
            return FileSystemWriter(
                path, single_file_per_rank=False, sync_files=sync, thread_count=TUNED_THREADS
            )
        return FileSystemWriter(path, sync_files=sync)
