"""Which figures of fio does a job have? One entry for all its ranks, or one for each.

One "I/O" is one checkpoint of one rank. Submission latency (slat) is its stall: until training goes
on. Completion latency (clat) is what follows until it is durable, and lat is both. A load, a drain
or a fetch has no slat: it is waited for whole.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckptbench.rank import Usage
from ckptbench.results import SAVES, CheckpointFigures, JobResult, RankTimes
from ckptbench.stats import LatencyHistogram

DIRECTIONS: Final = ("read", "write")
KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction, reads or writes, of an entry."""

    io_bytes: int
    runtime_ns: int
    """On the clock: from each checkpoint's beginning to its last rank's end, added up."""
    total: int
    """Checkpoints times ranks."""
    slat: LatencyHistogram
    clat: LatencyHistogram
    lat: LatencyHistogram
    rates: tuple[float, ...]
    """KiB/s of each rank in each checkpoint."""

    @property
    def bytes_per_s(self) -> float:
        return self.io_bytes * 1e9 / self.runtime_ns if self.runtime_ns else 0.0

    @property
    def iops(self) -> float:
        return self.total * 1e9 / self.runtime_ns if self.runtime_ns else 0.0

    @property
    def rate_deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """What fio reports as one job."""

    job: JobResult
    ranks: tuple[int, ...]
    """Which of the job's."""
    host: str
    """Empty: all of them."""
    flows: dict[str, Flow]
    """By direction: read, write."""
    usage: Usage

    @property
    def runtime_ns(self) -> int:
        return sum(flow.runtime_ns for flow in self.flows.values())

    @property
    def user_percent(self) -> float:
        """Of one core for each rank, while the clock ran."""
        return self._percent(self.usage.user_s)

    @property
    def system_percent(self) -> float:
        return self._percent(self.usage.system_s)

    def _percent(self, seconds: float) -> float:
        total_s = self.runtime_ns / 1e9 * len(self.ranks)
        return 100 * seconds / total_s if total_s else 0.0


def entries(job: JobResult) -> list[Entry]:
    """All ranks together, or one entry for each with group_reporting=0."""
    if job.group_reporting:
        return [make_entry(job, None)]
    return [make_entry(job, (rank,)) for rank in range(_rank_count(job))]


def host_entries(job: JobResult) -> list[Entry]:
    """One entry for each host that ran ranks; none when there was one host."""
    hosts = sorted({one.host for checkpoint in job.checkpoints for one in checkpoint.ranks})
    return [make_entry(job, None, host) for host in hosts] if len(hosts) > 1 else []


def make_entry(job: JobResult, ranks: Sequence[int] | None, host: str = "") -> Entry:
    """Of these ranks (None: all), on one host (empty: on all)."""
    counted = [one for one in job.checkpoints if one.counts and not one.error]
    picked = [(one, _pick(one, ranks, host)) for one in counted]
    present = sorted({times.rank for _, found in picked for times in found})
    times = [times for _, found in picked for times in found]
    return Entry(
        job,
        tuple(present),
        host,
        {name: _flow(name, picked) for name in DIRECTIONS},
        Usage(
            sum(one.usage.user_s for one in times),
            sum(one.usage.system_s for one in times),
            sum(one.usage.switches for one in times),
            sum(one.usage.major_faults for one in times),
            sum(one.usage.minor_faults for one in times),
        ),
    )


def _rank_count(job: JobResult) -> int:
    return max((len(one.ranks) for one in job.checkpoints), default=job.world_size)


def _pick(one: CheckpointFigures, ranks: Sequence[int] | None, host: str) -> list[RankTimes]:
    return [
        times
        for times in one.ranks
        if (ranks is None or times.rank in ranks) and (not host or times.host == host)
    ]


def _flow(direction: str, picked: Sequence[tuple[CheckpointFigures, list[RankTimes]]]) -> Flow:
    mine = [(one, found) for one, found in picked if one.direction == direction and found]
    times = [times for _, found in mine for times in found]
    saves = bool(mine) and all(one.kind in SAVES for one, _ in mine)
    stalls = [one.staged_ns - one.begun_ns for one in times] if saves else []
    lats = [one.done_ns - one.begun_ns for one in times]
    return Flow(
        io_bytes=sum(one.bytes for one in times),
        runtime_ns=sum(_clock_ns(one, found) for one, found in mine),
        total=len(times),
        slat=LatencyHistogram.of(stalls),
        clat=LatencyHistogram.of(
            lat - stall for lat, stall in zip(lats, stalls or [0] * len(lats), strict=True)
        ),
        lat=LatencyHistogram.of(lats),
        rates=tuple(
            one.bytes / KIB * 1e9 / lat for one, lat in zip(times, lats, strict=True) if lat
        ),
    )


def _clock_ns(one: CheckpointFigures, found: Sequence[RankTimes]) -> int:
    """To the end of the last of these ranks; of all, to the checkpoint's own end."""
    if len(found) == len(one.ranks):
        return int(one.seconds * 1e9)
    return max(times.done_ns for times in found)
