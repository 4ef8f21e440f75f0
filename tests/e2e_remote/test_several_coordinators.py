"""A cluster whose coordinators are named as a list: one leads, one is dead, one never speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

import ckpt
from ckpt.base.errors import Refused
from tests.aio.coordinatorkit import dead_address, silent_address
from tests.client.clikit import run
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.waiting import wait_until


class ListedCluster(RemoteCluster):
    """Everybody is given the list, whose last member leads."""

    def __init__(self, directory: Path, silent: str) -> None:
        super().__init__(directory, hosts=2, code="2+1")
        self._others = f"{dead_address()},{silent}"

    @property
    def coordinators(self) -> str:
        return f"{self._others},{self._listen}"

    @property
    def url(self) -> str:
        return f"ckpt://{self.coordinators}"


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListedCluster]:
    folder = tmp_path_factory.mktemp("listed")
    with silent_address() as silent, started(ListedCluster(folder, silent)) as made:
        yield made


def state(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).integers(0, 255, 1 << 20, np.uint8)}


def equal(loaded: object, wanted: dict[str, np.ndarray]) -> bool:
    assert isinstance(loaded, dict)
    return bool((loaded["w"] == wanted["w"]).all())


def test_what_is_saved_through_a_list_is_loaded_through_it(listed: ListedCluster) -> None:
    with ckpt.open(listed.url) as store:
        store.save("run", 1, state(1)).wait(60)
    with ckpt.open(listed.url) as store:
        assert equal(store.load("run"), state(1))
        with pytest.raises(Refused, match="'nowhere'"):
            ckpt.open(f"{listed.url},nowhere")


def test_a_store_a_stager_and_the_targets_come_back_to_a_restarted_leader(
    listed: ListedCluster,
) -> None:
    with ckpt.open(listed.url) as store:
        store.save("again", 1, state(2)).wait(60)
        listed.coordinator.end()
        listed.start_coordinator()
        listed.wait_live()
        store.save("again", 2, state(3)).wait(60)
        assert equal(store.load("again"), state(3))


def test_commands_name_the_coordinator_that_answers(listed: ListedCluster) -> None:
    with ckpt.open(listed.url) as store:
        store.save("run", 1, state(1)).wait(60)
    status = run("status", "--json", "--store", listed.url, environ=dict(os.environ))
    assert status.document()["coordinator"]["address"] == listed.coordinator.address
    doctor = run("doctor", "--json", "--store", listed.url, environ=dict(os.environ))
    (found,) = (one for one in doctor.document()["findings"] if one["name"] == "coordinator")
    assert listed.coordinator.address in found["message"]
    assert listed.coordinators not in found["message"]
    shown = run("cat", "run@1/w", "--store", listed.url, environ=dict(os.environ))
    assert shown.code == 0, shown.err


def test_files_are_written_and_read_by_a_list(listed: ListedCluster) -> None:
    with fsspec.open(f"{listed.url}/tables/loss.csv", "wb") as file:
        file.write(b"step,loss\n")
    with fsspec.open(f"{listed.url}/tables/loss.csv", "rb") as file:
        assert file.read() == b"step,loss\n"


def test_a_drain_worker_is_given_a_list(listed: ListedCluster, tmp_path: Path) -> None:
    with ckpt.open(listed.url) as store:
        store.save("drained", 1, state(4)).wait(60)
    worker = Daemon(
        "drain", "--coordinator", listed.coordinators, "--to", f"file://{tmp_path}?runs=drained",
        "--secret-file", str(listed.secret_file), log=tmp_path / "log",
    )  # fmt: skip
    try:
        assert worker.ready

        def is_marked() -> bool:
            # Folders may go while they are looked through: `walk` passes over them.
            return any("COMMITTED.json" in files for _, _, files in os.walk(tmp_path))

        wait_until(is_marked, "the checkpoint lies in the store", 60.0)
    finally:
        worker.end()
