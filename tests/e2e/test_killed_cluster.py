"""A local cluster whose supervisor is killed, as by the kernel when memory is short: who waits
for it starts it again, and finds all that was acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import Rank
from ckpt_client.load.contents import Contents, Want
from ckpt_client.save import handle
from tests.e2e.cluster import Cluster, runs
from tests.waiting import wait_until

CLUSTER_OPTIONS = "targets=3&code=2%2B1"
WAIT_S = 60.0


def kill(cluster: Cluster) -> None:
    """The supervisor; whom it started end with it, a moment later."""
    pid = json.loads((cluster.directory / "ready.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)


def test_a_save_that_is_only_waited_for_commits_in_the_cluster_that_is_started_again(
    cluster: Cluster, store: ckpt.Store
) -> None:
    store.save("waiting", 1, {"a": np.zeros(1000)}).wait(WAIT_S)
    coordinator = cluster.coordinator_pid
    with cluster.stopped(coordinator):
        save = store.save("waiting", 2, {"a": np.ones(1000)})
        kill(cluster)
    assert save.wait(WAIT_S).step == 2
    assert cluster.coordinator_pid != coordinator
    assert store.load("waiting", 2)["a"].sum() == 1000


def test_a_question_amid_the_kill_is_answered(cluster: Cluster, store: ckpt.Store) -> None:
    store.save("asked", 1, {"a": 1}).wait(WAIT_S)
    kill(cluster)
    # The first may still be answered by the coordinator that is ending.
    assert [store.latest("asked") for _ in range(20)] == [1] * 20


def test_a_question_on_its_way_is_answered_by_the_next_coordinator(
    cluster: Cluster, store: ckpt.Store
) -> None:
    store.save("held", 1, {"a": 1}).wait(WAIT_S)
    with cluster.stopped(cluster.coordinator_pid):
        save = store.save("held", 2, {"a": 2})
        kill(cluster)
        assert store.latest("held") in (1, 2)
    assert save.wait(WAIT_S).step == 2


def test_who_opens_amid_the_kill_waits_for_the_next_one(
    cluster: Cluster, store: ckpt.Store
) -> None:
    store.save("opened", 1, {"a": 1}).wait(WAIT_S)
    kill(cluster)
    with ckpt.open(cluster.url) as other:
        assert other.latest("opened") == 1


def test_a_cluster_that_somebody_stopped_is_not_started_by_a_save_that_waits(
    cluster: Cluster, store: ckpt.Store
) -> None:
    store.save("stopped", 1, {"a": 1}).wait(WAIT_S)
    supervisor = json.loads((cluster.directory / "ready.json").read_text())["pid"]
    with cluster.stopped(cluster.coordinator_pid):
        save = store.save("stopped", 2, {"a": 2})
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: not (cluster.directory / "ready.json").exists(), "it serves no more")
    wait_until(lambda: not runs(supervisor), "it has ended")
    said = rf"not committed after 2 s: the cluster in {cluster.directory} is not running; the save"
    with pytest.raises(ckpt.Unavailable, match=said):
        save.wait(2.0)
    assert not (cluster.directory / "ready.json").exists()
    with ckpt.open(cluster.url):
        assert save.wait(WAIT_S).step == 2


@pytest.fixture(scope="module")
def saved(store: ckpt.Store) -> str:
    """A run whose step 0 is in no stager's memory any more."""
    for step in range(3):
        store.save("read", step, {"a": np.full(4_000_000, float(step))}).wait(WAIT_S)
    return "read"


def test_a_load_under_way_goes_on_in_the_cluster_that_is_started_again(
    cluster: Cluster, store: ckpt.Store, saved: str
) -> None:
    processes = [cluster.coordinator_pid, *map(cluster.pid_of, cluster.targets())]

    def plan(contents: Contents) -> float:
        (tensor,) = contents.variants("a")
        array = contents.new_array(tensor.global_shape, np.dtype(np.float64))
        contents.fill([Want("a", array[:1000], (0,), rank=Rank(0))])
        if runs(processes[0]):
            kill(cluster)
            wait_until(lambda: not any(map(runs, processes)), "its daemons have ended")
        contents.fill([Want("a", array, (0,), rank=Rank(0))])
        return float(array.sum())

    with store.resolve(saved, 0) as checkpoint:
        assert checkpoint.read(plan) == 0
        assert checkpoint.source == "tier"


def test_what_was_resolved_before_the_kill_is_loaded_after_it(
    cluster: Cluster, store: ckpt.Store, saved: str
) -> None:
    processes = [cluster.coordinator_pid, *map(cluster.pid_of, cluster.targets())]
    with store.resolve(saved, 0) as checkpoint:
        kill(cluster)
        wait_until(lambda: not any(map(runs, processes)), "its daemons have ended")
        state = checkpoint.load()
    assert isinstance(state, dict)
    assert state["a"].sum() == 0


def test_who_waits_long_for_a_commit_hears_of_it(
    cluster: Cluster,
    store: ckpt.Store,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a full disk, where no coordinator can begin until there is room."""
    monkeypatch.setattr(handle, "LATE_S", (0.1, 0.4))
    with ThreadPoolExecutor(1) as pool:
        with cluster.stopped(cluster.coordinator_pid):
            waits = pool.submit(store.save("late", 7, {"a": 1}).wait)
            wait_until(
                lambda: caplog.text.count("late@7 is not committed") > 1, "it is said, again"
            )
        assert waits.result(WAIT_S).step == 7
    assert "ckpt ls late says whom it waits for, ckpt status" in caplog.text
