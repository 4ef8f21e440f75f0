"""A drain is compared with plain files, and a burst beside a drain with one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptbench.cli import main
from ckptbench.commands.run import local_ranks
from ckptbench.job.flags import parse_flags
from ckptbench.job.grammar import Words, parse_file
from ckptbench.job.jobs import build_jobs
from ckptbench.report.text import run_text
from ckptbench.results import RunResult
from ckptbench.run.session import run_jobs
from ckptbench.run.shelf import Context

JOBS = Path(__file__).resolve().parents[2] / "benchmarks" / "jobs"
SMALL = ("--size=4Mi", "--loops=1", "--warmups=0", "--code=2+1", "--targets=3")


def run(name: str, directory: Path, *flags: str) -> RunResult:
    words = Words({"CKPTBENCH_DIR": str(directory), "CKPTBENCH_DURABLE": ""}, {})
    sections = parse_file(name, lambda path: (JOBS / path).read_text(), words)
    everywhere = parse_flags([*SMALL, *flags], words).everywhere
    jobs = build_jobs([sections], everywhere)
    found = run_jobs(jobs, Context(False, local_ranks, 1, lambda name, one: None))
    assert found.errors == []
    assert all(job.verified for job in found.jobs)
    assert list(directory.iterdir()) == []
    return found


def test_a_drain_and_a_load_stand_beside_plain_files(tmp_path: Path) -> None:
    found = run("offload.fio", tmp_path)
    drain, *_ = found.jobs
    assert [one.kind for one in drain.checkpoints] == ["save", "drain"]
    load = next(job for job in found.jobs if job.name == "load")
    assert {one.source for one in load.checkpoints} == {"object store"}
    assert {one.cache for one in load.checkpoints} == {"dropped"}
    tables = run_text(found).split("Side by side, ")[1:]
    told = {table.partition(" ")[0]: table.splitlines()[1:4] for table in tables}
    assert [line.split()[0] for line in told["drain"]] == ["drain", "files", "files-direct"]
    assert [line.split()[0] for line in told["load"]] == [
        "load", "files-load", "files-direct-load",
    ]  # fmt: skip
    assert all(" x [" in line for table in ("drain", "load") for line in told[table])


def test_bursts_during_a_drain_stand_beside_bursts_alone(tmp_path: Path) -> None:
    (burst,) = run("aside.fio", tmp_path, "--loops=2").jobs
    assert [one.kind for one in burst.checkpoints] == ["save", "aside"] * 2
    assert all(one.direction == "write" and one.stall_s for one in burst.checkpoints)


def test_only_the_run_s_own_cluster_is_drained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aside", "--ioengine=posix", "--size=4Mi"]) == 2
    assert "rw=aside needs the cluster of ioengine=ckpt" in capsys.readouterr().err
