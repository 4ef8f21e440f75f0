"""Bars for a terminal: who was done when, in one checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ckptbench.report.numbers import msec
from ckptbench.results import SAVES, CheckpointFigures, JobResult

WIDTH: Final = 48
ROWS_MAX: Final = 16
"""Of ranks; with more, the slowest of them."""


def bars(job: JobResult) -> str:
    """The last checkpoint of each kind that counts."""
    lines: list[str] = []
    for kind in dict.fromkeys(one.kind for one in job.checkpoints):
        found = [o for o in job.checkpoints if o.kind == kind and o.counts and not o.error]
        if found:
            lines += _checkpoint(job, found[-1])
    return "\n".join(lines)


def _checkpoint(job: JobResult, one: CheckpointFigures) -> Iterator[str]:
    end_ns = max(one.last_ns, one.sealed_ns or 0, 1)
    legend = "# stall  = until durable" if one.kind in SAVES else f"# until {one.end_word}"
    yield f"{job.name}, {one.kind} of step {one.step}, {msec(end_ns / 1e9)} ms wide: {legend}"
    ordered = sorted(one.ranks, key=lambda rank: -rank.done_ns)[:ROWS_MAX]
    for rank in sorted(ordered, key=lambda rank: rank.rank):
        stall = round(rank.staged_ns / end_ns * WIDTH)
        done = round(rank.done_ns / end_ns * WIDTH)
        bar = "#" * stall + "=" * (done - stall)
        yield f"  rank {rank.rank:<4} |{bar:<{WIDTH}}| {msec(rank.done_ns / 1e9)} ms"
    if len(one.ranks) > ROWS_MAX:
        yield f"  … and {len(one.ranks) - ROWS_MAX} ranks that were faster"
    for target in sorted({seal.target for seal in one.seals}):
        times = [seal.at_ns for seal in one.seals if seal.target == target]
        row = [" "] * WIDTH
        for at in times:
            row[min(WIDTH - 1, int(at / end_ns * WIDTH))] = "*"
        yield f"  {target:<9} |{''.join(row)}| {msec(max(times) / 1e9)} ms, * a column sealed"
