"""`ckptd coordinator --catalog etcd://...` as a process: saves, kills, a second one, an etcd that
was emptied.
"""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckptd.catalog.backup import read_backup
from tests.e2e.cluster import command
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, in_base64, names_in, pairs_in, value_of
from tests.waiting import ASKED_S, wait_until

RUN = "lives on"
WAIT_S = 60.0


class EtcdCluster(RemoteCluster):
    """Whose catalog is in etcd."""

    def __init__(self, directory: Path, place: Prefix) -> None:
        super().__init__(directory, ("--catalog", place.url), hosts=2, code="2+1")
        self.place = place


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd) -> Iterator[EtcdCluster]:
    with started(EtcdCluster(tmp_path, Prefix(etcd.addresses))) as made:
        yield made


def save(cluster: RemoteCluster, step: int) -> None:
    with ckpt.open(cluster.url) as store:
        store.save(RUN, step, {"w": np.arange(100_000) * step}).wait(WAIT_S)


def check_loads(cluster: RemoteCluster, *steps: int) -> None:
    with ckpt.open(cluster.url) as store:
        assert store.latest(RUN) == steps[-1]
        for step in steps:
            found = store.load(RUN, step)
            assert isinstance(found, dict)
            assert np.array_equal(found["w"], np.arange(100_000) * step)


def refusal(cluster: EtcdCluster, *flags: str) -> tuple[int, str]:
    """How another coordinator ends: its exit code, and what it says."""
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "ckptd.cli", "coordinator"),
            *("--listen", "127.0.0.1:0", "--secret-file", str(cluster.secret_file), *flags),
        ],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_coordinator_that_was_killed_goes_on_from_etcd(cluster: EtcdCluster, etcd: Etcd) -> None:
    save(cluster, 1)
    # One that finds the killed one's key says that it is ready before it leads.
    term = int(value_of(etcd, cluster.place, "term"))
    cluster.coordinator.end(signal.SIGKILL)
    cluster.start_coordinator()
    cluster.wait_live()
    assert int(value_of(etcd, cluster.place, "term")) > term
    check_loads(cluster, 1)
    save(cluster, 2)
    cluster.coordinator.end(signal.SIGTERM)
    cluster.start_coordinator()
    cluster.wait_live()
    check_loads(cluster, 1, 2)
    assert not (cluster.coordinator_directory / "catalog.sqlite").exists()


def test_one_that_stood_still_for_longer_than_its_lease_leads_again_in_another_term(
    cluster: EtcdCluster, etcd: Etcd
) -> None:
    save(cluster, 1)
    process = cluster.coordinator.process
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: "leader" not in names_in(etcd, cluster.place), "its lease has run out")
    process.send_signal(signal.SIGCONT)
    log = cluster.log_of(cluster.coordinator_directory.name)
    wait_until(lambda: '"term": 2' in log.read_text(), "it leads again")
    assert "its lease was not kept" in log.read_text()
    cluster.wait_live()
    check_loads(cluster, 1)
    assert process.poll() is None


def test_another_host_goes_on_when_the_first_one_is_gone(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    """With nothing of the first one's directory."""
    save(cluster, 1)
    cluster.coordinator.end(signal.SIGKILL)
    cluster.coordinator_directory = tmp_path / "another"
    cluster.start_coordinator()
    cluster.wait_live()
    check_loads(cluster, 1)


def test_a_second_one_with_its_id_or_of_another_cluster_is_refused(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    """Without --id both have the host's name."""
    other = ("--directory", str(tmp_path / "other"), "--catalog", cluster.place.url)
    code, told = refusal(cluster, *other)
    assert code == 11
    assert f"pid {cluster.coordinator.process.pid} on" in told
    save(cluster, 1)
    check_loads(cluster, 1)
    code, told = refusal(cluster, *other, "--cluster", "another")
    assert code == 2
    assert "not another" in told


def test_a_running_catalog_is_copied_into_a_file(cluster: EtcdCluster, tmp_path: Path) -> None:
    save(cluster, 1)
    copy = tmp_path / "copy.sqlite"
    command("catalog", "backup", "--store", cluster.url, "--to", str(copy))
    image = read_backup(copy, str(cluster.coordinator.ready["cluster"]))
    assert [(id.run, id.step) for id in image.rows] == [(RUN, 1)]


def empty(etcd: Etcd, place: Prefix) -> None:
    """Nothing is left below it."""
    start = place.name
    gone = {"key": in_base64(f"{start}:"), "range_end": in_base64(f"{start};")}
    asked(etcd.members[0], "/v3/kv/deleterange", gone)


def commands(cluster: RemoteCluster) -> dict[str, str]:
    """Of each check that stands."""
    return {check.name: check.command for check in cluster.status().checks}


def test_an_etcd_that_was_emptied_is_missed_and_the_targets_fill_another_prefix(
    cluster: EtcdCluster, etcd: Etcd
) -> None:
    save(cluster, 1)
    cluster.coordinator.end(signal.SIGTERM)
    empty(etcd, cluster.place)
    assert names_in(etcd, cluster.place) == set()
    for _ in range(2):  # Also where keys of the first one are left.
        cluster.start_coordinator()
        wait_until(lambda: "CATALOG_OLD" in commands(cluster), "it is missed", poll_s=ASKED_S)
        assert names_in(etcd, cluster.place) == {"coordinator/" + socket.gethostname()}
        cluster.coordinator.end()
    cluster.start_coordinator()
    wait_until(lambda: "CATALOG_OLD" in commands(cluster), "it is missed", poll_s=ASKED_S)
    targets = " ".join(each.address for each in cluster.targets.values())
    _, *words = shlex.split(commands(cluster)["CATALOG_OLD"].replace("HOST:PORT ...", targets))
    cluster.coordinator.end(signal.SIGTERM)
    other = f"{cluster.place.url}-2"
    assert f"start the coordinators with --catalog {other}" in command(*words).out
    cluster.coordinator = started_at(cluster, "--catalog", other)
    cluster.wait_live()
    check_loads(cluster, 1)


def test_no_empty_catalog_is_begun_where_another_prefix_is_named_by_mistake(
    cluster: EtcdCluster, etcd: Etcd
) -> None:
    """Beside the right one it would lead, and keep whoever dials it from who does."""
    save(cluster, 1)
    other = Prefix(etcd.addresses)
    directory = cluster.directory / "standby"
    flags = ("--directory", str(directory), "--id", "standby", "--listen", "127.0.0.1:0")
    standby = started_at(cluster, *flags, "--catalog", cluster.place.url)
    assert standby.ready["leader"] == cluster.coordinator.address
    standby.end(signal.SIGTERM)
    standby = started_at(cluster, *flags, "--catalog", other.url)
    try:
        assert standby.ready["leader"] == ""
        assert "meta" not in names_in(etcd, other)
        with ckpt.open(f"ckpt://{standby.address},{cluster.coordinator.address}") as store:
            store.save(RUN, 2, {"w": np.arange(100_000) * 2}).wait(WAIT_S)
        check_loads(cluster, 1, 2)
    finally:
        standby.end(signal.SIGTERM)
    said = cluster.log_of("another").read_text()
    assert f"the catalog in {other.url} is gone" in said
    assert "below another prefix" in said


def test_the_targets_make_a_file_that_does_without_etcd(cluster: EtcdCluster) -> None:
    save(cluster, 1)
    cluster.coordinator.end(signal.SIGTERM)
    targets = " ".join(each.address for each in cluster.targets.values())
    command("catalog", "rebuild", str(cluster.coordinator_directory), "--targets", targets)
    directory = ("--directory", str(cluster.coordinator_directory))
    code, told = refusal(cluster, *directory, "--catalog", cluster.place.url)
    assert code == 2
    assert "leave --catalog out" in told
    cluster.coordinator = started_at(cluster)
    cluster.wait_live()
    check_loads(cluster, 1)


def started_at(cluster: EtcdCluster, *flags: str) -> Daemon:
    """Where the first one was."""
    return Daemon(
        "coordinator", "--directory", str(cluster.coordinator_directory),
        "--listen", cluster.coordinator.address, "--code", "2+1", "--max-per-domain", "2",
        "--secret-file", str(cluster.secret_file), *flags, log=cluster.log_of("another"),
    )  # fmt: skip


def test_a_catalog_that_goes_while_it_is_led_is_named_and_led_again_when_it_is_back(
    cluster: EtcdCluster, etcd: Etcd
) -> None:
    save(cluster, 1)
    kept = pairs_in(etcd, cluster.place)
    empty(etcd, cluster.place)
    wait_until(lambda: "CATALOG_OLD" in commands(cluster), "it is said", poll_s=ASKED_S)
    (gone,) = (each for each in cluster.status().checks if each.name == "CATALOG_OLD")
    assert f"the catalog in {cluster.place.url} is gone" in gone.message
    assert "catalog rebuild" in gone.command
    assert cluster.coordinator.process.poll() is None
    for name, value in kept.items():
        if name not in ("leader", "sequence") and not name.startswith("coordinator/"):
            put = {"key": in_base64(f"{cluster.place.name}:{name}"), "value": value}
            asked(etcd.members[0], "/v3/kv/put", put)
    cluster.wait_live()
    check_loads(cluster, 1)
    save(cluster, 2)
