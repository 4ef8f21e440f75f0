"""The metrics of MLPerf Storage in its own words, and each of its rules, kept and broken."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ckpt.base.units import GiB
from ckptbench.commands.run import exit_code
from ckptbench.report.document import encode, run_document
from ckptbench.report.mlperf import submission_lines, submit
from ckptbench.results import JobResult
from tests.bench import made

HOSTS = ("a:1",)


def phases(**changes: object) -> tuple[JobResult, JobResult]:
    """A write and a read phase that keep every rule."""
    common = {
        "preset": "mlperf", "model": "llama3-8b", "world_size": 8, "reader": "rotate",
        "read_gap_s": 1.0, "hosts": (), **changes,
    }  # fmt: skip
    write = made.job(*(made.save(n) for n in range(10)), **common)
    return write, made.job(*(made.load(n) for n in range(10)), **common)


def broken(write: JobResult, read: JobResult) -> list[str]:
    return [one.rule for one in submit(write, read, 8 << 30).rules if not one.met]


def test_metrics_have_the_names_and_units_of_mlperf() -> None:
    write, read = phases()
    found = submit(write, read, 8 << 30).metric
    assert found["save_checkpoint_duration_mean_seconds"] == pytest.approx(0.11)
    assert found["save_checkpoint_io_mean_GB_per_second"] == pytest.approx(0.2e9 / GiB / 0.11)
    assert found["load_checkpoint_duration_mean_seconds"] == pytest.approx(0.125)
    assert found["load_checkpoint_io_stdev_GB_per_second"] == 0.0
    assert found["checkpoint_size_GB"] == pytest.approx(0.2e9 / GiB)


def test_one_host_breaks_the_rule_that_another_one_reads() -> None:
    assert broken(*phases()) == ["another host reads"]
    assert broken(*phases(hosts=("a:1", "b:1"), world_size=8, model="llama3-8b")) == [
        "more than 4 processes on each host"
    ]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"synced": False}, "fsync at the end of each write"),
        ({"discards": True}, "fsync at the end of each write"),
        ({"read_gap_s": 31.0}, "the read phase begins within 30 s"),
        ({"scale": "1/200"}, "the model's own bytes"),
        ({"model": "llama3-70b"}, "closed: 64 processes"),
    ],
)
def test_each_broken_rule_is_named(changes: dict[str, object], rule: str) -> None:
    assert rule in broken(*phases(**changes))


def test_a_broken_rule_is_an_error_where_that_is_asked_for() -> None:
    found = made.run(*phases())
    assert exit_code(found) == 0
    assert exit_code(found, strict=True) == 1
    assert exit_code(made.run(made.job(made.save(0))), strict=True) == 0


def test_warm_reads_count_only_after_three_times_the_memory() -> None:
    write, read = phases()
    warm = replace(read, checkpoints=tuple(replace(o, cache="as it was") for o in read.checkpoints))
    rule = "caches cleared between the phases, or 3 times the memory written"
    assert rule in broken(write, warm)
    assert rule not in [o.rule for o in submit(write, warm, 600 * made.MB).rules if not o.met]
    short = replace(read, checkpoints=read.checkpoints[:9])
    assert "10 writes, then 10 reads" in broken(write, short)


def test_the_report_has_it_beside_fios_keys() -> None:
    document = json.loads(encode(run_document(made.run(*phases()), plus=False)))
    (found,) = document["checkpoint"]["mlperf"]
    assert found["valid"] is False
    assert found["metric"]["checkpoint_size_GB"] > 0
    write, read = phases()
    lines = list(submission_lines(submit(write, read, 8 << 30)))
    assert "no valid result" in lines[0]
    assert any(line.startswith("  BROKEN another host reads") for line in lines)
