"""Targets that lose what they hold: all of it is made again, and what that moved adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_client.local.processes import find_marked
from ckptbench import proc
from ckptbench.cli import main
from ckptbench.cluster import BenchCluster

FLAGS = (
    "--code=2+2", "--size=256Ki", "--large=1Mi", "--burst=256Ki", "--payloads=4", "--sources=9",
    "--loops=1", "--bursts=1", "--floor-s=1", "--columns=40", "--rebuild-after-s=1", "--quick",
)  # fmt: skip


def test_one_run_measures_all_of_it_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[str] = []
    init = BenchCluster.__init__

    def marked(self: BenchCluster, plan: object) -> None:
        init(self, plan)  # type: ignore[arg-type]
        marks.append(self.mark)

    monkeypatch.setattr(BenchCluster, "__init__", marked)
    # This process has other tests to run.
    monkeypatch.setattr(proc, "isolate_loopback", lambda: False)
    assert main(["repair", *FLAGS, "--json", "--directory", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]
    (only,) = figures["rounds"]
    assert only["column"]["bytes"] >= 512 << 10, "half of the large payload"
    for made, lost in ((only["target"], 1), (figures["several"], 2), (figures["even"], 1)):
        assert made["columns"] <= lost * made["payloads"]
        assert made["read_bytes"] >= made["needed_bytes"] >= 2 * made["bytes"] / lost
        assert made["bytes"] <= made["written_bytes"] <= 1.005 * made["bytes"]
        assert made["worker_bytes"] > 0
    moved = figures["moved"]
    assert moved["payloads"] == moved["columns"] > 0
    assert moved["bytes"] <= moved["needed_bytes"] <= moved["read_bytes"]
    # Headers and tables are a part of so small columns; the goal is of large ones.
    assert moved["read_bytes"] <= 1.1 * moved["needed_bytes"]
    assert moved["bytes"] <= moved["written_bytes"] <= 1.005 * moved["bytes"]
    assert figures["even"]["columns"] == 9
    given = figures["even"]["given_bytes"].values()
    # Two sources of each of nine columns: on a busy machine one of them may be another.
    assert max(given) <= sum(given) / len(given) + sum(given) / 18
    assert only["kill"]["bytes"] > 0
    assert figures["queue"]["columns"] == figures["queue"]["leased"] == 40
    names = {goal["name"] for goal in document["goals"]}
    assert {"eta_rebuild", "sources, max / mean", "read / needed, m lost"} <= names
    assert list(tmp_path.iterdir()) == []
    assert len(marks) == 2
    assert not any(find_marked(mark) for mark in marks)
