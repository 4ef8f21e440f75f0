"""F10 on real processes: at SIGKILL a disk loses all that was not synced, or a part of it."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

import ckpt
from ckpt.base.errors import CkptError, Lost
from tests.e2e.cluster import command
from tests.machines.cluster import COORDINATOR, TARGETS, MachineCluster
from tests.waiting import wait_until

RUN = "powered"
RANKS = 2
WAIT_S = 90.0


def state(step: int, rank: int) -> NDArray[np.uint8]:
    """Not twice the same length, so that fragments end anywhere."""
    numbers = np.random.default_rng((step, rank))
    return np.frombuffer(numbers.bytes(3_000_001 + 70_001 * step), np.uint8)


def save(store: ckpt.Store, step: int) -> list[ckpt.Save]:
    return [
        store.save(RUN, step, {"w": state(step, rank)}, rank=rank, world_size=RANKS)
        for rank in range(RANKS)
    ]


def check(store: ckpt.Store, step: int) -> None:
    for rank in range(RANKS):
        found = store.load(RUN, step, rank=rank, world_size=RANKS)
        assert isinstance(found, dict)
        assert np.array_equal(found["w"], state(step, rank))


def check_all(store: ckpt.Store, newest: int) -> None:
    """Every step up to this one is listed and has its bytes."""
    assert [commit.step for commit in store.steps(RUN)] == list(range(1, newest + 1))
    for step in range(1, newest + 1):
        check(store, step)


def column_count(cluster: MachineCluster, folder: str) -> int:
    return sum(1 for _ in cluster.directory.glob(f"h*/{folder}/*"))


MOMENTS: tuple[tuple[str, Callable[[MachineCluster, int], bool]], ...] = (
    ("a first column is under way", lambda cluster, _: column_count(cluster, "staging") > 0),
    (
        "a first column of this step is sealed",
        lambda cluster, step: column_count(cluster, "columns") > 3 * RANKS * (step - 1),
    ),
    (
        "a first record of this step is stored",
        lambda cluster, step: any(cluster.directory.glob(f"h*/documents/record-*-{step}-*")),
    ),
)


def test_when_everything_loses_power_all_that_was_acknowledged_is_there(
    cluster: MachineCluster, store: ckpt.Store
) -> None:
    """And the save that was under way is finished by the stagers, whose host has power."""
    lost = 0
    for step, (name, reached) in enumerate(MOMENTS, start=1):
        saves = save(store, step)
        wait_until(partial(reached, cluster, step), name, WAIT_S, poll_s=0.001)
        lost += cluster.lose_power(cluster.everything, random.Random(step)).total()
        cluster.start_again(cluster.everything)
        assert [each.wait(WAIT_S).step for each in saves] == [step] * RANKS
    assert lost
    cluster.lose_power(cluster.everything)
    cluster.start_again(cluster.everything)
    check_all(store, newest=len(MOMENTS))


def test_two_disks_that_lied_cost_redundancy_three_a_checkpoint(
    wide_cluster: MachineCluster, wide_store: ckpt.Store
) -> None:
    """So the loss of power takes something in these tests; and what is lost is said."""
    liars = TARGETS[:3]
    wide_cluster.lying.update(liars)
    wide_cluster.lose_power(liars)
    wide_cluster.start_again(liars)
    for each in save(wide_store, 1):
        each.wait(WAIT_S)
    assert wide_cluster.lose_power(liars[:2]).total()
    wide_cluster.start_again(liars[:2])
    check_all(wide_store, newest=1)
    wide_cluster.lose_power(liars[2:])
    wide_cluster.start_again(liars[2:])
    with pytest.raises(Lost, match="has 3 damaged columns at one place"):
        wide_store.load(RUN, 1, rank=0, world_size=RANKS)


def test_a_catalog_whose_disk_lied_is_refused_and_made_again_from_the_targets(
    cluster: MachineCluster, store: ckpt.Store
) -> None:
    cluster.lying.add(COORDINATOR)
    cluster.lose_power([COORDINATOR])
    cluster.start_again([COORDINATOR])
    for each in save(store, 1):
        each.wait(WAIT_S)
    cluster.lose_power([COORDINATOR])
    cluster.start_coordinator()
    with pytest.raises(CkptError, match="the catalog is older than its targets") as refused:
        store.load(RUN, 1, rank=0, world_size=RANKS)
    _, words = str(refused.value).split("run: ckpt ")
    cluster.coordinator.end()
    command(*shlex.split(words))
    cluster.start_again([COORDINATOR])
    check_all(store, newest=1)
