"""How near does a cold restore come to its bound, and what do dead targets cost? `ckptbench
restore`.

One save, then the ranks and their stagers are gone. A repetition is a pair: fresh processes load
with all targets alive; m targets are killed, and 1 s later other fresh processes load what is
left. Before each, the columns are dropped from the page cache, and the targets' device reads must
account for what was loaded. All loaded bytes are compared. Readers' memory was never touched: a
restart's is not either.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.limits import CELL_BYTES_DEFAULT
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench import figures, proc
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.figures import Costs, Goal, Spread, gb_per_s, spread
from ckptbench.ranks import Ranks
from ckptbench.roofline import (
    Machine,
    RooflinePlan,
    core_count,
    describe_machine,
    measure_costs,
    measure_costs_of_unix,
    measure_read,
)

DEAD_BEFORE_S: Final = 1.0
COLD_SHARE_MIN: Final = 0.98
"""Of the loaded bytes that the targets must have read from their devices."""
STEP: Final = 1

ETA_GOAL: Final = 0.5
DEGRADED_GOAL: Final = 0.8
DAEMON_GOAL_MIB: Final = 256


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What to run."""

    ranks: int = 4
    bytes: int = 256 * MiB
    """Of each rank."""
    code: Code = field(default_factory=lambda: Code(4, 2))
    targets: int = 6
    repetitions: int = 5
    tcp: bool = True
    """False: over Unix sockets, a shortcut of one host."""
    cell_bytes: int = CELL_BYTES_DEFAULT
    directory: Path | None = None
    quick: bool = False
    """Small probes, for tests."""

    def __post_init__(self) -> None:
        if self.targets < self.code.n:
            raise Refused(f"code {self.code} needs {self.code.n} targets, not {self.targets}")
        if self.ranks < 1 or self.repetitions < 1 or self.bytes < 4096 or self.bytes % 4096:
            raise Refused("ranks and repetitions are at least 1, bytes whole pages of 4096")

    @property
    def user_bytes(self) -> int:
        """Of all ranks."""
        return self.ranks * self.bytes


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One load of all ranks. Seconds count from the first call."""

    seconds: float
    """Until the last rank has its state."""
    device_bytes: int
    """That the living targets read."""
    reader_cpu_s: float
    target_cpu_s: float
    coordinator_cpu_s: float
    rebuilt_bytes: int
    """Decoded from parity."""
    source: str
    equal: bool


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Everything that `ckptbench restore` finds."""

    machine: Machine
    code: str
    ranks: int
    rank_bytes: int
    targets: int
    transport: str
    costs: Costs
    bound_gb_per_s: float
    """R*."""
    disk_read_gb_per_s: float
    """O_DIRECT with one reader, for comparison: R* knows no device."""
    healthy: tuple[LoadFigures, ...]
    degraded: tuple[LoadFigures, ...]
    healthy_gb_per_s: Spread
    degraded_gb_per_s: Spread
    eta: Spread
    degraded_ratio: Spread
    """Degraded against healthy of the same pair."""
    cpu_s_per_gb: dict[str, float]
    """Median by group of processes, user GB."""
    daemon_bytes: int
    goals: tuple[Goal, ...]
    errors: tuple[str, ...]


def run_restore(plan: RestorePlan) -> RestoreReport:
    """All pairs. Raises CkptError when a piece does not come up."""
    roofline = RooflinePlan(ranks=plan.ranks, code=plan.code, quick=plan.quick)
    costs, _ = measure_costs(roofline)
    if not plan.tcp:
        costs = measure_costs_of_unix(costs, roofline)
    cluster_plan = ClusterPlan(
        code=plan.code,
        targets=plan.targets,
        discard=False,
        tcp=plan.tcp,
        cell_bytes=plan.cell_bytes,
        directory=plan.directory,
    )
    with BenchCluster(cluster_plan) as cluster:
        costs, disk_rate = measure_read(costs, cluster.directory, roofline)
        with Ranks(cluster, plan.ranks, plan.bytes, holds_state=True) as ranks:
            ranks.together("save", STEP)
            ranks.tell("wait")
            ranks.finish()
        proc.end_processes(cluster.stager_pids())
        healthy, degraded = [], []
        for number in range(plan.repetitions):
            healthy.append(_load(plan, cluster))
            degraded.append(_load_degraded(plan, cluster, number))
        daemons = max(proc.resident_bytes(pid) for pid in cluster.target_pids)
    return _report(plan, costs, disk_rate, healthy, degraded, daemons)


def drop_cached(paths: Sequence[Path]) -> None:
    """Have the kernel forget the pages of these files."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# --------------------------------------------------------------------------- inside


def _load(plan: RestorePlan, cluster: BenchCluster, dead: Sequence[str] = ()) -> LoadFigures:
    """Fresh ranks load; `dead` targets are killed 1 s before they do."""
    with Ranks(cluster, plan.ranks, plan.bytes, holds_state=False) as ranks:
        drop_cached(cluster.column_files())
        for name in dead:
            cluster.kill_target(name)
        if dead:
            time.sleep(DEAD_BEFORE_S)
        targets = cluster.target_pids
        read = sum(proc.device_bytes(pid).read for pid in targets)
        target_cpu = sum(proc.cpu_s(pid) for pid in targets)
        coordinator_cpu = proc.cpu_s(cluster.pid("coordinator"))
        answers = ranks.together("load", STEP)
        figures_found = LoadFigures(
            seconds=(max(one.ended_ns for one in answers) - min(one.begun_ns for one in answers))
            / 1e9,
            device_bytes=sum(proc.device_bytes(pid).read for pid in targets) - read,
            reader_cpu_s=sum(one.cpu_s for one in answers),
            target_cpu_s=sum(proc.cpu_s(pid) for pid in targets) - target_cpu,
            coordinator_cpu_s=proc.cpu_s(cluster.pid("coordinator")) - coordinator_cpu,
            rebuilt_bytes=sum(one.rebuilt_bytes for one in answers),
            source=answers[0].source,
            equal=all(one.equal for one in ranks.tell("compare", STEP)),
        )
        ranks.finish()
    return figures_found


def _load_degraded(plan: RestorePlan, cluster: BenchCluster, number: int) -> LoadFigures:
    """With m targets dead, others in each repetition; they are started again afterwards."""
    names = cluster.target_names
    dead = [names[(number + place) % len(names)] for place in range(plan.code.m)]
    found = _load(plan, cluster, dead)
    for name in dead:
        cluster.start_target(name)
    cluster.wait_live(plan.targets)
    return found


def _report(
    plan: RestorePlan, costs: Costs, disk_rate: float, healthy: Sequence[LoadFigures],
    degraded: Sequence[LoadFigures], daemons: int,
) -> RestoreReport:  # fmt: skip
    user = plan.user_bytes
    bound = figures.restore_bound(costs, core_count())
    rates = [gb_per_s(user, load.seconds) for load in healthy]
    degraded_rates = [gb_per_s(user, load.seconds) for load in degraded]
    eta = spread([rate / bound for rate in rates])
    ratio = spread([worse / rate for worse, rate in zip(degraded_rates, rates, strict=True)])
    return RestoreReport(
        machine=describe_machine(),
        code=str(plan.code),
        ranks=plan.ranks,
        rank_bytes=plan.bytes,
        targets=plan.targets,
        transport="tcp" if plan.tcp else "unix",
        costs=costs,
        bound_gb_per_s=bound,
        disk_read_gb_per_s=disk_rate,
        healthy=tuple(healthy),
        degraded=tuple(degraded),
        healthy_gb_per_s=spread(rates),
        degraded_gb_per_s=spread(degraded_rates),
        eta=eta,
        degraded_ratio=ratio,
        cpu_s_per_gb={
            "readers": spread([load.reader_cpu_s for load in healthy]).median / user * 1e9,
            "targets": spread([load.target_cpu_s for load in healthy]).median / user * 1e9,
            "coordinator": spread([load.coordinator_cpu_s for load in healthy]).median / user * 1e9,
        },
        daemon_bytes=daemons,
        goals=(
            Goal("healthy restore eta", eta.median, ETA_GOAL, at_least=True),
            Goal("degraded / healthy", ratio.median, DEGRADED_GOAL, at_least=True),
            Goal("daemon MiB", daemons / MiB, DAEMON_GOAL_MIB, at_least=False),
        ),
        errors=tuple(_errors(plan, healthy, degraded, eta)),
    )


def _errors(
    plan: RestorePlan, healthy: Sequence[LoadFigures], degraded: Sequence[LoadFigures], eta: Spread
) -> list[str]:
    found = []
    if eta.median > figures.ETA_MAX:
        found.append(f"eta {eta.median:.3g} is above its bound: the measurement is wrong")
    for kind, loads in (("healthy", healthy), ("degraded", degraded)):
        for number, load in enumerate(loads, start=1):
            name = f"{kind} load {number}"
            if not load.equal:
                found.append(f"{name}: what was loaded is not what was saved")
            if load.device_bytes < COLD_SHARE_MIN * plan.user_bytes:
                share = load.device_bytes / plan.user_bytes
                found.append(f"{name} was not cold: {share:.2f} of it came from the device")
            if kind == "degraded" and plan.code.m and not load.rebuilt_bytes:
                found.append(f"{name} rebuilt nothing: the dead targets were not needed")
    return found
