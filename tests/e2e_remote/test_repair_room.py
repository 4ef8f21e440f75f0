"""All disks are full as a target is lost: what no store has is made again in the room of drained
steps, which go for it. Nothing that is kept is lost, and whoever asks hears what waits, and why.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest

import ckpt
from ckpt.base.limits import RESERVE_FRACTION
from ckpt.base.units import MiB
from ckpt.format.messages.asking import Ask
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from tests.e2e.cluster import command
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.e2e_remote.test_repair import repair_worker
from tests.objects.drainkit import wait_drained
from tests.waiting import ASKED_S, wait_until

OLD, NEW = "old", "new"
DRAINED = range(1, 9)
KEPT = range(1, 4)
PAYLOAD_BYTES = 16 * MiB
WAIT_S = 120.0
"""What waits for room is tried again after a minute at most."""


class FullCluster(RemoteCluster):
    """Its targets may take no column more once they are filled."""

    capacity: dict[str, int]

    def __init__(self, directory: Path) -> None:
        # Nothing goes but for repair.
        flags = ("--rebuild-after-s", "1", "--evict-above-percent", "100",
                 "--evict-below-percent", "100")  # fmt: skip
        super().__init__(directory, flags)

    def fill(self) -> None:
        """Each may hold what it has, and its reserve."""
        for id, used in {one.id: one.bytes_used for one in self.status().targets}.items():
            self.targets.pop(id).end(signal.SIGTERM)
            capacity = int((used + MiB) / (1 - RESERVE_FRACTION))
            self._target_flags = ("--capacity-bytes", str(capacity))
            self.start_target(id)
        self.wait_live()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullCluster]:
    with started(FullCluster(tmp_path)) as made:
        yield made


def state(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 255, PAYLOAD_BYTES, np.uint8)


def save_and_drain(cluster: FullCluster, store: ckpt.Store) -> None:
    for step in DRAINED:
        store.save(OLD, step, {"w": state(step)}).wait(WAIT_S)
    bucket = cluster.directory / "bucket"
    worker = Daemon(
        "drain", "--coordinator", cluster.coordinators, "--to", f"file://{bucket}?runs={OLD}",
        "--secret-file", str(cluster.secret_file), log=cluster.log_of("drain"),
    )  # fmt: skip
    wait_drained(FileSink(bucket), OLD, *DRAINED)
    worker.end(signal.SIGTERM)
    for step in KEPT:
        store.save(NEW, step, {"w": state(100 + step)}).wait(WAIT_S)


def repairs(cluster: RemoteCluster) -> RepairView:
    with cluster.client() as client:
        _, bulk = client.call(Ask("repair"), timeout_s=30.0)
    return msgspec.json.decode(bytes(bulk), type=RepairView)


def low(cluster: RemoteCluster) -> str:
    """REDUNDANCY_LOW, as status says it."""
    return "".join(one.message for one in cluster.status().checks if one.name == "REDUNDANCY_LOW")


def holder(cluster: RemoteCluster) -> str:
    """Of most columns of what no store has."""
    counts = dict.fromkeys(cluster.targets, 0)
    for step in KEPT:
        shown = json.loads(command("show", f"{NEW}@{step}", "--json", "--store", cluster.url).out)
        for each in shown["columns"]:
            for id in each["targets"]:
                counts[id] = counts.get(id, 0) + 1
    return max(sorted(counts), key=lambda id: counts[id])


def is_whole(cluster: RemoteCluster, run: str) -> bool:
    found = json.loads(command("ls", run, "--json", "--store", cluster.url).out)
    return all(one["state"] == "committed" for one in found["steps"])


def test_what_is_drained_goes_for_what_no_store_has(full: FullCluster) -> None:
    with ckpt.open(full.url) as store:
        save_and_drain(full, store)
        for step in DRAINED:
            store.pin(OLD, step)
    full.fill()
    lost = holder(full)
    full.targets.pop(lost).end()
    shutil.rmtree(full.directory / lost)
    worker = repair_worker(full)
    try:
        # All of it is pinned: nothing may go.
        wait_until(lambda: waits(full), "what waits says that it has no room", WAIT_S, ASKED_S)
        assert " waits: no room on h" in low(full)
        shown = command("repair", "--store", full.url).out
        assert "no room on h" in shown
        assert "due     0 columns" not in shown, "what rests is due"
        assert evicted(full) == set()
        with ckpt.open(full.url) as store:
            for step in DRAINED:
                store.unpin(OLD, step)
        wait_until(lambda: is_whole(full, NEW), "what no store has is whole", WAIT_S, ASKED_S)
    finally:
        worker.end(signal.SIGTERM)
    gone = evicted(full)
    assert gone
    assert max(DRAINED) not in gone, "a restart wants the newest at once"
    with ckpt.open(full.url, durable=f"file://{full.directory / 'bucket'}") as store:
        for step in KEPT:
            assert np.array_equal(store.load(NEW, step)["w"], state(100 + step))
        for step in DRAINED:
            is_told = pytest.warns(UserWarning, match="is loaded from file")
            with is_told if step in gone else nullcontext():
                assert np.array_equal(store.load(OLD, step)["w"], state(step))


def waits(cluster: RemoteCluster) -> bool:
    """All that no store has, which comes first."""
    problems = dict(repairs(cluster).problems)
    return sum(name.startswith(NEW) and "no room on" in problems[name] for name in problems) > 0


def evicted(cluster: RemoteCluster) -> set[int]:
    """Of what is drained, what is in the store alone."""
    found = json.loads(command("ls", OLD, "--json", "--store", cluster.url).out)["steps"]
    return set(DRAINED) - {one["step"] for one in found}
