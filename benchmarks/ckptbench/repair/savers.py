"""Ranks that save, for `ckptbench repair`: the steps that are lost, and bursts that are timed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName, Step
from ckpt.base.units import MiB
from ckptbench.cluster import BenchCluster
from ckptbench.engines.base import EnginePlan
from ckptbench.rank import RankAnswer, RankPlan
from ckptbench.ranks import NOW, Ranks
from ckptbench.workload import StatePlan


class StepSaver:
    """I save one state again and again, a step each."""

    def __init__(self, cluster: BenchCluster, ranks: Ranks, run: str, count: int) -> None:
        self._cluster = cluster
        self._ranks = ranks
        self._count = count
        self.run = run
        self.step = 0

    def save(self) -> float:
        """Seconds until the commit of the slowest rank; all begin at once. Raises CkptError."""
        return self._save(NOW)

    def save_several(self, count: int) -> None:
        """So many steps, as fast as it goes."""
        for _ in range(count):
            self._save("0")

    def delete(self) -> None:
        """The step that was saved last."""
        self._cluster.delete_step(RunName(self.run), Step(self.step))

    def fill(self) -> None:
        """Once: what is saved is the same each time."""
        self._all("fill 1")

    def _save(self, when: str) -> float:
        self.step += 1
        self._all(f"save {self.step} {when}")
        return max(answer.ended_ns for answer in self._all("wait")) / 1e9

    def _all(self, line: str) -> Sequence[RankAnswer]:
        answers = self._ranks.tell([line] * self._count)
        for answer in answers:
            if answer.error:
                raise CkptError(f"a save of the benchmark failed: {answer.error}")
        return answers


@contextmanager
def saving(cluster: BenchCluster, run: str, sizes: Sequence[int]) -> Iterator[StepSaver]:
    """Ranks of these sizes, which have a state."""
    tensor = min(4 * MiB, max(sizes))
    state = StatePlan(rank_bytes=tuple(sizes), tensor_bytes=(tensor, tensor))
    launch = os.urandom(4).hex()
    plans = [
        RankPlan(
            EnginePlan("ckpt", rank, len(sizes), state, run, launch, cluster.url),
            holds_state=True,
        )
        for rank in range(len(sizes))
    ]
    with Ranks(plans, cluster.environment, cluster.directory) as ranks:
        saver = StepSaver(cluster, ranks, run, len(sizes))
        saver.fill()
        yield saver
        ranks.finish()
