"""The run: steps are saved, then each round loses targets in several ways and saves beside that.

    alone        a burst of saves, nothing beside it
    column       a target comes back empty: one column is made by this process, timed by itself,
                 all others by a worker
    kill         a target stays away until all is there without it
    scrub        a burst while all targets scrub

After all rounds targets come back empty once more, one after the other, and bursts begin while a
worker goes as fast as it can; at last saves go on for a while, and it is seen what repair gets.
Another target in each round and each loss. What a burst saves is deleted after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from ckpt.base.errors import CkptError
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.repair.column import measure_column
from ckptbench.repair.floor import MeasuredWorker, saving_goes_on
from ckptbench.repair.losses import Losses
from ckptbench.repair.plan import (
    BesideRebuilds,
    BurstTimes,
    RepairPlan,
    RepairRound,
    TargetMade,
)
from ckptbench.repair.savers import StepSaver, saving
from ckptbench.repair.scrubbing import scrubs

RANKS: Final = 2
"""Of a step that is lost, and of a burst."""
WARMUPS: Final = 2
ALONE_EACH: Final = 4
"""After so many bursts beside rebuilds there is one alone."""
SETTLE_S: Final = 1.0
"""Half a second after a save has begun a worker is at its floor."""

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
            self._burst = stack.enter_context(saving(self._cluster, "burst", [plan.burst] * RANKS))
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
        bursts = BurstTimes(alone_s, self._save_during_scrub())
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

    def beside(self) -> BesideRebuilds:
        """Bursts beside rebuilds, and a rebuild beside saves."""
        self._tell(f"{self._plan.bursts} bursts beside rebuilds")
        alone = [self._save()]
        beside: list[float] = []
        for _ in range(2 * self._plan.bursts):
            beside += self._save_during_rebuild(self._plan.bursts - len(beside))
            if len(beside) >= ALONE_EACH * len(alone):
                alone.append(self._save())
            if len(beside) >= self._plan.bursts:
                break
        self._tell("a rebuild beside saves")
        return BesideRebuilds(tuple(alone), tuple(beside), *self._rebuild_during_saves())

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

    def _save_during_rebuild(self, most: int) -> list[float]:
        """As many as one rebuild outlasts. Each begins while a worker goes as fast as it can."""
        cluster, losses = self._cluster, self._losses
        losses.empty([next(self._victims)])
        worker = cluster.start_repair()
        found: list[float] = []
        while len(found) < most and losses.wait_reading():
            seconds = self._burst.save()
            outlasted = losses.is_under_way()
            self._delete()
            if not outlasted:
                break
            found.append(seconds)
        losses.wait_made()
        cluster.end(worker)
        return found

    def _rebuild_during_saves(self) -> tuple[float, float | None]:
        """Bytes a second of sources: the floor, and what was read, if there was enough."""
        cluster, losses, plan = self._cluster, self._losses, self._plan
        losses.empty([next(self._victims)])
        with MeasuredWorker(cluster) as worker:
            losses.wait_reading()
            with saving_goes_on(cluster):
                begun_s = time.monotonic()
                while time.monotonic() - begun_s < SETTLE_S + plan.floor_s:
                    self._save()
                found = worker.bytes_per_s(begun_s + SETTLE_S) if losses.is_under_way() else None
            losses.wait_made()
        return plan.code.k * cluster.repair().floor_bytes, found

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
