"""`preset=mlperf`: the metrics of MLPerf Storage's checkpointing, and which of its rules were kept.

Durations are the slowest process's and rates are in GiB/s under names that say GB, as there. Rates
are the mean of the checkpoints' rates; `checkpoint.phases` has bytes by time beside it. A run that
breaks a rule is still a measurement, but no result of MLPerf.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.units import GiB
from ckptbench import models
from ckptbench.results import CheckpointFigures, JobResult, RunResult

CHECKPOINTS: Final = 10
READ_GAP_MAX_S: Final = 30.0
MEMORY_TIMES: Final = 3
RANKS_PER_HOST_MIN: Final = 5
SUBSET_MODEL: Final = "llama3-8b"
"""The only one that may run on fewer processes than the closed division's."""
SUBSET_RANKS: Final = 8


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule and whether this run kept it."""

    rule: str
    met: bool
    found: str


@dataclass(frozen=True, slots=True)
class Submission:
    """What MLPerf asks of a checkpointing run."""

    model: str
    num_processes: int
    metric: dict[str, float]
    rules: tuple[Rule, ...]

    @property
    def is_valid(self) -> bool:
        return all(one.met for one in self.rules)


def submissions(run: RunResult) -> list[Submission]:
    """Of every pair of jobs that the preset made."""
    phases = [job for job in run.jobs if job.preset == "mlperf"]
    pairs = zip(phases[::2], phases[1::2], strict=False)
    return [submit(write, read, run.machine.memory_bytes) for write, read in pairs]


def submit(write: JobResult, read: JobResult, memory_bytes: int) -> Submission:
    """The metrics and rules of a write phase and the read phase after it."""
    writes, reads = write.counted("write"), read.counted("read")
    return Submission(
        write.model,
        write.world_size,
        {
            **_metric("save", writes),
            **_metric("load", reads),
            "checkpoint_size_GB": sum(write.rank_bytes) / GiB,
        },
        tuple(_rules(write, read, memory_bytes)),
    )


def submission_lines(found: Submission) -> Iterator[str]:
    """For people."""
    verdict = "every rule kept" if found.is_valid else "no valid result"
    yield f"MLPerf Storage, {found.model}, {found.num_processes} processes: {verdict}"
    for name, value in found.metric.items():
        yield f"  {name:<44} {value:.4g}"
    for rule in found.rules:
        yield f"  {'kept  ' if rule.met else 'BROKEN'} {rule.rule}: {rule.found}"


def _metric(verb: str, found: Sequence[CheckpointFigures]) -> dict[str, float]:
    seconds = [one.last_ns / 1e9 for one in found]
    rates = [one.bytes / GiB / took for one, took in zip(found, seconds, strict=True)]
    named = (("io", "GB_per_second", rates), ("duration", "seconds", seconds))
    return {
        f"{verb}_checkpoint_{what}_{kind}_{unit}": value
        for what, unit, values in named
        if values
        for kind, value in (
            ("mean", statistics.fmean(values)),
            ("stdev", statistics.pstdev(values)),
        )
    }


def _rules(write: JobResult, read: JobResult, memory_bytes: int) -> Iterator[Rule]:
    writes, reads = write.counted("write"), read.counted("read")
    hosts = max(1, len(write.hosts))
    counts = f"{len(writes)} writes, {len(reads)} reads"
    yield Rule("10 writes, then 10 reads", len(writes) == len(reads) == CHECKPOINTS, counts)
    synced = write.synced and not write.discards
    yield Rule("fsync at the end of each write", synced, write.durability)
    memory = memory_bytes * hosts
    large = sum(one.bytes for one in writes) >= MEMORY_TIMES * memory
    cleared = bool(reads) and all(one.cache == "dropped" for one in reads)
    yield Rule(
        "caches cleared between the phases, or 3 times the memory written",
        large or cleared,
        "large enough" if large else f"cache {reads[0].cache if reads else 'unknown'}",
    )
    rotated = hosts > 1 and read.reader == "rotate"
    yield Rule("another host reads", rotated, f"{hosts} hosts, reader={read.reader}")
    gap = read.read_gap_s
    yield Rule(
        "the read phase begins within 30 s",
        gap is not None and gap <= READ_GAP_MAX_S,
        "not known" if gap is None else f"after {gap:.1f} s",
    )
    closed = models.find(write.model).ranks
    subset = write.model == SUBSET_MODEL and write.world_size == SUBSET_RANKS
    yield Rule(
        f"closed: {closed} processes",
        write.world_size == closed or subset,
        str(write.world_size),
    )
    each = write.world_size // hosts
    yield Rule("more than 4 processes on each host", each >= RANKS_PER_HOST_MIN, str(each))
    yield Rule("the model's own bytes", write.scale == "1", f"scale={write.scale}")
