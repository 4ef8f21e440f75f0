"""The same where coordinator and targets are daemons of their own, as on many machines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt.base.ids import TargetId
from ckpt.protocol.coordinator.catalog import TargetSeen
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.sqlite import create_catalog, read_image
from ckptd.directory import CLUSTER_ID_NAME
from tests.e2e.catalogs import (
    NAME,
    WAIT_S,
    check_all_is_there,
    command_in,
    refusal,
    remove,
    run_line,
    state,
)
from tests.e2e.cluster import command
from tests.landing import in_turn
from tests.warm_child import Child, start_daemon

SECRET = bytes(range(32))


class Daemons:
    """A coordinator and three targets, each of its own; I end only those."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.secret = root / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text(SECRET.hex())
        self.directory = root / "coordinator"
        self.address = "127.0.0.1:0"
        self.coordinator: Child | None = None
        self.targets: dict[str, Child] = {}
        self.addresses: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"ckpt://{self.address}"

    def _start(self, *line: str) -> tuple[Child, dict[str, object]]:
        log = self.root / f"{line[0]}.log"
        with log.open("ab") as errors:
            process = start_daemon(
                [*line, "--secret-file", str(self.secret)], stderr=errors.fileno()
            )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, log.read_text()
        ready: dict[str, object] = json.loads(first)
        return process, ready

    def start_coordinator(self) -> None:
        self.coordinator, ready = self._start(
            "coordinator", "--directory", str(self.directory), "--listen", self.address,
            "--code", "2+1", "--level", "target", "--cluster", "many",
        )  # fmt: skip
        self.address = str(ready["address"])

    def stop_coordinator(self) -> None:
        assert self.coordinator is not None
        end(self.coordinator)
        self.coordinator = None

    def start_target(self, id: str) -> None:
        self.targets[id], ready = self._start(
            "target", "--directory", str(self.root / id), "--id", id, "--cluster", "many",
            "--coordinator", self.address, "--listen", "127.0.0.1:0",
        )  # fmt: skip
        self.addresses[id] = str(ready["address"])

    def stop(self) -> None:
        for process in (*self.targets.values(), self.coordinator):
            if process is not None:
                end(process)


def end(process: Child) -> None:
    process.terminate()
    process.wait(WAIT_S)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def daemons(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemons]:
    made = Daemons(tmp_path)
    monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret))
    try:
        made.start_coordinator()
        for id in ("a", "b", "c"):
            made.start_target(id)
        yield made
    finally:
        made.stop()


def checks(daemons: Daemons) -> dict[str, str]:
    out = command("status", "--json", "--store", daemons.url, codes=(0, 4, 75)).out
    return {check["name"]: check["command"] for check in json.loads(out)["checks"]}


@pytest.mark.parametrize("harm", in_turn(["removed", "rolled back"], every=2))
def test_an_old_catalog_serves_nobody_until_it_is_made_from_the_running_targets(
    daemons: Daemons, harm: str
) -> None:
    with ckpt.open(daemons.url) as store:
        store.save("run", 1, state(1)).wait(WAIT_S)
        # Made by the running coordinator, in its own directory.
        command("catalog", "backup", "--store", daemons.url)
        store.save("run", 2, state(2)).wait(WAIT_S)
    (copy,) = (daemons.directory / "backups").iterdir()
    daemons.stop_coordinator()
    remove(daemons.directory)
    if harm == "rolled back":
        shutil.copy2(copy, daemons.directory / NAME)
    daemons.start_coordinator()
    told = refusal(daemons.url)
    assert "older than its targets" in told
    assert checks(daemons)["CATALOG_OLD"] == command_in(told)
    daemons.stop_coordinator()
    run_line(command_in(told))
    daemons.start_coordinator()
    check_all_is_there(daemons.url, 1, 2)


def test_a_record_on_a_target_that_was_not_asked_at_a_rebuild_ends_the_service(
    daemons: Daemons,
) -> None:
    with ckpt.open(daemons.url) as store:
        store.save("run", 1, state(1)).wait(WAIT_S)
    daemons.stop_coordinator()
    remove(daemons.directory)
    (without,) = [
        id for id in daemons.targets if not list(daemons.root.glob(f"{id}/documents/record-*"))
    ]
    address = daemons.addresses[without]
    command("catalog", "rebuild", str(daemons.directory), "--targets", address)
    daemons.start_coordinator()
    told = refusal(daemons.url)
    assert "holds the record" in told
    daemons.stop_coordinator()
    run_line(command_in(told))
    daemons.start_coordinator()
    check_all_is_there(daemons.url, 1)


def test_the_directory_of_another_cluster_is_not_filled_with_what_these_targets_hold(
    daemons: Daemons, tmp_path: Path
) -> None:
    with ckpt.open(daemons.url) as store:
        store.save("run", 1, state(1)).wait(WAIT_S)
    other = tmp_path / "other"
    its_own = TargetSeen(TargetId("t9"), "p/r/h/d", "/t9")
    create_catalog(other, "another", CatalogImage(1, targets={its_own.target: its_own}))
    before = read_image(other)
    addresses = " ".join(daemons.addresses.values())
    told = command("catalog", "rebuild", str(other), "--targets", addresses, codes=(2,)).err
    assert "is of cluster another, and these targets are of many" in told
    assert read_image(other) == before
    assert not list(other.glob(f"{NAME}.*"))
    # So is one whose file was moved away.
    remove(other)
    command("catalog", "rebuild", str(other), "--targets", addresses, codes=(2,))
    assert not (other / NAME).exists()
    # And one whose id is damaged, if its catalog is another's; the targets know whose it is if not.
    for cluster, code in (("another", 2), ("many", 0)):
        directory = tmp_path / cluster
        create_catalog(directory, cluster, CatalogImage(1, targets={its_own.target: its_own}))
        (directory / CLUSTER_ID_NAME).write_bytes(b"\xff")
        command("catalog", "rebuild", str(directory), "--targets", addresses, codes=(code,))
