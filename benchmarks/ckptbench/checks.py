"""Does a job's result add up, and does it meet the goals? Pure.

A result that is better than its bound, bytes that are too few or too many, a load that was not
cold: then the measurement is wrong, and that is an error, whatever the figures say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench import figures
from ckptbench.figures import Goal, Spread, gb_per_s, spread
from ckptbench.results import Bounds, CheckpointFigures, JobResult

COLD_SHARE_MIN: Final = 0.98
"""Of the loaded bytes that the targets must have read from their devices."""

# What must hold now, and what is built for next.
STALL_GOALS: Final = (1.25, 1.10)
ETA_CPU_GOALS: Final = (0.50, 0.80)
ETA_DISK_GOALS: Final = (0.60, 0.80)
RESTORE_GOALS: Final = (0.50, 0.80)
DEGRADED_GOALS: Final = (0.80, 0.90)
UNPROTECTED_NEXT: Final = 0.85
"""Of both etas, without parity."""
CPU_GOALS: Final = {"tcp": (1.6, 0.95), "unix": (1.3, 0.65)}
"""CPU s/GB of all processes in a save whose sink discards, at CPU_GOALS_CODE, by the way there."""
CPU_GOALS_CODE: Final = "4+2"
STAGER_GOAL_MIB: Final = 64
DAEMON_GOAL_MIB: Final = 192


def save_eta(job: JobResult) -> Spread | None:
    """Each save against the bound that binds it: G* where targets drop fragments, the raw device
    where they do not; None when neither was measured.
    """
    saves = job.counted("write")
    if job.discards and job.bounds is not None:
        bound = job.bounds.save_gb_per_s
        etas = [gb_per_s(one.bytes, one.seconds) / bound for one in saves]
    else:
        code = _code(job)
        etas = [
            figures.disk_eta(one.bytes, one.seconds, code, one.raw_gb_per_s)
            for one in saves
            if one.raw_gb_per_s is not None
        ]
    return spread(etas) if etas else None


def load_eta(job: JobResult) -> Spread | None:
    """Healthy loads against R*."""
    loads = [
        one for one in job.counted("read") if one.kind == "load" and one.source != "object store"
    ]
    if job.bounds is None or not loads or not job.code:
        return None
    return spread(
        [gb_per_s(one.bytes, one.seconds) / _load_bound(job.bounds, one) for one in loads]
    )


def _load_bound(bounds: Bounds, load: CheckpointFigures) -> float:
    """R* with what first touch cost around this load."""
    if load.touch_s_per_gb is None:
        return bounds.restore_gb_per_s
    costs = replace(bounds.costs, touch=load.touch_s_per_gb)
    return figures.restore_bound(costs, bounds.cores)


def degraded_ratio(job: JobResult) -> Spread | None:
    """Loads with targets dead against the healthy one of the same pair."""
    healthy = {one.number: one for one in job.counted("read") if one.kind == "load"}
    pairs = [
        (one, healthy[one.number])
        for one in job.counted("read")
        if one.kind == "degraded" and one.number in healthy
    ]
    return spread([good.seconds / bad.seconds for bad, good in pairs]) if pairs else None


def stall_ratio(job: JobResult) -> Spread | None:
    """The slowest save's stall against the slowest warm copy just before."""
    ratios = [one.stall_s / one.copy_s for one in job.counted("write") if one.copy_s]
    return spread(ratios) if ratios else None


def save_cpu(job: JobResult) -> Spread | None:
    """CPU seconds for each GB of a save, of all processes; None where nobody counted them."""
    spent = [
        sum(s for stage, s in one.spent.cpu_s.items() if "thread" not in stage) / one.bytes * 1e9
        for one in job.counted("write")
        if one.spent.cpu_s
    ]
    return spread(spent) if spent else None


def find_errors(job: JobResult) -> list[str]:
    """Find figures of a report that contradict each other."""
    found = []
    for name, eta in (("save", save_eta(job)), ("load", load_eta(job))):
        if eta is not None and eta.median > figures.ETA_MAX:
            found.append(
                f"{name} eta {eta.median:.3g} is above its bound: the measurement is wrong"
            )
    for one in job.checkpoints:
        if one.counts and not one.error:
            name = f"{one.kind} {one.number + 1}"
            found += [f"{name}{problem}" for problem in _problems(job, one)]
    return found


def find_goals(job: JobResult) -> list[Goal]:
    """The goals that this job can say something about."""
    goals: list[Goal] = []

    def judge(
        name: str, found: Spread | None, limits: tuple[float, float], *, at_least: bool
    ) -> None:
        if found is not None:
            goals.append(Goal(name, found.median, limits[0], at_least, limits[1]))

    if job.code:
        name, limits = ("eta_cpu", ETA_CPU_GOALS) if job.discards else ("eta_disk", ETA_DISK_GOALS)
        if not _code(job).m:
            limits = limits[0], UNPROTECTED_NEXT
        judge(name, save_eta(job), limits, at_least=True)
        judge("stall / warm copy", stall_ratio(job), STALL_GOALS, at_least=False)
        if job.discards and job.code == CPU_GOALS_CODE and job.transport in CPU_GOALS:
            judge("CPU s/GB", save_cpu(job), CPU_GOALS[job.transport], at_least=False)
    judge("healthy restore eta", load_eta(job), RESTORE_GOALS, at_least=True)
    judge("degraded / healthy", degraded_ratio(job), DEGRADED_GOALS, at_least=True)
    private = max((one.spent.private_bytes for one in job.counted("write")), default=0)
    if private:
        goals.append(Goal("stager private MiB", private / MiB, STAGER_GOAL_MIB, at_least=False))
    if job.daemon_bytes:
        daemon = job.daemon_bytes / MiB
        goals.append(Goal("daemon MiB", daemon, DAEMON_GOAL_MIB, at_least=False))
    return goals


# --------------------------------------------------------------------------- inside


def _code(job: JobResult) -> Code:
    return Code.parse(job.code) if job.code else Code(1, 0)


def _problems(job: JobResult, one: CheckpointFigures) -> Iterator[str]:
    if not job.code or (one.faults and one.kind != "degraded"):
        return  # A fault's repeated sends are no error of counting.
    if one.direction == "write":
        yield from _miscounted(job, one)
        return
    read = one.spent.device_read
    if one.source == "tier" and one.cache == "dropped" and read is not None:
        share = read / one.bytes
        if share < COLD_SHARE_MIN and job.verb != "mixed":
            yield f" was not cold: {share:.2f} of it came from the device"
    if one.kind == "degraded" and _code(job).m and not one.rebuilt_bytes:
        yield " rebuilt nothing: the dead targets were not needed"


def _miscounted(job: JobResult, one: CheckpointFigures) -> Iterator[str]:
    """Device and wire bytes that are not n/k of the payload."""
    code, ranks = _code(job), job.world_size
    counted: Sequence[tuple[str, int | None]] = (
        ("device", None if job.discards else one.spent.device_written),
        ("wire", one.spent.wire_bytes if job.transport == "tcp" and job.verb == "save" else None),
    )
    for name, count in counted:
        if count is not None and not figures.bytes_fit(count, one.bytes, ranks, code):
            share = count / figures.stored_bytes(one.bytes, code)
            yield f": {name} bytes are {share:.3f} x n/k"
