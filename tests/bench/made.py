"""Results made by hand, so that reports, checks and plots have something known to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ckptbench.figures import Costs
from ckptbench.rank import Usage
from ckptbench.results import (
    Bounds,
    CheckpointFigures,
    JobResult,
    Machine,
    RankTimes,
    RunResult,
    Sample,
    Seal,
    Spent,
)

MS = 1_000_000
MB = 1_000_000
COSTS = Costs(copy=0.07, ec=0.04, fingerprint=0.02, crc=0.02, tx=0.2, rx=0.1, read=0.03, touch=0.1)
BOUNDS = Bounds(COSTS, save_gb_per_s=2.0, restore_gb_per_s=3.0, cores=2)
MACHINE = Machine("A CPU", 2, 8 << 30, "6.0", "3.11", "isa-l")


def save(number: int = 0, *, slow_ms: int = 0, counts: bool = True) -> CheckpointFigures:
    """Two ranks of 100 MB: stalls of 20 and 30 ms, sealed at 90 ms and later, committed then."""
    return CheckpointFigures(
        number=number,
        step=number + 1,
        kind="save",
        counts=counts,
        begun_s=float(number),
        ranks=(
            RankTimes(0, 100 * MB, 0, 20 * MS, 100 * MS, Usage(0.01, 0.01, 4, 0, 2)),
            RankTimes(1, 100 * MB, 0, 30 * MS, (110 + slow_ms) * MS, Usage(0.01, 0.01, 4, 0, 2)),
        ),
        seals=(Seal("t0", 80 * MS, 2), Seal("t1", 85 * MS, 2), Seal("t2", (90 + slow_ms) * MS, 2)),
        spent=Spent(
            {"trainer": 0.04, "stager": 0.1, "stager thread 1": 0.08, "targets": 0.12},
            wire_bytes=300 * MB,
            device_read=0,
            device_written=301 * MB,
            private_bytes=20 << 20,
        ),
        generator_s=0.5,
        copy_s=0.025,
        raw_gb_per_s=(4.0, 4.2),
        samples=(Sample("t0", 40 * MS, 60 * MB), Sample("t0", 80 * MS, 100 * MB)),
    )


def load(number: int = 0, kind: str = "load", *, rebuilt: int = 0) -> CheckpointFigures:
    """The same two ranks, loaded in 100 and 125 ms."""
    return CheckpointFigures(
        number=number,
        step=1,
        kind=kind,
        counts=True,
        begun_s=10.0 + number,
        ranks=tuple(
            RankTimes(rank, 100 * MB, 0, done * MS, done * MS, Usage(0.02, 0.02, 1, 0, 9))
            for rank, done in ((0, 100), (1, 125))
        ),
        spent=Spent({"trainer": 0.08, "targets": 0.1}, 200 * MB, 200 * MB, 0),
        cache="dropped",
        source="tier",
        equal=True,
        rebuilt_bytes=rebuilt,
    )


def job(*checkpoints: CheckpointFigures, **changes: object) -> JobResult:
    """The tier's job `save`, 2+1 on 3 targets."""
    change: Callable[..., JobResult] = replace
    return change(
        JobResult(
            name="save",
            group=0,
            engine="ckpt",
            verb="save",
            durability="3 columns of 2+1 on 3 targets, each fsynced, committed",
            given={"rw": "write"},
            world_size=2,
            rank_bytes=(100 * MB, 100 * MB),
            reader="same",
            readers=2,
            code="2+1",
            targets=3,
            transport="tcp",
            percentiles=(50.0, 99.0),
            group_reporting=True,
            log_avg_msec=0,
            checkpoints=tuple(checkpoints),
            started_at_s=1_700_000_000.0,
            elapsed_s=3.0,
            pid=7,
            verified=True,
        ),
        **changes,
    )


def run(*jobs: JobResult) -> RunResult:
    """A whole run."""
    return RunResult(MACHINE, jobs, {"size": "100MB"}, 1_700_000_003.0)
