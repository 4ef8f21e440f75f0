"""`ioengine=ckpt`: the tier itself, through its public API.

The run starts a cluster of its own (code=, targets=, sink=), or uses the one at url=. All tensors
are `Shard`s of global ones, so that any number of readers can load them.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np

import ckpt
import ckpt_client.load.checkpoint
from ckpt.aio.secret import find_secret_file
from ckpt.base.errors import CkptError
from ckpt.erasure.code import Code
from ckpt_client.local.detach import child_environment
from ckpt_client.local.processes import kill_processes
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.engines.base import ONE_THREAD, Done, EnginePlan, LoadedState
from ckptbench.job.options import JobOptions
from ckptbench.workload import Array, State, TensorRange, rank_boxes

TIMEOUT_S: Final = 120.0
STAGER_IDLE_S: Final = 2.0
END_TIMEOUT_S: Final = 10.0


class CkptEngine:
    """The engine of one rank: its store in a ckpt cluster."""

    def __init__(self, plan: EnginePlan) -> None:
        self.plan = plan
        self.store = open_store(plan)
        self._save: ckpt.Save | None = None
        #: A state, and what it is declared as: once, since its memory stays the same.
        self._declared: tuple[State, dict[str, ckpt.Shard]] | None = None
        assert ckpt_client.load.checkpoint, "imported above: a process's start is no part of a load"

    def make_ready(self, state: State) -> None:
        plan = self.plan
        self.store.prepare(self._tree(state), rank=plan.rank, world_size=plan.world_size).result(
            TIMEOUT_S
        )

    def save(self, step: int, state: State) -> None:
        plan, self._save = self.plan, None
        self._save = self.store.save(
            plan.run, step, self._tree(state), rank=plan.rank, world_size=plan.world_size,
            staging=plan.settings.get("staging", "copy"),
        )  # fmt: skip

    def wait(self) -> Done:
        if self._save is None:
            raise CkptError("nothing was saved")
        commit = self._save.wait(TIMEOUT_S)
        return Done(
            slowest_target=commit.slowest_target,
            columns_missing=commit.columns_missing,
            fault_in_s=self._save.fault_in_s,
        )

    def load(self, step: int, rank: int) -> LoadedState:
        return self._load(step, rank_boxes(self.plan.state, rank))

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        return self._load(step, boxes)

    def tidy(self) -> None:
        """The cluster keeps two steps by itself."""

    def close(self) -> None:
        self.store.close()

    def _tree(self, state: State) -> dict[str, ckpt.Shard]:
        if self._declared is None or self._declared[0] is not state:
            self._declared = state, declared(state)
        return self._declared[1]

    def _load(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        plan = self.plan
        with self.store.resolve(
            plan.run, step, rank=plan.rank, world_size=plan.world_size, timeout_s=TIMEOUT_S
        ) as checkpoint:
            tree = checkpoint.load(like=wanted(boxes))
            found = filled(tree)
            return LoadedState(
                found,
                checkpoint.source,
                sum(one.rebuilt_bytes for one in checkpoint.statistics),
            )


class OwnCluster:
    """A cluster for this run alone."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._code = Code.parse(options.code)
        self.cluster: BenchCluster | None = None
        """While it runs."""

    def durability(self, options: JobOptions) -> str:
        if self._options.sink == "null":
            return f"{self._code.n} columns checked and dropped: nothing is durable"
        return (
            f"{self._code.n} columns of {self._code} on {self._options.targets} targets, each "
            f"fsynced, committed"
        )

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def environment(self) -> dict[str, str]:
        return self.running.environment

    @property
    def log_directory(self) -> Path:
        return self.running.directory

    @property
    def running(self) -> BenchCluster:
        """The cluster, once entered."""
        assert self.cluster is not None, "entered"
        return self.cluster

    def stages(self) -> dict[str, list[int]]:
        return {
            "stager": self.running.stager_pids(),
            "targets": self.running.target_pids,
            "coordinator": [self.running.pid("coordinator")],
        }

    def files(self) -> list[Path]:
        return self.running.column_files()

    def forget_readers(self) -> None:
        kill_processes(self.running.stager_pids(), signal.SIGKILL, END_TIMEOUT_S)

    def __enter__(self) -> Self:
        options = self._options
        self.cluster = BenchCluster(
            ClusterPlan(
                code=self._code,
                targets=options.targets,
                discard=options.sink == "null",
                tcp=options.tcp,
                directory=Path(options.directory) if options.directory else None,
                cell_bytes=options.cell,
            )
        )
        self.cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.cluster is not None:
            self.cluster.close()


class ExistingCluster:
    """Somebody's cluster at url=: its processes are not ours to count, kill or forget."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._stack = contextlib.ExitStack()
        self._directory = Path()

    def durability(self, options: JobOptions) -> str:
        return f"as the cluster at {self._options.url} commits"

    @property
    def url(self) -> str:
        return self._options.url

    @property
    def environment(self) -> dict[str, str]:
        secret = {"CKPT_SECRET_FILE": str(find_secret_file())}
        return {**child_environment(), **secret, **ONE_THREAD}

    @property
    def log_directory(self) -> Path:
        return self._directory

    def stages(self) -> dict[str, list[int]]:
        return {}

    def files(self) -> list[Path]:
        return []

    def forget_readers(self) -> None:
        """Its stagers end by themselves; loads say where they came from."""

    def __enter__(self) -> Self:
        made = tempfile.TemporaryDirectory(prefix="ckptbench-")
        self._directory = Path(self._stack.enter_context(made))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def open_store(plan: EnginePlan) -> ckpt.Store:
    """A rank's. The states repeat from save to save, and what is measured is writing them."""
    return ckpt.open(plan.url, launch=plan.launch, stager_idle_s=STAGER_IDLE_S, references=False)


def declared(state: State) -> dict[str, ckpt.Shard]:
    """What a rank saves: its boxes of the global tensors."""
    return {
        box.name: ckpt.Shard(state.arrays[box.name], (box.total,), (box.start,))
        for box in state.boxes
    }


def wanted(boxes: Sequence[TensorRange]) -> dict[str, ckpt.Box]:
    """What a load is asked for: it makes the arrays itself, over memory that was never touched."""
    return {box.name: ckpt.Box((box.start,), (box.count,)) for box in boxes}


def filled(tree: object) -> dict[str, Array]:
    """What a load filled, by name."""
    assert isinstance(tree, dict)
    found: dict[str, Array] = {}
    for name, leaf in tree.items():
        array = leaf.array if isinstance(leaf, ckpt.Shard) else leaf
        assert isinstance(array, np.ndarray)
        found[str(name)] = array
    return found
