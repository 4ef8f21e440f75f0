"""What does a checkpoint's user want to know beyond fio's figures? The key `checkpoint`.

Every phase is given as first-done, p50, p99 and last-done over ranks; over several checkpoints, the
median of each. Rates both ways: the mean of the checkpoints' rates, and all bytes by all time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt.erasure.code import Code
from ckptbench import figures
from ckptbench.checks import (
    degraded_ratio,
    find_goals,
    load_eta,
    save_eta,
    stall_ratio,
)
from ckptbench.figures import Goal, Spread
from ckptbench.results import SAVES, CheckpointFigures, JobResult
from ckptbench.stats import Interval, Quarters, confidence, quarters, variation


@dataclass(frozen=True, slots=True)
class Slowest:
    """Who made the others wait."""

    name: str
    ratio: float
    """Its time against the median's, mean over the checkpoints."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Checkpoints of one kind."""

    kind: str
    count: int
    stall: Quarters | None
    """Seconds; None for loads."""
    sealed: Quarters | None
    """Columns on stable storage, over targets."""
    done: Quarters
    """Committed, or durable as the engine makes it; loaded."""
    seconds: tuple[float, ...]
    """On the clock, of each checkpoint."""
    gb_per_s: tuple[float, ...]
    """User GB/s of each checkpoint."""
    mean_of_rates: Interval
    """GB/s, with 95% confidence."""
    bytes_by_time: float
    """GB/s: all bytes by all time."""
    variation: float
    """Coefficient, of the rates."""
    slowest_rank: Slowest | None
    slowest_target: Slowest | None
    lost_rank_s: float
    """Rank-seconds that training stood still for one checkpoint."""
    pace: float | None
    """Median, of a training's beside a save, as a part of its pace alone."""
    slower_s: float | None
    """Median, of the loop's loss: seconds by which a training's steps took longer than without the
    save."""
    wire_by_payload: float | None
    hosts_by_payload: float | None
    """Bytes that the networks of all hosts carried, others' too; None where ranks ran here."""
    device_by_payload: float | None
    cpu_s_per_gb: dict[str, float]
    """Median by stage."""
    rebuilt_bytes: int
    cache: tuple[str, ...]
    sources: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class First:
    """The first checkpoint of all, which pays for memory and connections."""

    seconds: float
    fault_in_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Ours, of one job."""

    engine: str
    verb: str
    durability: str
    world_size: int
    bytes: int
    rank_bytes_least: int
    rank_bytes_most: int
    phases: tuple[Phases, ...]
    drained: bool
    """One of the phases is a drain."""
    first: First | None
    save_eta: Spread | None
    bound_by: str
    """`G*` or `raw disk`: what save_eta is against."""
    load_eta: Spread | None
    cpu_eta: float | None
    """CPU seconds that must be by those that were."""
    degraded_ratio: Spread | None
    stall_ratio: Spread | None
    generator_s: float
    """The longest, outside the clock."""
    failed: int
    verified: bool | None
    thrown_away: int
    daemon_bytes: int
    goals: tuple[Goal, ...] = field(default_factory=tuple)


def summarize(job: JobResult) -> Summary:
    """Of one job; phases only of what was counted."""
    kinds = list(dict.fromkeys(one.kind for one in job.checkpoints))
    counted = {
        kind: [o for o in job.checkpoints if o.kind == kind and o.counts and not o.error]
        for kind in kinds
    }
    phases = tuple(_phases(kind, found) for kind, found in counted.items() if found)
    first = next((one for one in job.checkpoints if one.kind == "save" and not one.counts), None)
    return Summary(
        engine=job.engine,
        verb=job.verb,
        durability=job.durability,
        world_size=job.world_size,
        bytes=sum(job.rank_bytes),
        rank_bytes_least=min(job.rank_bytes),
        rank_bytes_most=max(job.rank_bytes),
        phases=phases,
        drained=any(one.kind == "drain" for one in phases),
        first=None if first is None else First(first.seconds, _fault_in(first)),
        save_eta=save_eta(job),
        bound_by="G*" if job.discards else "raw disk",
        load_eta=load_eta(job),
        cpu_eta=_cpu_eta(job, phases),
        degraded_ratio=degraded_ratio(job),
        stall_ratio=stall_ratio(job),
        generator_s=max((one.generator_s for one in job.checkpoints), default=0.0),
        failed=sum(bool(one.error) for one in job.checkpoints),
        verified=job.verified,
        thrown_away=job.thrown_away,
        daemon_bytes=job.daemon_bytes,
        goals=tuple(find_goals(job)),
    )


# --------------------------------------------------------------------------- inside


def _phases(kind: str, found: Sequence[CheckpointFigures]) -> Phases:
    rates = [one.bytes / 1e9 / one.seconds for one in found]
    saves = kind in SAVES
    return Phases(
        kind=kind,
        count=len(found),
        stall=_median([quarters([t.staged_ns / 1e9 for t in one.ranks]) for one in found])
        if saves
        else None,
        sealed=_median([quarters(list(_by_target(one).values())) for one in found if one.seals]),
        done=_certain([quarters([t.done_ns / 1e9 for t in one.ranks]) for one in found]),
        seconds=tuple(one.seconds for one in found),
        gb_per_s=tuple(rates),
        mean_of_rates=confidence(rates, least=0.0),
        bytes_by_time=sum(one.bytes for one in found) / 1e9 / sum(one.seconds for one in found),
        variation=variation(rates),
        slowest_rank=_slowest(
            [{f"rank {t.rank}": t.done_ns / 1e9 for t in one.ranks} for one in found]
        ),
        slowest_target=_slowest([_by_target(one) for one in found if one.seals]),
        lost_rank_s=statistics.fmean(
            sum((t.staged_ns - t.begun_ns) / 1e9 for t in one.ranks) for one in found
        ),
        pace=_middle([one.pace for one in found]),
        slower_s=_middle([one.slower_s for one in found]),
        wire_by_payload=_ratio(found, [one.spent.wire_bytes for one in found]),
        hosts_by_payload=_ratio(found, [one.hosts_bytes for one in found]),
        device_by_payload=_ratio(found, [one.device_bytes for one in found]),
        cpu_s_per_gb={
            stage: statistics.median(one.spent.cpu_s[stage] / one.bytes * 1e9 for one in found)
            for stage in found[0].spent.cpu_s
        },
        rebuilt_bytes=sum(one.rebuilt_bytes for one in found) // len(found),
        cache=tuple(dict.fromkeys(one.cache for one in found if one.cache)),
        sources=tuple(dict.fromkeys(one.source for one in found if one.source)),
        faults=tuple(note for one in found for note in one.faults),
    )


def _median(found: Sequence[Quarters]) -> Quarters | None:
    return _certain(found) if found else None


def _certain(found: Sequence[Quarters]) -> Quarters:
    """Median of each figure over the checkpoints."""
    return Quarters(
        statistics.median(one.first for one in found),
        statistics.median(one.p50 for one in found),
        statistics.median(one.p99 for one in found),
        statistics.median(one.last for one in found),
    )


def _by_target(one: CheckpointFigures) -> dict[str, float]:
    """When each target had made its last column durable, seconds."""
    found: dict[str, float] = {}
    for seal in one.seals:
        found[seal.target] = max(found.get(seal.target, 0.0), seal.at_ns / 1e9)
    return found


def _slowest(found: Sequence[dict[str, float]]) -> Slowest | None:
    """The name with the largest mean ratio to the median of its checkpoint; None for one name."""
    ratios: dict[str, list[float]] = {}
    for times in found:
        middle = statistics.median(times.values())
        for name, seconds in times.items():
            ratios.setdefault(name, []).append(seconds / middle if middle else 1.0)
    if len(ratios) < 2:
        return None
    means = {name: statistics.fmean(values) for name, values in ratios.items()}
    name = max(means, key=lambda one: means[one])
    return Slowest(name, means[name])


def _middle(found: Sequence[float | None]) -> float | None:
    """The median of what was measured; None when nothing was."""
    known = [one for one in found if one is not None]
    return statistics.median(known) if known else None


def _ratio(found: Sequence[CheckpointFigures], counted: Sequence[int | None]) -> float | None:
    """Median of counted bytes by payload; None where they were not counted."""
    ratios = [
        count / one.bytes for one, count in zip(found, counted, strict=True) if count is not None
    ]
    return statistics.median(ratios) if ratios else None


def _fault_in(one: CheckpointFigures) -> float:
    return max(times.fault_in_s for times in one.ranks)


def _cpu_eta(job: JobResult, phases: Sequence[Phases]) -> float | None:
    if job.bounds is None or not job.code:
        return None
    for phase in phases:
        did = sum(c for stage, c in phase.cpu_s_per_gb.items() if "thread" not in stage)
        if phase.kind == "save" and did:
            bound = figures.save_bound(job.bounds.costs, Code.parse(job.code), job.bounds.cores)
            return figures.cpu_eta(bound, job.bounds.cores, did)
    return None
