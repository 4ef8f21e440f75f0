"""What do the rules say of a run's jobs? One line of RULES each; every figure is of that run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.units import MiB, format_bytes
from ckpt.erasure.code import Code
from ckptbench.checks import (
    DAEMON_GOAL_MIB,
    STAGER_GOAL_MIB,
    degraded_ratio,
    load_eta,
    save_cpu,
    save_eta,
    stall_ratio,
)
from ckptbench.figures import JudgedRule, Spread, spread
from ckptbench.results import JobResult

Measure = Callable[[Sequence[JobResult]], Spread | None]
"""Of the rule's jobs in the order of its sections; None where they measured nothing of it."""


@dataclass(frozen=True, slots=True)
class SpeedRule:
    """A figure, where it comes from, and what it should be."""

    name: str
    sections: tuple[str, ...]
    """The jobs that it takes; alone they judge it as well."""
    measure: Measure
    limit: float
    at_least: bool = False
    """True: the median should be >= limit; False: <=."""


def judge(
    rules: Sequence[SpeedRule], jobs: Sequence[JobResult], skipped: Mapping[str, str]
) -> tuple[JudgedRule, ...]:
    """What each rule finds. skipped: section -> why it did not run."""
    by_name = {job.name: job for job in jobs}
    return tuple(_verdict(rule, by_name, skipped) for rule in rules)


def rules_of(sections: Iterable[str]) -> list[SpeedRule]:
    """Those that these sections can judge."""
    there = set(sections)
    return [rule for rule in RULES if there.issuperset(rule.sections)]


def time_ratio(job: JobResult, other: JobResult) -> Spread | None:
    """How many times as long it took, in rounds that both have; of loads or of saves."""
    direction = "write" if job.verb == "save" else "read"
    times = {one.number: one.seconds for one in other.counted(direction)}
    ratios = [
        one.seconds / times[one.number] for one in job.counted(direction) if times.get(one.number)
    ]
    return spread(ratios) if ratios else None


# --------------------------------------------------------------------------- inside


def _verdict(
    rule: SpeedRule, jobs: Mapping[str, JobResult], skipped: Mapping[str, str]
) -> JudgedRule:
    there = [jobs[name] for name in rule.sections if name in jobs]
    why = next((skipped[name] for name in rule.sections if name in skipped), "")
    found = rule.measure(there) if len(there) == len(rule.sections) else None
    state = f"{there[0].world_size} x {format_bytes(max(there[0].rank_bytes))}" if there else ""
    return JudgedRule(rule.name, found, rule.limit, rule.at_least, rule.sections, state, why)


def _of(measure: Callable[[JobResult], Spread | None]) -> Measure:
    """Of a rule's only job."""

    def found(jobs: Sequence[JobResult]) -> Spread | None:
        return measure(jobs[0])

    return found


def _times(jobs: Sequence[JobResult]) -> Spread | None:
    return time_ratio(jobs[0], jobs[1])


def _times_for_each_byte(jobs: Sequence[JobResult]) -> Spread | None:
    """Against a plain file of all n columns' bytes: the tier writes n/k for each byte."""
    found, code = time_ratio(jobs[0], jobs[1]), Code.parse(jobs[0].code)
    if found is None:
        return None
    share = code.k / code.n
    return Spread(found.median * share, found.low * share, found.high * share, found.count)


def _stager_mib(jobs: Sequence[JobResult]) -> Spread | None:
    """The largest stager's private memory in each save."""
    most = [one.spent.private_bytes / MiB for job in jobs for one in job.counted("write")]
    return spread([max(most)]) if any(most) else None


def _daemon_mib(jobs: Sequence[JobResult]) -> Spread | None:
    """The largest daemon of all jobs, at its most."""
    most = max(job.daemon_bytes for job in jobs) / MiB
    return spread([most]) if most else None


RULES: Final = (
    SpeedRule("eta_cpu, 4+2", ("null",), _of(save_eta), 0.80, at_least=True),
    SpeedRule("eta_cpu, 8+2", ("null-8+2",), _of(save_eta), 0.80, at_least=True),
    SpeedRule("eta_cpu, 6+0", ("null-6+0",), _of(save_eta), 0.85, at_least=True),
    SpeedRule("eta_disk, 4+2", ("disk",), _of(save_eta), 0.80, at_least=True),
    SpeedRule("eta_disk, 8+2", ("disk-8+2",), _of(save_eta), 0.80, at_least=True),
    SpeedRule("eta_disk, 6+0", ("disk-6+0",), _of(save_eta), 0.85, at_least=True),
    SpeedRule("healthy restore / R*", ("restore",), _of(load_eta), 0.80, at_least=True),
    SpeedRule("degraded / healthy restore", ("restore",), _of(degraded_ratio), 0.90, at_least=True),
    SpeedRule("CPU s/GB of a save, lent", ("null-lent",), _of(save_cpu), 0.65),
    SpeedRule("CPU s/GB of a save, TCP", ("null",), _of(save_cpu), 0.95),
    SpeedRule("durable / torch.save + fsync, lent", ("save-lent", "save-torch"), _times, 1.05),
    SpeedRule("durable / torch.save + fsync, TCP", ("save", "save-torch"), _times, 1.05),
    SpeedRule(
        "durable / O_DIRECT file x n/k, lent", ("save-lent", "save-direct"),
        _times_for_each_byte, 1.25,
    ),
    SpeedRule("durable / O_DIRECT file x n/k, TCP", ("save", "save-direct"), _times_for_each_byte, 1.25),
    SpeedRule("cold load / raw file, lent", ("load-lent", "load-file"), _times, 1.2),
    SpeedRule("cold load / raw file, TCP", ("load", "load-file"), _times, 1.2),
    SpeedRule("cold load / torch.load, lent", ("load-lent", "load-torch"), _times, 1.1),
    SpeedRule("cold load / torch.load, TCP", ("load", "load-torch"), _times, 1.1),
    SpeedRule("stall / warm copy, disk", ("disk",), _of(stall_ratio), 1.1),
    SpeedRule("stall / plain loops, small tensors", ("tensors",), _of(stall_ratio), 1.3),
    SpeedRule("the same bytes of 4 x the ranks", ("null-many", "null"), _times, 1.1),
    SpeedRule("a stager's private memory, MiB", ("disk",), _stager_mib, STAGER_GOAL_MIB),
    SpeedRule("a daemon's memory, MiB", ("disk", "restore"), _daemon_mib, DAEMON_GOAL_MIB),
)  # fmt: skip
"""In the order in which they are reported."""
