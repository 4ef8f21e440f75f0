"""A cluster whose catalog goes into etcd and back: what was saved loads, bit by bit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckptd.catalog.sqlite import CATALOG_NAME
from tests.client.clikit import run
from tests.e2e.cluster import command
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started
from tests.ha.members import Etcd
from tests.ha.places import Prefix, names_in
from tests.waiting import ASKED_S, wait_until

RUN = "moves"
WAIT_S = 60.0


class MovingCluster(RemoteCluster):
    """Its coordinator works on one catalog after the other."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, hosts=2, code="2+1")

    def stop_coordinator(self) -> None:
        self.coordinator.end(signal.SIGTERM)

    def work_on(self, directory: Path, *flags: str) -> None:
        """It is ready on return."""
        self.coordinator_directory, self._flags = directory, flags
        self.start_coordinator()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MovingCluster]:
    with started(MovingCluster(tmp_path)) as made:
        yield made


def state(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 256, 300_001, dtype=np.uint8)


def save(cluster: RemoteCluster, step: int) -> None:
    with ckpt.open(cluster.url) as store:
        store.save(RUN, step, {"w": state(step)}).wait(WAIT_S)


def check_loads(cluster: RemoteCluster, *steps: int) -> None:
    with ckpt.open(cluster.url) as store:
        assert store.latest(RUN) == steps[-1]
        for step in steps:
            found = store.load(RUN, step)
            assert isinstance(found, dict)
            assert np.array_equal(found["w"], state(step))


def test_a_catalog_goes_into_etcd_and_back_and_all_that_was_saved_loads(
    cluster: MovingCluster, etcd: Etcd, tmp_path: Path
) -> None:
    place, first, back = Prefix(etcd.addresses), cluster.coordinator_directory, tmp_path / "back"
    save(cluster, 1)
    busy = run("catalog", "copy", str(first), place.url)
    assert busy.code == 11
    assert str(first) in busy.err
    cluster.stop_coordinator()
    copied = command("catalog", "copy", str(first), place.url, "--json").document()
    assert copied["cluster"] == cluster.coordinator.ready["cluster"]
    assert copied["committed"] == 1
    assert f"--catalog {place.url}" in copied["next"][-1]

    (first / CATALOG_NAME).rename(first / "moved.sqlite")
    cluster.work_on(first, "--catalog", place.url)
    cluster.wait_live()
    check_loads(cluster, 1)
    save(cluster, 2)
    busy = run("catalog", "copy", place.url, str(back))
    assert busy.code == 11
    assert f"pid {cluster.coordinator.process.pid} on" in busy.err
    cluster.stop_coordinator()
    told = command("catalog", "copy", place.url, str(back)).out
    assert "2 committed checkpoints" in told
    assert f"--directory {back}, without --catalog" in told
    assert f"{place.url} is as it was: use only one of both" in told

    cluster.work_on(back)
    cluster.wait_live()
    check_loads(cluster, 1, 2)
    save(cluster, 3)
    cluster.stop_coordinator()
    refused = run("catalog", "copy", place.url, str(back))
    assert refused.code == 2
    assert f"there is a catalog in {back}" in refused.err

    # The one that was left is old now.
    cluster.work_on(first, "--catalog", place.url)

    def said() -> set[str]:
        return {check.name for check in cluster.status().checks}

    wait_until(lambda: "CATALOG_OLD" in said(), "targets prove it old", poll_s=ASKED_S)


def test_a_catalog_in_etcd_is_made_again_from_the_targets_and_a_copy(
    cluster: MovingCluster, etcd: Etcd, tmp_path: Path
) -> None:
    taken, place, other = (Prefix(etcd.addresses) for _ in range(3))
    copy = tmp_path / "copy.sqlite"
    save(cluster, 1)
    command("catalog", "backup", "--store", cluster.url, "--to", str(copy))
    save(cluster, 2)
    cluster.stop_coordinator()
    targets = " ".join(each.address for each in cluster.targets.values())
    command("catalog", "copy", str(cluster.coordinator_directory), taken.url)
    before = names_in(etcd, taken)
    refused = command("catalog", "rebuild", taken.url, "--targets", targets, codes=(2,))
    assert f"there is a catalog in {taken.url}" in refused.err
    assert names_in(etcd, taken) == before

    made = command("catalog", "rebuild", place.url, "--targets", targets, "--json").document()
    (found,) = made["catalogs"]
    assert found["catalog"] == place.url
    assert [each.split("@")[1][0] for each in found["committed"]] == ["1", "2"]
    cluster.work_on(tmp_path / "rebuilt", "--catalog", place.url)
    cluster.wait_live()
    check_loads(cluster, 1, 2)
    cluster.stop_coordinator()

    command("catalog", "restore", other.url, "--targets", targets, "--from", str(copy))
    cluster.work_on(tmp_path / "restored", "--catalog", other.url)
    cluster.wait_live()
    check_loads(cluster, 1, 2)


def test_a_catalog_in_etcd_is_not_made_from_targets_that_nobody_named() -> None:
    refused = run("catalog", "rebuild", "etcd://127.0.0.1:1/a")
    assert refused.code == 2
    assert "--targets" in refused.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["/nowhere"], "FROM and TO"),
        (["/nowhere", "/elsewhere"], "one of both begins with etcd://"),
        (["etcd://127.0.0.1:1/a", "etcd://127.0.0.1:1/b"], "one of both begins with etcd://"),
        (["/nowhere", "etcd://127.0.0.1:1/a", "--to", "x"], "FROM and TO"),
        (["/nowhere", "etcd://10.0.0.1:1/a"], "in plain text"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], why: str) -> None:
    refused = run("catalog", "copy", *words)
    assert refused.code == 2
    assert why in refused.err


def test_a_directory_without_a_catalog_is_not_found_and_stays_empty(tmp_path: Path) -> None:
    missing = run("catalog", "copy", str(tmp_path), "etcd://127.0.0.1:1/a")
    assert missing.code == 10
    assert f"there is no catalog in {tmp_path}" in missing.err
    assert list(tmp_path.iterdir()) == []
