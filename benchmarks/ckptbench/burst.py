"""How near does a burst of saves come to its bounds? `ckptbench burst`.

A repetition: all ranks copy their state at once (the baseline of the stall), then all call
`store.save` at one moment; the clock runs from the first call to the moment at which all n
columns of all ranks are durable. The first two saves pay for memory and connections and are
reported apart or dropped.

    sink null   targets drop fragments once their checksum was verified, over TCP:   eta_cpu
                against G*
    sink disk   targets as they are; raw O_DIRECT writes before and after:           eta_disk

A run ends with a load by fresh processes, with the stagers gone, that is compared byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused, Unavailable
from ckpt.base.limits import CELL_BYTES_DEFAULT
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench import figures, proc
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.figures import Costs, Goal, Spread, gb_per_s, spread
from ckptbench.rank import Answer
from ckptbench.ranks import Ranks
from ckptbench.raw_disk import DiskRate, best_write, repeat_write
from ckptbench.roofline import Machine, RooflinePlan, core_count, describe_machine, measure_costs

WARMUPS: Final = 2
DISCARDED_MAX: Final = 5
"""Repetitions that may be thrown away because the raw disk drifted."""
SEAL_TIMEOUT_S: Final = 60.0
SEAL_POLL_S: Final = 0.005
COMPARE_BYTES: Final = 8 * MiB
"""Of a rank, in the last save of a discarding run."""
ARENA_NAME: Final = "memfd:ckpt-arena"

GROUPS: Final = ("trainer", "stager", "targets", "coordinator")

STALL_GOAL: Final = 1.25
ETA_CPU_GOAL: Final = 0.5
ETA_DISK_GOAL: Final = 0.6
STAGER_GOAL_MIB: Final = 64
DAEMON_GOAL_MIB: Final = 256


@dataclass(frozen=True, slots=True)
class BurstPlan:
    """What to run."""

    ranks: int = 4
    bytes: int = 256 * MiB
    """Of each rank."""
    code: Code = field(default_factory=lambda: Code(4, 2))
    targets: int = 6
    repetitions: int = 5
    sinks: tuple[str, ...] = ("null", "disk")
    tcp: bool = True
    """False: the disk sink over Unix sockets. The null sink is always over TCP."""
    cell_bytes: int = CELL_BYTES_DEFAULT
    directory: Path | None = None
    isolated: bool = False
    """The loopback is ours alone: wire bytes can be checked."""
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
class SaveFigures:
    """One save of all ranks. Seconds count from the first call of save."""

    stall_s: float
    """Of the slowest rank."""
    copy_s: float
    """Of the slowest warm copy, all ranks at once, just before."""
    first_sealed_s: float
    last_sealed_s: float
    committed_s: float
    """The last rank knows of the commit."""
    fault_in_s: float
    columns_missing: int
    wire_bytes: int
    """Of the loopback; 0 when it is not ours alone."""
    device_bytes: int
    trainer_cpu_s: float
    stager_cpu_s: float
    target_cpu_s: float
    coordinator_cpu_s: float
    stager_threads_cpu_s: tuple[float, ...]
    """The stagers' busiest threads, the second busiest, …; each summed over the ranks."""
    stager_private_bytes: int
    raw_before: float
    """GB/s of the device without us; 0 for the null sink."""
    raw_after: float


@dataclass(frozen=True, slots=True)
class SinkReport:
    """One sink's repetitions and what follows from them."""

    sink: str
    transport: str
    saves: tuple[SaveFigures, ...]
    first: SaveFigures
    """The first save of all, with its fault-in."""
    thrown_away: int
    user_gb_per_s: Spread
    stall_ratio: Spread
    eta: Spread
    commit_s: Spread
    cpu_s_per_gb: dict[str, float]
    """Median by group of processes, user GB."""
    cpu_eta: float
    """Must-cost by did-cost in CPU seconds, see `figures.cpu_eta`; no goal."""
    bound_gb_per_s: float
    """G* for the null sink, the raw disk's best for the other."""
    raw: DiskRate | None
    stager_private_bytes: int
    daemon_bytes: int
    equal: bool
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BurstReport:
    """Everything that `ckptbench burst` finds."""

    machine: Machine
    code: str
    ranks: int
    rank_bytes: int
    targets: int
    costs: Costs
    sinks: tuple[SinkReport, ...]
    goals: tuple[Goal, ...]

    @property
    def errors(self) -> list[str]:
        return [f"{one.sink}: {error}" for one in self.sinks for error in one.errors]


def run_burst(plan: BurstPlan) -> BurstReport:
    """All sinks, one after the other. Raises CkptError when a piece does not come up."""
    costs, _ = measure_costs(RooflinePlan(ranks=plan.ranks, code=plan.code, quick=plan.quick))
    sinks = tuple(_run_sink(plan, sink, costs) for sink in plan.sinks)
    return BurstReport(
        machine=describe_machine(),
        code=str(plan.code),
        ranks=plan.ranks,
        rank_bytes=plan.bytes,
        targets=plan.targets,
        costs=costs,
        sinks=sinks,
        goals=tuple(goal for sink in sinks for goal in _goals(sink)),
    )


class Stopwatch:
    """I measure saves of one cluster and its ranks."""

    def __init__(self, plan: BurstPlan, cluster: BenchCluster, ranks: Ranks) -> None:
        self._plan, self._cluster, self._ranks = plan, cluster, ranks
        self._step = 0

    @property
    def step(self) -> int:
        """The last step that was saved."""
        return self._step

    def save(self, raw: DiskRate | None) -> SaveFigures:
        """One repetition; with the raw disk measured around it unless `raw` is None."""
        cluster, plan = self._cluster, self._plan
        copies = self._ranks.together("copy")
        before = self._raw(raw)
        self._step += 1
        counters = Counters(cluster)
        answers = self._ranks.together("save", self._step)
        begun = min(answer.begun_ns for answer in answers)
        commits = self._ranks.tell("wait")
        sealed = self._wait_sealed(begun, plan.ranks * plan.code.n)
        spent = counters.since()
        after = self._raw(raw)
        return SaveFigures(
            stall_s=max(answer.stall_s for answer in answers),
            copy_s=max(_seconds(answer) for answer in copies),
            first_sealed_s=(sealed[0] - begun) / 1e9,
            last_sealed_s=(sealed[-1] - begun) / 1e9,
            committed_s=(max(answer.ended_ns for answer in commits) - begun) / 1e9,
            fault_in_s=max(answer.fault_in_s for answer in answers),
            columns_missing=commits[0].columns_missing,
            wire_bytes=spent.wire_bytes if plan.isolated else 0,
            device_bytes=spent.device_bytes,
            trainer_cpu_s=sum(answer.cpu_s for answer in answers),
            stager_cpu_s=spent.stager_cpu_s,
            target_cpu_s=spent.target_cpu_s,
            coordinator_cpu_s=spent.coordinator_cpu_s,
            stager_threads_cpu_s=spent.stager_threads_cpu_s,
            stager_private_bytes=max(
                (proc.private_bytes(pid, ARENA_NAME) for pid in cluster.stager_pids()), default=0
            ),
            raw_before=before,
            raw_after=after,
        )

    def _raw(self, like: DiskRate | None) -> float:
        if like is None:
            return 0.0
        total = int(figures.stored_bytes(self._plan.user_bytes, self._plan.code))
        return repeat_write(self._cluster.directory, total, like).gb_per_s

    def _wait_sealed(self, begun_ns: int, count: int) -> list[int]:
        deadline_s = time.monotonic() + SEAL_TIMEOUT_S
        while len(sealed := self._cluster.sealed_since(begun_ns)) < count:
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"{len(sealed)} of {count} columns were sealed in time")
            time.sleep(SEAL_POLL_S)
        return sealed


@dataclass(frozen=True, slots=True)
class Spent:
    """What the cluster's processes and the kernel's counters added up to."""

    wire_bytes: int
    device_bytes: int
    stager_cpu_s: float
    target_cpu_s: float
    coordinator_cpu_s: float
    stager_threads_cpu_s: tuple[float, ...]


class Counters:
    """I remember the counters as they are now. Stagers that start later count from zero."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._cluster = cluster
        self._stagers = {pid: proc.cpu_s(pid) for pid in cluster.stager_pids()}
        self._threads = {pid: proc.thread_cpu_s(pid) for pid in self._stagers}
        self._targets = {pid: proc.cpu_s(pid) for pid in cluster.target_pids}
        self._written = {pid: proc.device_bytes(pid).written for pid in self._targets}
        self._coordinator = proc.cpu_s(cluster.pid("coordinator"))
        self._wire = proc.loopback_bytes()

    def since(self) -> Spent:
        """What was added since."""
        stagers = self._cluster.stager_pids()
        return Spent(
            wire_bytes=proc.loopback_bytes() - self._wire,
            device_bytes=sum(
                proc.device_bytes(pid).written - was for pid, was in self._written.items()
            ),
            stager_cpu_s=sum(proc.cpu_s(pid) - self._stagers.get(pid, 0.0) for pid in stagers),
            target_cpu_s=sum(proc.cpu_s(pid) - was for pid, was in self._targets.items()),
            coordinator_cpu_s=proc.cpu_s(self._cluster.pid("coordinator")) - self._coordinator,
            stager_threads_cpu_s=sum_threads(
                [_added(self._threads.get(pid, {}), proc.thread_cpu_s(pid)) for pid in stagers]
            ),
        )


def sum_threads(stagers: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The busiest threads of all stagers together, the second busiest, … (three at most)."""
    ordered = [sorted(one, reverse=True) for one in stagers]
    return tuple(sum(one[place] for one in ordered if len(one) > place) for place in range(3))


def compare_cold(cluster: BenchCluster, ranks: int, state_bytes: int, step: int) -> bool:
    """Load with nothing but the targets left, and compare every byte."""
    proc.end_processes(cluster.stager_pids())
    with Ranks(cluster, ranks, state_bytes, holds_state=False) as readers:
        readers.together("load", step)
        equal = all(answer.equal for answer in readers.tell("compare", step))
        readers.finish()
    return equal


# --------------------------------------------------------------------------- inside


def _run_sink(plan: BurstPlan, sink: str, costs: Costs) -> SinkReport:
    discard = sink == "null"
    tcp = plan.tcp or discard
    cluster_plan = ClusterPlan(
        code=plan.code,
        targets=plan.targets,
        discard=discard,
        tcp=tcp,
        cell_bytes=plan.cell_bytes,
        directory=plan.directory,
    )
    with BenchCluster(cluster_plan) as cluster:
        raw = None
        if not discard:
            total = int(figures.stored_bytes(plan.user_bytes, plan.code))
            raw = best_write(cluster.directory, total, plan.targets)
        with Ranks(cluster, plan.ranks, plan.bytes, holds_state=True) as ranks:
            watch = Stopwatch(plan, cluster, ranks)
            warmups = [watch.save(None) for _ in range(WARMUPS)]
            saves, thrown = _repeat(plan, watch, raw)
            ranks.finish()
        daemons = max(
            proc.resident_bytes(pid) for pid in [*cluster.target_pids, cluster.pid("coordinator")]
        )
        equal = _compare(plan, cluster, watch, discard)
    return _report(plan, costs, sink, tcp, saves, warmups[0], thrown, raw, daemons, equal)


def _repeat(
    plan: BurstPlan, watch: Stopwatch, raw: DiskRate | None
) -> tuple[list[SaveFigures], int]:
    saves: list[SaveFigures] = []
    thrown = 0
    while len(saves) < plan.repetitions:
        save = watch.save(raw)
        steady = raw is None or (
            figures.drift(save.raw_before, save.raw_after) <= figures.DISK_DRIFT_MAX
        )
        if steady or thrown >= DISCARDED_MAX:
            # Past the limit the disk has no steady rate here; the spread will show it.
            saves.append(save)
        else:
            thrown += 1
    return saves, thrown


def _compare(plan: BurstPlan, cluster: BenchCluster, watch: Stopwatch, discard: bool) -> bool:
    if not discard:
        return compare_cold(cluster, plan.ranks, plan.bytes, watch.step)
    cluster.keep_file.touch()
    size, step = min(plan.bytes, COMPARE_BYTES), watch.step + 1
    with Ranks(cluster, plan.ranks, size, holds_state=True) as ranks:
        ranks.together("save", step)
        ranks.tell("wait")
        ranks.finish()
    return compare_cold(cluster, plan.ranks, size, step)


def _report(
    plan: BurstPlan, costs: Costs, sink: str, tcp: bool, saves: list[SaveFigures],
    first: SaveFigures, thrown: int, raw: DiskRate | None, daemons: int, equal: bool,
) -> SinkReport:  # fmt: skip
    user = plan.user_bytes
    if raw is None:
        bound = figures.save_bound(costs, plan.code, core_count())
        etas = [gb_per_s(user, save.last_sealed_s) / bound for save in saves]
    else:
        bound = raw.gb_per_s
        etas = [
            figures.disk_eta(user, save.last_sealed_s, plan.code, (save.raw_before, save.raw_after))
            for save in saves
        ]
    eta, cpu = spread(etas), _cpu_by_group(saves, user)
    must = figures.save_bound(costs, plan.code, core_count())
    return SinkReport(
        sink=sink,
        transport="tcp" if tcp else "unix",
        saves=tuple(saves),
        first=first,
        thrown_away=thrown,
        user_gb_per_s=spread([gb_per_s(user, save.last_sealed_s) for save in saves]),
        stall_ratio=spread([save.stall_s / save.copy_s for save in saves]),
        eta=eta,
        commit_s=spread([save.committed_s for save in saves]),
        cpu_s_per_gb=cpu,
        cpu_eta=figures.cpu_eta(must, core_count(), sum(cpu[name] for name in GROUPS)),
        bound_gb_per_s=bound,
        raw=raw,
        stager_private_bytes=max(save.stager_private_bytes for save in saves),
        daemon_bytes=daemons,
        equal=equal,
        errors=tuple(_errors(plan, tcp, saves, eta, raw, equal)),
    )


def _cpu_by_group(saves: Sequence[SaveFigures], user_bytes: int) -> dict[str, float]:
    def median(values: Sequence[float]) -> float:
        return spread(values).median / user_bytes * 1e9

    groups = {
        "trainer": median([save.trainer_cpu_s for save in saves]),
        "stager": median([save.stager_cpu_s for save in saves]),
        "targets": median([save.target_cpu_s for save in saves]),
        "coordinator": median([save.coordinator_cpu_s for save in saves]),
    }
    for place in range(3):
        groups[f"stager thread {place + 1}"] = median(
            [save.stager_threads_cpu_s[place] for save in saves]
        )
    return groups


def _errors(
    plan: BurstPlan, tcp: bool, saves: Sequence[SaveFigures], eta: Spread, raw: DiskRate | None,
    equal: bool,
) -> list[str]:  # fmt: skip
    found = []
    if not equal:
        found.append("what was loaded is not what was saved")
    if eta.median > figures.ETA_MAX:
        found.append(f"eta {eta.median:.3g} is above its bound: the measurement is wrong")
    for number, save in enumerate(saves, start=1):
        counted = [("device", save.device_bytes)] if raw is not None else []
        counted += [("wire", save.wire_bytes)] if tcp and plan.isolated else []
        for name, count in counted:
            if not figures.bytes_fit(count, plan.user_bytes, plan.ranks, plan.code):
                expected = figures.stored_bytes(plan.user_bytes, plan.code)
                found.append(f"save {number}: {name} bytes are {count / expected:.3f} x n/k")
    return found


def _goals(report: SinkReport) -> list[Goal]:
    name = f"{report.sink}, {report.transport}"
    eta, limit = ("eta_cpu", ETA_CPU_GOAL) if report.raw is None else ("eta_disk", ETA_DISK_GOAL)
    private, daemon = report.stager_private_bytes / MiB, report.daemon_bytes / MiB
    return [
        Goal(f"{eta} ({name})", report.eta.median, limit, at_least=True),
        Goal(f"stall / warm copy ({name})", report.stall_ratio.median, STALL_GOAL, at_least=False),
        Goal(f"stager private MiB ({name})", private, STAGER_GOAL_MIB, at_least=False),
        Goal(f"daemon MiB ({name})", daemon, DAEMON_GOAL_MIB, at_least=False),
    ]


def _seconds(answer: Answer) -> float:
    return (answer.ended_ns - answer.begun_ns) / 1e9


def _added(was: dict[int, float], now: dict[int, float]) -> list[float]:
    return [seconds - was.get(thread, 0.0) for thread, seconds in now.items()]
