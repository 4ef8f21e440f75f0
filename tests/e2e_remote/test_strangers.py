"""A real cluster whose every port is full of strangers: status, save and load go through."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import ckpt
from ckpt.format.messages.asking import Ask
from tests.aio.strangers import ASK_S, SAYINGS, Crowd, Where, flood
from tests.e2e_remote.cluster import RemoteCluster
from tests.landing import in_turn

PROMISED_S = 2.0
"""A client with the secret is in after at most that, on a machine that does nothing else."""
TIMEOUT_S = 60.0
CROWD = 400
LARGE_CROWD = 10_000
DESCRIPTORS = LARGE_CROWD + 2000


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < DESCRIPTORS:
        pytest.skip(f"{DESCRIPTORS} descriptors are needed, this user may have {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def where(address: str) -> Where:
    host, _, port = address.rpartition(":")
    return host, int(port)


def goes_through(cluster: RemoteCluster, run: str, ask_s: float = ASK_S) -> None:
    """`ckpt status` in that time, a save by a fresh store and its load."""
    command = (sys.executable, "-m", "ckpt_client.cli.main", "status", "--store", cluster.url)
    told = subprocess.run(
        [*command, "--timeout", f"{ask_s}"], capture_output=True, text=True, check=False
    )
    assert (told.returncode, "HEALTH_OK" in told.stdout) == (0, True), told.stderr + told.stdout
    with ckpt.open(cluster.url) as store:
        state = {"w": np.arange(500_000, dtype="f4")}
        store.save(run, 1, state, rank=0, world_size=1).wait(TIMEOUT_S)
        found = store.load(run, 1, rank=0, world_size=1)
    assert isinstance(found, dict)
    assert np.array_equal(found["w"], state["w"])


@pytest.mark.parametrize("saying", in_turn([*SAYINGS], every=2))
def test_status_save_and_load_go_through_beside_crowds_everywhere(
    cluster: RemoteCluster, saying: str
) -> None:
    with ExitStack() as stack:
        for daemon in (cluster.coordinator, *cluster.targets.values()):
            crowd = Crowd(where(daemon.address), CROWD, SAYINGS[saying])
            stack.enter_context(crowd)
            crowd.wait_connected(CROWD)
        goes_through(cluster, f"crowd-{len(SAYINGS[saying])}")


def test_status_save_and_load_go_through_beside_a_flood(cluster: RemoteCluster) -> None:
    with flood(where(cluster.coordinator.address)):
        goes_through(cluster, "flood")


@pytest.mark.slow
@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("saying", in_turn([*SAYINGS], every=2, first=1))
def test_ten_thousand_strangers_shut_nobody_out(cluster: RemoteCluster, saying: str) -> None:
    for daemon in (cluster.coordinator, cluster.targets["h0d0"]):
        with Crowd(where(daemon.address), LARGE_CROWD, SAYINGS[saying], returning=False) as crowd:
            crowd.wait_connected(LARGE_CROWD)
            run = f"large-{len(SAYINGS[saying])}-{os.urandom(2).hex()}"
            goes_through(cluster, run, PROMISED_S)
            with cluster.client() as client:
                assert client.call(Ask("status"), timeout_s=PROMISED_S)
