"""Copied, emptied and renamed directories of real targets: what an operator's mistake does."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import ReplaceTarget, TargetReplaced
from ckpt.protocol.coordinator.reading.answers import TargetView
from tests.client.clikit import environment, run
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.waiting import ASKED_S, wait_until

RUN = "llama/7b"
COPIED = "h0d0"


class House:
    """A small cluster with a saved step, and what an operator starts besides."""

    def __init__(self, cluster: RemoteCluster) -> None:
        self.cluster = cluster
        self.environ = environment(
            CKPT_SECRET_FILE=str(cluster.secret_file), CKPT_STORE=cluster.url
        )
        self._others: list[Daemon] = []

    def save(self, *steps: int) -> None:
        with ckpt.open(self.cluster.url) as store:
            for step in steps:
                store.save(RUN, step, {"w": np.full(300_000, step)}).wait(60)

    def start(self, directory: Path, id: str = COPIED) -> Daemon:
        made = Daemon(
            "target", "--directory", str(directory), "--id", id,
            "--coordinator", self.cluster.coordinator.address,
            "--domain", "power/rack/host0/0", "--secret-file", str(self.cluster.secret_file),
        )  # fmt: skip
        self._others.append(made)
        assert made.ready
        return made

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Path:
        """The original ends; its directory."""
        self.cluster.targets.pop(COPIED).end(number)
        self.cluster.wait_live()
        return self.cluster.directory / COPIED

    def known(self) -> TargetView:
        (found,) = [each for each in self.cluster.status().targets if each.id == COPIED]
        return found

    def checks(self) -> dict[str, str]:
        return {each.name: each.command for each in self.cluster.status().checks}

    def wait_for(self, check: str) -> str:
        """The command that it names."""
        wait_until(lambda: check in self.checks(), f"{check} stands", poll_s=ASKED_S)
        return self.checks()[check]

    def wait_live(self, daemon: Daemon) -> None:
        pid = daemon.process.pid
        is_live = lambda: (self.known().state, self.known().pid) == ("live", pid)  # noqa: E731
        wait_until(is_live, f"process {pid} is taken in", poll_s=ASKED_S)

    def verify(self) -> int:
        return run("verify", f"{RUN}@1", environ=self.environ).code

    def end(self) -> None:
        for daemon in self._others:
            daemon.end()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Four targets, of which a save takes three: one may be away."""
    with started(RemoteCluster(tmp_path, hosts=2, code="2+1")) as cluster:
        made = House(cluster)
        try:
            made.save(1)
            yield made
        finally:
            made.end()


def copy_of(house: House) -> Path:
    """As `cp -a` makes it; the socket stays behind."""
    copy = house.cluster.directory / "copy"
    shutil.copytree(house.cluster.directory / COPIED, copy, ignore=shutil.ignore_patterns("socket"))
    return copy


def test_a_copy_that_is_started_beside_the_original_never_takes_its_place(house: House) -> None:
    original = house.known()
    copy = copy_of(house)
    impostor = house.start(copy)
    command = house.wait_for("DIRECTORY_COPIED")
    assert command == f"kill {impostor.process.pid}"
    for step in range(2, 6):
        house.save(step)
        assert house.known().pid == original.pid
        assert house.known().boot == original.boot, "it was never sent away"
    assert not any((copy / "columns").glob("*-5-*")), "nothing was written to the copy"
    # The original's connection breaks, again and again; the copy dials all the while.
    process = house.cluster.targets[COPIED].process
    for _ in range(2):
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: house.known().state == "down", "its lease ran out", poll_s=ASKED_S)
        process.send_signal(signal.SIGCONT)
        house.cluster.wait_live()
        assert house.known().boot == original.boot
    subprocess.run(command.split(), check=True)
    impostor.process.wait()
    wait_until(lambda: not house.checks(), "all is well", poll_s=ASKED_S)
    assert house.verify() == 0


def test_a_copy_under_another_name_is_refused_and_harms_nobody(house: House) -> None:
    copy = copy_of(house)
    file = copy / "target.toml"
    file.write_text(file.read_text().replace(COPIED, "new"))
    assert COPIED not in file.read_text()
    house.start(copy, "new")
    house.wait_for("DIRECTORY_COPIED")
    house.save(2)
    assert "new" not in {each.id for each in house.cluster.status().targets}


def test_an_original_that_comes_back_beside_its_copy_is_refused_by_name(house: House) -> None:
    """Which of the two is right only a person knows: the one that serves stays."""
    directory = house.stop()
    copy = copy_of(house)
    impostor = house.start(copy)
    house.wait_live(impostor)
    house.save(2)
    original = house.start(directory)
    house.wait_for("DIRECTORY_COPIED")
    assert house.known().pid == impostor.process.pid
    impostor.end(signal.SIGTERM)
    house.wait_live(original)
    assert house.verify() == 0
    assert run("ls", RUN, environ=house.environ).code == 0, "two columns less are no loss"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_target_that_is_started_again_is_there_at_once(
    house: House, number: signal.Signals
) -> None:
    directory = house.stop(number)
    house.wait_live(house.start(directory))
    assert house.checks() == {}


def test_a_directory_that_came_back_emptied_waits_for_a_word(house: House) -> None:
    directory = house.stop()
    shutil.rmtree(directory)
    emptied = house.start(directory)
    assert house.wait_for("DIRECTORY_UNKNOWN") == f"ckpt target replace {COPIED}"
    house.save(2)
    assert house.known().state == "down"
    assert not any((directory / "columns").glob("*"))
    told = run("target", "replace", COPIED, "--json", environ=house.environ)
    assert (told.code, told.document()["directory"]) == (0, str(directory))
    house.wait_live(emptied)
    assert set(house.checks()) <= {"REDUNDANCY_LOW"}
    assert house.verify() in (0, 3)
    other = ("target", "replace", COPIED, "--incarnation", "ab" * 16)
    assert run(*other, environ=house.environ).code == 11, "it is live, and no other asks"


def test_a_directory_of_the_version_before_gets_its_incarnation_and_keeps_it(house: House) -> None:
    directory = house.stop()
    file = directory / "target.toml"
    told = re.sub(r"incarnation = .*\n", "", file.read_text())
    file.write_text(told)
    # It has another incarnation now, as the coordinator sees it: a person says that it is right.
    again = house.start(directory)
    house.wait_for("DIRECTORY_UNKNOWN")
    with house.cluster.client() as client:
        answer, _ = client.call(ReplaceTarget(TargetId(COPIED)), timeout_s=30.0)
    assert isinstance(answer, TargetReplaced)
    assert answer.incarnation.hex() in file.read_text()
    house.wait_live(again)
    assert house.verify() == 0, "its columns are there"
