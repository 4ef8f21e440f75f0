"""Repair makes way: while a save is under way its worker does as the coordinator says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import ckpt
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.ids import Rank, RunName, Step
from ckpt.base.units import KiB
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import OpenPayload, PayloadGivenUp, PayloadPlanned
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt.protocol.handshake import Caller
from ckpt.transfer.column_rebuilder import WINDOW_BYTES
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started
from tests.e2e_remote.test_repair import AGAIN_S, RUN, check, is_whole, lose, repair_worker, state
from tests.waiting import ASKED_S, wait_until

FLOOR_BYTES = KiB
"""At it the second window of a payload would take hours."""
K = 4
LOOKS = 20


@contextmanager
def save_under_way(cluster: RemoteCluster) -> Iterator[None]:
    """A rank has handed its payload over and sends nothing, until it gives up."""
    caller = Caller(cluster.secret, Role.STAGER, "slow")
    with RpcClient(cluster.coordinator.address, caller) as stager:
        joined, _ = stager.call(JoinLaunch(RunName("slow"), "k", Rank(0), 1, "h/1"))
        assert isinstance(joined, LaunchJoined)
        opened = OpenPayload(
            RunName("slow"), Step(1), joined.launch, Rank(0), 1, "h/1", 10_000, save=1
        )
        planned, _ = stager.call(opened)
        assert isinstance(planned, PayloadPlanned)
        try:
            yield
        finally:
            stager.call(PayloadGivenUp(planned.payload, "aborted", "it is slow"))


def repairs(cluster: RemoteCluster) -> RepairView:
    with cluster.client() as client:
        _, bulk = client.call(Ask("repair"), timeout_s=30.0)
    return msgspec.json.decode(bytes(bulk), type=RepairView)


def test_a_worker_stands_aside_while_a_save_is_under_way(tmp_path: Path) -> None:
    flags = ("--rebuild-after-s", "1", "--repair-floor-bytes", str(FLOOR_BYTES))
    with started(RemoteCluster(tmp_path, flags)) as cluster, ckpt.open(cluster.url) as store:
        store.save(RUN, 1, state(1)).wait(AGAIN_S)
        lose(cluster, sorted(cluster.targets)[0])
        cluster.wait_live()
        with save_under_way(cluster):
            worker = repair_worker(cluster)
            reading = f"a window of {WINDOW_BYTES} bytes is read"
            wait_until(lambda: read_bytes(cluster) >= WINDOW_BYTES, reading, poll_s=ASKED_S)
            for _ in range(LOOKS):
                (task,) = repairs(cluster).tasks
                assert (task.bytes_per_s_max, task.read_bytes) == (K * FLOOR_BYTES, WINDOW_BYTES)
                assert not is_whole(cluster, 1)
        try:
            wait_until(lambda: is_whole(cluster, 1), "it is", timeout_s=AGAIN_S, poll_s=ASKED_S)
        finally:
            worker.end()
        check(store, 1)


def read_bytes(cluster: RemoteCluster) -> int:
    return sum(task.read_bytes for task in repairs(cluster).tasks)
