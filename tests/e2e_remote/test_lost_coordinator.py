"""A coordinator comes back without what it knew, and was told no cluster by name."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import command
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started
from tests.waiting import ASKED_S, wait_until

RUN = "lost"
WAIT_S = 60.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RemoteCluster]:
    """Four targets say as much of a catalog as eight."""
    with started(RemoteCluster(tmp_path, hosts=2, code="2+1")) as made:
        yield made


def save(url: str) -> None:
    with ckpt.open(url) as store:
        store.save(RUN, 1, {"w": np.arange(100_000)}).wait(WAIT_S)


def check_is_back(cluster: RemoteCluster) -> None:
    cluster.start_coordinator()
    cluster.wait_live()
    with ckpt.open(cluster.url) as store:
        assert store.latest(RUN) == 1
        found = store.load(RUN, 1)
    assert isinstance(found, dict)
    assert np.array_equal(found["w"], np.arange(100_000))


def test_a_catalog_that_is_gone_is_missed_and_status_names_what_mends_it(
    small: RemoteCluster,
) -> None:
    save(small.url)
    small.lose_catalog()
    small.start_coordinator()

    def said() -> dict[str, str]:
        return {check.name: check.command for check in small.status().checks}

    wait_until(lambda: "CATALOG_OLD" in said(), "targets prove it old", poll_s=ASKED_S)
    _, *words = shlex.split(said()["CATALOG_OLD"])
    assert "TOO_FEW_TARGETS" not in said()
    small.coordinator.end()
    command(*words)
    check_is_back(small)


def test_targets_outlive_a_coordinator_that_has_lost_its_directory(small: RemoteCluster) -> None:
    """To them it is another cluster's; what they hold is needed to make its catalog again."""
    save(small.url)
    small.coordinator.end()
    shutil.rmtree(small.coordinator_directory)
    small.start_coordinator()
    addresses = " ".join(target.address for target in small.targets.values())
    logs = [small.log_of(id) for id in small.targets]
    wait_until(
        lambda: all("this is cluster" in log.read_text() for log in logs), "all have knocked"
    )
    small.coordinator.end()
    command("catalog", "rebuild", str(small.coordinator_directory), "--targets", addresses)
    check_is_back(small)
    assert all(target.process.poll() is None for target in small.targets.values())
