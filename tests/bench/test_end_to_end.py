"""A tiny burst and a tiny restore through real clusters: everything adds up, nothing stays
behind.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench import proc
from ckptbench.burst import BurstPlan, BurstReport, run_burst
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.report import burst_text, restore_text
from ckptbench.restore import RestorePlan, run_restore

TINY = 4 * MiB


@pytest.mark.parametrize("sink", ["null", "disk"])
def test_a_burst_is_measured_and_compared_byte_for_byte(tmp_path: Path, sink: str) -> None:
    report = run_burst(
        BurstPlan(
            ranks=2,
            bytes=TINY,
            code=Code(2, 1),
            targets=3,
            repetitions=1,
            sinks=(sink,),
            directory=tmp_path,
            quick=True,
        )
    )
    (found,) = report.sinks
    assert found.equal
    assert report.errors == []
    (save,) = found.saves
    assert save.columns_missing == 0
    assert 0 < save.first_sealed_s <= save.last_sealed_s
    assert save.stager_cpu_s > 0
    assert save.target_cpu_s > 0
    assert sink in burst_text(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=BurstReport) == report
    assert list(tmp_path.iterdir()) == []


def test_a_restore_is_cold_and_compared_with_and_without_dead_targets(tmp_path: Path) -> None:
    report = run_restore(
        RestorePlan(
            ranks=2,
            bytes=TINY,
            code=Code(2, 1),
            targets=3,
            repetitions=1,
            directory=tmp_path,
            quick=True,
        )
    )
    assert report.errors == ()
    assert report.healthy[0].equal
    assert report.healthy[0].rebuilt_bytes == 0
    assert report.degraded[0].equal
    assert report.degraded[0].rebuilt_bytes > 0
    assert report.healthy[0].source == "tier"
    assert "from parity" in restore_text(report)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_benchmark_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    plan = ClusterPlan(Code(1, 1), targets=2, discard=False, tcp=True, directory=tmp_path)
    cluster = BenchCluster(plan)
    started: list[proc.Marked] = []

    def interrupt() -> None:
        with cluster:
            started.extend(proc.find_marked(cluster.mark))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert len(started) == 3
    assert proc.find_marked(cluster.mark) == []
    assert list(tmp_path.iterdir()) == []
