"""F30: daemons that get no more memory than they say they need, and one that gets less."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import TargetId
from ckpt.base.units import MiB
from tests.client.bits import bits_of
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.waiting import wait_until

RANKS = 4
TENSOR_BYTES = 96 * MiB
POOLS_BYTES = 64 * MiB
"""What a target takes for fragments and for reads by default."""
ELSE_BYTES = 48 * MiB
"""Tables, frames, the allocator's own."""
WAIT_S = 120.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")


@pytest.fixture
def store(fresh: RemoteCluster) -> Iterator[ckpt.Store]:
    with ckpt.open(fresh.url) as opened:
        yield opened


def data_bytes(daemon: Daemon) -> int:
    """Of a process: its private memory, without what stagers of the host lend it."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


def cap(daemon: Daemon, more_bytes: int) -> None:
    """From now on it gets so much more, then no more."""
    limit = data_bytes(daemon) + more_bytes
    resource.prlimit(daemon.process.pid, resource.RLIMIT_DATA, (limit, limit))


def state(step: int, rank: int) -> dict[str, np.ndarray]:
    return {"w": np.arange(step + rank, step + rank + TENSOR_BYTES // 8, dtype="<i8")}


def save(store: ckpt.Store, step: int) -> ckpt.Commit:
    saves = [
        store.save("capped", step, state(step, rank), rank=rank, world_size=RANKS)
        for rank in range(RANKS)
    ]
    commits = [each.wait(WAIT_S) for each in saves]
    return commits[0]


def check(store: ckpt.Store, step: int) -> None:
    for rank in range(RANKS):
        found = store.load("capped", step, rank=rank, world_size=RANKS)
        assert isinstance(found, dict)
        assert bits_of(found["w"]) == bits_of(state(step, rank)["w"])


def test_targets_stay_within_their_pools_however_much_is_sent(
    fresh: RemoteCluster, store: ckpt.Store
) -> None:
    daemons = list(fresh.targets.values())
    for daemon in daemons:
        cap(daemon, POOLS_BYTES + ELSE_BYTES)
    for step in (1, 2):
        assert save(store, step).targets_survivable == 2
    check(store, 2)
    # The cap is the proof: what is beyond it would have been refused by the system, and ended them.
    assert all(daemon.process.poll() is None for daemon in daemons)
    assert fresh.live() == set(map(TargetId, fresh.targets))


def test_a_target_that_gets_too_little_memory_costs_its_columns_and_nothing_else(
    fresh: RemoteCluster, store: ckpt.Store
) -> None:
    assert save(store, 1).targets_survivable == 2
    starved = next(iter(fresh.targets.values()))
    cap(starved, 0)
    commit = save(store, 2)
    assert commit.targets_survivable >= 1
    check(store, 2)
    check(store, 1)
    ended = lambda: starved.process.poll() is not None  # noqa: E731
    alive = lambda: len(fresh.live()) == len(fresh.targets)  # noqa: E731
    wait_until(lambda: ended() or alive(), "it has ended, or serves", WAIT_S)
