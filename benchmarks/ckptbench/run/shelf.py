"""What do the jobs of a run share? Storages, what was saved there, and how ranks are started."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckptbench import models
from ckptbench.cluster import BenchCluster
from ckptbench.engines.base import EnginePlan, Storage, engine_settings
from ckptbench.engines.ckpt import OwnCluster
from ckptbench.job.options import JobOptions
from ckptbench.rank import RankPlan
from ckptbench.ranks import RankGroup
from ckptbench.results import CheckpointFigures
from ckptbench.workload import StatePlan

MakeRanks = Callable[[Sequence[RankPlan], Mapping[str, str], Path], RankGroup]


def unheard(_names: Sequence[str]) -> None:
    """Nobody asks which jobs begin."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every job of a run is given."""

    isolated: bool
    """The loopback is ours alone: wire bytes can be counted."""
    make_ranks: MakeRanks
    hosts: int
    """How many run the ranks."""
    on_checkpoint: Callable[[str, CheckpointFigures], None]
    """Called after each one, from the job's thread."""
    addresses: tuple[str, ...] = ()
    """Of the hosts' agents; empty when ranks run here."""
    start_skew_s: float = 0.0
    """No two hosts begin further apart."""
    on_begun: Callable[[Sequence[str]], None] = unheard
    """Called with the names of jobs that begin together."""


@dataclass(frozen=True, slots=True)
class ShelvedStep:
    """What lies in a storage under a run's name."""

    step: int
    plan: StatePlan
    ended_s: float
    """Monotonic."""


@dataclass(slots=True)
class StepShelf:
    """One storage and what the jobs have put there; the jobs of one group share it."""

    storage: Storage
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards what follows: the jobs of a group have a thread each."""
    saved: dict[str, ShelvedStep] = field(default_factory=dict)
    """By run: the newest save that is durable."""
    steps: dict[str, int] = field(default_factory=dict)
    """By run: the last step that was given out; steps only grow."""

    def next_step(self, run: str) -> int:
        """A step that was never used."""
        with self.lock:
            self.steps[run] = self.steps.get(run, 0) + 1
            return self.steps[run]

    def put(self, run: str, saved: ShelvedStep) -> None:
        """From now on this is what a load finds."""
        with self.lock:
            self.saved[run] = saved

    @property
    def cluster(self) -> BenchCluster | None:
        """The run's own, when there is one."""
        return self.storage.running if isinstance(self.storage, OwnCluster) else None


def state_plan(options: JobOptions, hosts: int) -> StatePlan:
    """The state that all ranks of all hosts hold."""
    count = options.ranks * hosts
    sizes = (
        models.scaled_bytes(options.model, options.scale, count)
        if options.model
        else (options.size,) * count
    )
    return StatePlan(
        rank_bytes=sizes,
        tensor_bytes=options.tensor_size,
        dtype=options.dtype,
        compress_percent=options.buffer_compress_percentage,
        dedupe_percent=options.dedupe_percentage,
        refill=options.refill_buffers,
        seed=options.randseed,
    )


def start_ranks(
    context: Context, shelf: StepShelf, options: JobOptions, plan: StatePlan, readers: int = 0,
    durable: str = "",
) -> RankGroup:  # fmt: skip
    """A new launch: of ranks that hold `plan`'s state, or of so many readers of it.

    durable: the object store beside the storage; empty without one.
    """
    storage, launch = shelf.storage, os.urandom(4).hex()
    count = readers or plan.world_size
    plans = [
        RankPlan(
            EnginePlan(
                engine=options.ioengine,
                rank=rank,
                world_size=count,
                state=plan,
                run=options.run,
                launch=launch,
                url=storage.url,
                settings={
                    **engine_settings(options),
                    "durable": durable,
                    "directory": str(storage.log_directory),
                },
            ),
            holds_state=not readers,
        )
        for rank in range(count)
    ]
    return context.make_ranks(plans, storage.environment, storage.log_directory)
