"""Job files that run ckpt beside DCP, Orbax and TensorStore, on states of half a MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptbench.job.flags import parse_flags
from ckptbench.job.grammar import Words, parse_file
from ckptbench.job.jobs import build_jobs
from ckptbench.report.text import run_text
from tests.frameworks.bench_ranks import run_warm
from tests.frameworks.warm import Warm
from tests.landing import in_turn

JOBS = Path(__file__).resolve().parents[2] / "benchmarks" / "jobs"
SMALL = (
    "--numjobs=2",
    "--size=256Ki",
    "--tensor_size=4Ki-24Ki",
    "--loops=1",
    "--warmups=0",
    "--code=2+1",
    "--targets=3",
)
PACES = ("think=matmul:1s", "think=matmul:100ms")
"""A training that spins beside each save: as the file has it, and long enough to be counted."""


@pytest.mark.parametrize(
    ("name", "tables"),
    in_turn(
        [
            (
                "torch.fio",
                {
                    "save": ["ckpt", "dcp-async", "dcp-process"],
                    "load": ["ckpt-load", "dcp-load", "dcp-process-load"],
                    "reshard": ["ckpt-reshard", "dcp-reshard"],
                },
            ),
            (
                "orbax.fio",
                {
                    "save": ["ckpt", "tensorstore", "orbax", "orbax-plain"],
                    "load": ["ckpt-load", "tensorstore-load", "orbax-load", "orbax-plain-load"],
                },
            ),
        ],
        every=2,
    ),
)
def test_all_give_back_what_they_were_given_and_stand_side_by_side(
    warm: Warm, tmp_path: Path, name: str, tables: dict[str, list[str]]
) -> None:
    words = Words({"CKPTBENCH_DIR": str(tmp_path)}, {})
    sections = parse_file(name, lambda path: (JOBS / path).read_text().replace(*PACES), words)
    jobs = build_jobs([sections], parse_flags(SMALL, words).everywhere)
    found = run_warm(warm, jobs)
    assert found.errors == []
    assert all(job.verified for job in found.jobs)
    paced = [job for job in found.jobs if "think" in job.given]
    assert [job.name for job in paced] == (tables["save"] if name == "torch.fio" else [])
    every = [one for job in paced for one in job.checkpoints]
    assert all(one.pace and one.slower_s is not None for one in every)
    told = {}
    for table in run_text(found).split("Side by side, ")[1:]:
        kind, *lines = table.partition("\n\n")[0].splitlines()
        told[kind.partition(" ")[0]] = [line.split()[0] for line in lines if " x [" in line]
    assert told == tables
    assert list(tmp_path.iterdir()) == []
