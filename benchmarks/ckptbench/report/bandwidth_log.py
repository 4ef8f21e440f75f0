"""`write_bw_log=PREFIX`: fio's CSV for each rank: `msec, KiB/s, direction, bytes, 0, 0`.

A line is one checkpoint of the rank at the time of its end; with log_avg_msec=T, what all that
ended within T ms make on average. Direction 0 is a read, 1 a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ckptbench.results import JobResult, RunResult


def write_logs(found: RunResult, prefixes: Mapping[str, str]) -> None:
    """`PREFIX_bw.N.log` of every job with a prefix, N from 1 as fio counts."""
    number = 0
    for job in found.jobs:
        ranks = max((len(one.ranks) for one in job.checkpoints), default=0)
        for rank in range(ranks if prefixes.get(job.name) else 0):
            number += 1
            path = Path(f"{prefixes[job.name]}_bw.{number}.log")
            path.write_text("".join(f"{line}\n" for line in log_lines(job, rank)))


def log_lines(job: JobResult, rank: int) -> list[str]:
    """Of one rank, by time."""
    samples = sorted(
        (
            int(one.begun_s * 1000 + times.done_ns / 1e6),
            times.bytes / 1024 * 1e9 / max(1, times.done_ns),
            int(one.direction == "write"),
            times.bytes,
        )
        for one in job.checkpoints
        if one.counts and not one.error
        for times in one.ranks
        if times.rank == rank
    )
    if job.log_avg_msec:
        samples = _averaged(samples, job.log_avg_msec)
    return [f"{at}, {rate:.0f}, {way}, {count}, 0, 0" for at, rate, way, count in samples]


def _averaged(
    samples: list[tuple[int, float, int, int]], window_ms: int
) -> list[tuple[int, float, int, int]]:
    """One for each window and direction that has any."""
    windows: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for at, rate, way, count in samples:
        windows.setdefault((at // window_ms, way), []).append((rate, count))
    return [
        (
            (window + 1) * window_ms,
            sum(rate for rate, _ in found) / len(found),
            way,
            sum(count for _, count in found) // len(found),
        )
        for (window, way), found in sorted(windows.items())
    ]
