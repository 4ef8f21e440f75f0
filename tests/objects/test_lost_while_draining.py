"""What a drain worker meets and cannot read is proved lost, and no longer waited for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckpt
from ckpt.base.limits import PAGE_BYTES
from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.cluster import Cluster, command
from tests.landing import in_turn
from tests.objects.drainkit import DRAIN_TIMEOUT_S, Drain, rot, save, wait_drained
from tests.waiting import wait_until

CLUSTER_OPTIONS = "targets=3&code=2+1"
"""It drains nothing by itself."""


def lose_index(cluster: Cluster, run: str, step: int) -> None:
    """No target has a page of it whole."""
    for file in cluster.indexes_of(run, step).values():
        for place in range(0, file.stat().st_size - 2 * PAGE_BYTES, PAGE_BYTES):
            cluster.flip(file, place + 20)


@pytest.mark.parametrize("harm", in_turn(["index", "columns"], every=2))
def test_a_drain_has_a_loss_proved_and_goes_on(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path, harm: str
) -> None:
    run = f"no-{harm}"
    for step in (1, 2, 3):
        save(store, run, step)
    if harm == "index":
        lose_index(cluster, run, 2)
    else:
        rot(cluster, run, 2)
    sink = FileSink(tmp_path)
    drain = Drain(cluster.directory, f"{sink.url}?runs={run}")
    try:
        wait_drained(sink, run, 1, 3)
        shown = lambda: json.loads(  # noqa: E731
            command("status", "--json", "--store", cluster.url, codes=(0, 4)).out
        )
        mine = lambda: next(s for s in shown()["stores"] if s["url"] == sink.url)  # noqa: E731
        wait_until(lambda: mine()["backlog"] == 0, "nothing is waited for", DRAIN_TIMEOUT_S)
    finally:
        assert drain.stop() == 0
    assert [commit.step for commit in store.steps(run)] == [1, 3], "nobody has loaded it"


def test_an_export_of_a_step_without_an_index_names_its_loss(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    save(store, "exported", 1)
    lose_index(cluster, "exported", 1)
    with pytest.raises(AssertionError, match=r"exported@1.*has no index any more"):
        command("export", "exported@1", "--format", "npz", str(tmp_path), "--store", cluster.url)
