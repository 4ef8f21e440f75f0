"""`ioengine=dcp`: torch.distributed.checkpoint over gloo, each tensor a DTensor sharded over ranks.

dcp_mode=default  dcp.save as it is
dcp_mode=tuned    two writer threads, one file for each of them, syncs files as asked
dcp_mode=async    dcp.async_save: the stall ends when its copy is made
dcp_mode=process  the same by a process, from shared memory, tuned, with a cached plan
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    LoadedState,
    remove_old,
    step_directory,
)
from ckptbench.engines.torch_arrays import full_disk_as_oserror
from ckptbench.engines.torch_group import GROUP_TIMEOUT_S, TorchGroup
from ckptbench.workload import State, TensorRange, empty_state, rank_boxes

TUNED_THREADS: Final = 2


class DcpEngine:
    """One rank of a process group of its own."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._group = TorchGroup(plan, Path(plan.url))
        #: What the training holds, since the last `prepare`.
        self._tree: dict[str, object] = {}
        #: Steps whose files lie there, oldest first.
        self._saved: list[int] = []
        #: What dcp.async_save gave, until `wait`.
        self._pending: Future[object] | None = None
        self._stager = _shared_stager() if plan.settings["dcp_mode"] == "process" else None

    def prepare(self, state: State) -> None:
        self._tree = self._group.tree(state)

    def save(self, step: int, state: State) -> None:
        writer = self._writer(step)
        match self._plan.settings["dcp_mode"]:
            case "async":
                pending = async_save(self._tree, storage_writer=writer)
                assert isinstance(pending, Future)
                self._pending = pending
            case "process":
                self._pending = self._save_by_process(writer)
            case _:
                with self._errors():
                    save(self._tree, storage_writer=writer)
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
        self._group.check_rank(rank)
        return self.load_boxes(step, rank_boxes(self._plan.state, rank))

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        state = empty_state(self._plan.state, boxes)
        tree = self._group.destination(state)
        load(tree, checkpoint_id=str(step_directory(self._plan, step)))
        return LoadedState(state.arrays, "file")

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()
        self._group.close()

    def _save_by_process(self, writer: FileSystemWriter) -> Future[object]:
        """The process meets those of other ranks at the address that torchrun would give."""
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        answer = async_save(
            self._tree,
            storage_writer=writer,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
            planner=DefaultSavePlanner(enable_plan_caching=True),
        )
        return answer if isinstance(answer, Future) else answer.upload_completion

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What DCP raises is no Exception: its first cause takes its place."""
        with full_disk_as_oserror(Path(self._plan.url), self._plan.state.rank_bytes[0]):
            try:
                yield
            except CheckpointException as error:
                cause, _ = next(iter(error.failures.values()))
                raise RuntimeError(f"{type(cause).__name__}: {cause}") from cause

    def _writer(self, step: int) -> FileSystemWriter:
        path = step_directory(self._plan, step)
        sync = self._plan.settings["end_fsync"] == "1"
        if self._plan.settings["dcp_mode"] in ("tuned", "process"):
            return FileSystemWriter(
                path, single_file_per_rank=False, sync_files=sync, thread_count=TUNED_THREADS
            )
        return FileSystemWriter(path, sync_files=sync)


def _shared_stager() -> DefaultStager:
    """Copies into memory that is shared with the process that writes."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )
