"""The run: steps are saved, then each round loses targets in several ways and saves beside that.

    alone        a burst of saves, nothing beside it
    column       a target comes back empty: one column is made by this process, timed by itself,
                 all others by a worker
    kill         a target stays away until all is there without it
    rebuild      a target comes back empty, and a burst begins as a worker does
    scrub        a burst while all targets scrub

Another target in each round and each loss. What a burst saves is deleted after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from ckpt.base.errors import CkptError
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.repair.column import measure_column
from ckptbench.repair.losses import Losses
from ckptbench.repair.plan import BurstTimes, RepairPlan, RepairRound, TargetMade
from ckptbench.repair.savers import StepSaver, saving
from ckptbench.repair.scrubbing import scrubs

RANKS: Final = 2
"""Of a step that is lost, and of a burst."""
WARMUPS: Final = 2

Tell = Callable[[str], None]


def cluster_plan(plan: RepairPlan) -> ClusterPlan:
    """Which keeps every step."""
    return ClusterPlan(
        plan.code, plan.targets, discard=False, tcp=True, directory=plan.directory,
        cell_bytes=plan.cell_bytes, keep=0, rebuild_after_s=plan.rebuild_after_s,
    )  # fmt: skip


class RepairRounds:
    """I hold the cluster; enter me, then ask for rounds."""

    def __init__(self, plan: RepairPlan, tell: Tell) -> None:
        self._plan = plan
        self._tell = tell
        self._stack = ExitStack()
        self._cluster: BenchCluster
        self._losses: Losses
        self._burst: StepSaver
        #: Targets take turns at being lost.
        self._victims = self._next_victims()

    def __enter__(self) -> RepairRounds:
        plan = self._plan
        with ExitStack() as stack:
            self._cluster = stack.enter_context(BenchCluster(cluster_plan(plan)))
            self._losses = Losses(self._cluster, plan)
            self._save_held()
            self._burst = stack.enter_context(saving(self._cluster, "burst", [plan.size] * RANKS))
            self._losses.note_held()
            for _ in range(WARMUPS):
                self._save()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self) -> RepairRound:
        """Measure one round."""
        alone_s = self._save()
        victim = self._victim_of_large()
        lost = self._losses.empty([victim])
        column = measure_column(self._cluster.url.removeprefix("ckpt://"), self._cluster.secret)
        large = column.bytes
        rest = lost.without(large, self._plan.code.k)
        target = self._losses.make(rest)
        kill = self._losses.kill(next(self._victims))
        during_rebuild_s = self._save_during_rebuild()
        during_scrub_s = self._save_during_scrub()
        bursts = BurstTimes(alone_s, during_rebuild_s, during_scrub_s)
        return RepairRound(column, target, kill, bursts)

    def lose_several(self) -> TargetMade | None:
        """m targets at once; None where that is one."""
        victims = [next(self._victims) for _ in range(self._plan.code.m)]
        if len(victims) < 2:
            return None
        self._tell(f"{len(victims)} targets are lost at once")
        lost = self._losses.empty(victims)
        return self._losses.make(lost)

    def move(self) -> TargetMade:
        """What a target has goes to others: it is drained."""
        name = next(self._victims)
        self._tell(f"{name} is drained")
        moved = self._losses.make(self._losses.drain(name))
        self._losses.take_back(name)
        return moved

    # ----------------------------------------------------------------------- inside

    def _save_held(self) -> None:
        """What is lost again and again; the large payload last: the newest comes first."""
        plan = self._plan
        self._tell(f"saving {plan.payloads} payloads")
        with saving(self._cluster, "held", [plan.size] * RANKS) as held:
            held.save_several(max(1, plan.payloads // RANKS))
        with saving(self._cluster, "large", [plan.large]) as large:
            large.save()

    def _save(self) -> float:
        seconds = self._burst.save()
        self._delete()
        return seconds

    def _delete(self) -> None:
        """What the burst saved; none of it is lost with what is held."""
        self._burst.delete()
        self._losses.wait_deleted()

    def _save_during_rebuild(self) -> float | None:
        """None when it was not under way to the end, or made nothing meanwhile."""
        cluster, losses = self._cluster, self._losses
        losses.empty([next(self._victims)])
        before = losses.bytes_made()
        worker = cluster.start_repair()
        seconds = self._burst.save()
        beside = losses.is_under_way() and losses.bytes_made() > before
        losses.wait_made()
        cluster.end(worker)
        self._delete()
        return seconds if beside else None

    def _save_during_scrub(self) -> float | None:
        """Likewise."""
        with scrubs(self._cluster) as scrub:
            scrub.begin()
            seconds = self._burst.save()
            beside = scrub.all_run()
            self._delete()
            scrub.wait_ended()
        return seconds if beside else None

    def _next_victims(self) -> Iterator[str]:
        while True:
            yield from self._cluster.target_names

    def _victim_of_large(self) -> str:
        """The next one that holds a column of the large payload."""
        for _ in range(self._plan.targets):
            name = next(self._victims)
            if self._losses.holds_large(name):
                return name
        raise CkptError("no target holds a column of the large payload")
