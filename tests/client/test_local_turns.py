"""What operators do in the middle of something else, and what disks do to them: nothing is lost,
all is whole in the end, and each target says what it is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from tests.client.bits import bits_of
from tests.client.clikit import Ended, run, start
from tests.harm import remove_under
from tests.waiting import ASKED_S, wait_until
from tests.warm_child import start_daemon

WAIT_S = 90.0
STEPS = range(1, 7)
N = 3
OPTIONS = "targets=6&code=2+1&pretend_domains=1&restart=always&cell=128KiB"


class Local:
    """A cluster in which some steps are kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"ckpt+local://{directory}?{OPTIONS}"

    def say(self, *words: str) -> Ended:
        return run(*words, "--store", self.url)

    def done(self, *words: str) -> str:
        ended = self.say(*words)
        assert ended.code == 0, f"{words}: {ended.err}"
        return ended.out

    def document(self, *words: str) -> Any:
        return self.say(*words, "--json").document()

    def targets(self) -> dict[str, dict[str, Any]]:
        return {each["id"]: each for each in self.document("target", "ls")["targets"]}

    def columns(self, id: str) -> int:
        return int(self.targets()[id]["columns"])

    def folder(self, id: str) -> Path:
        return self.directory / "targets" / id

    def save(self, *steps: int) -> None:
        with ckpt.open(self.url) as store:
            for step in steps:
                store.save("r", step, state(step)).wait(WAIT_S)

    def check(self, *steps: int) -> None:
        """Each is as it was saved."""
        with ckpt.open(self.url) as store:
            for step in steps:
                found = store.load("r", step)
                assert isinstance(found, dict)
                assert bits_of(found["a"]) == bits_of(state(step)["a"])

    def check_whole(self, *steps: int) -> None:
        """In time nothing is wrong and no column is there twice; any target may be lost."""
        wait_until(self.is_well, f"all is well: {self.checks()}", WAIT_S, ASKED_S)
        wait_until(lambda: self.files() == N * len(steps), "each column once", WAIT_S, ASKED_S)
        self.check(*steps)
        self.done("drill", "--any")

    def is_well(self) -> bool:
        return not self.checks()

    def checks(self) -> list[str]:
        found = self.document("status")["checks"]
        return [one["name"] for one in found if one["severity"] != "info"]

    def files(self) -> int:
        return len(list(self.directory.glob("targets/*/columns/*")))

    def end(self, id: str) -> None:
        """Its process; nobody starts it again before `back`."""
        self.done("target", "hold", id)
        os.kill(self.targets()[id]["pid"], signal.SIGKILL)
        wait_until(lambda: self.targets()[id]["state"] == "down", f"{id} is down", WAIT_S, ASKED_S)

    def back(self, id: str) -> None:
        self.done("target", "release", id)
        wait_until(lambda: self.targets()[id]["state"] == "live", f"{id} is up", WAIT_S, ASKED_S)


def state(step: int) -> dict[str, Any]:
    return {"a": np.random.default_rng(step).integers(0, 255, 1 << 20, np.uint8)}


@contextmanager
def running(directory: Path) -> Iterator[Local]:
    directory.mkdir()
    (directory / "coordinator.toml").write_text("rebuild_after_s = 1\norphan_grace_s = 5\n")
    yield Local(directory)
    assert run("local", "stop", str(directory)).code == 0


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with running(tmp_path_factory.mktemp("turns") / "burst") as made:
        yield made


@pytest.fixture
def local(lasting: Local) -> Local:
    """One for all that leave it whole. The steps are saved again until each target has something of
    them, also who has just come back empty.
    """

    def is_spread() -> bool:
        lasting.save(*STEPS)
        return all(each["columns"] for each in lasting.targets().values())

    wait_until(is_spread, "each target has something to lose", WAIT_S, ASKED_S)
    return lasting


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Local]:
    """For who saves other steps, or makes a target more or less."""
    with running(tmp_path / "burst") as made:
        made.save(*STEPS)
        yield made


def test_two_are_drained_at_once_and_one_is_taken_back_in_the_middle(local: Local) -> None:
    one, other = "t1", "t4"
    had = {id: local.columns(id) for id in (one, other)}
    assert min(had.values()) > 0
    local.done("repair", "pause")
    local.done("target", "drain", one)
    local.done("target", "drain", other)
    local.done("repair", "resume")
    local.done("target", "undrain", one)
    wait_until(lambda: local.columns(other) == 0, f"{other} is empty", WAIT_S, ASKED_S)
    local.check(*STEPS)
    assert local.columns(one) > 0 or had[one] == 0
    local.done("target", "undrain", other)
    local.check_whole(*STEPS)


def test_one_that_is_out_loses_its_disk_and_comes_in_again(local: Local) -> None:
    local.done("repair", "pause")
    local.done("target", "out", "t2")
    local.end("t2")
    remove_under(local.folder("t2"))
    local.done("target", "release", "t2")
    wait_until(
        lambda: "DIRECTORY_UNKNOWN" in local.checks(), "its new directory knocks", WAIT_S, ASKED_S
    )
    local.done("target", "in", "t2")
    local.done("target", "replace", "t2")
    local.done("repair", "resume")
    local.check_whole(*STEPS)


def test_a_second_one_is_lost_while_repair_is_paused(local: Local) -> None:
    """It cannot be that both lose what only both have: one comes back."""
    local.done("repair", "pause")
    local.end("t0")
    wait_until(lambda: local.document("repair")["columns_due"], "it is due", WAIT_S, ASKED_S)
    local.end("t3")
    local.done("repair", "resume")
    local.back("t0")
    wait_until(
        lambda: local.columns("t3") == 0 or local.files() >= N * len(STEPS), "", WAIT_S, ASKED_S
    )
    local.check(*STEPS)
    local.back("t3")
    local.check_whole(*STEPS)


def test_the_same_target_is_replaced_twice(local: Local) -> None:
    for _ in range(2):
        remove_under(local.folder("t5"))
        wait_until(lambda: "DIRECTORY_UNKNOWN" in local.checks(), "it knocks", WAIT_S, ASKED_S)
        local.done("target", "replace", "t5")
    wait_until(lambda: local.targets()["t5"]["state"] == "live", "it is back", WAIT_S, ASKED_S)
    refused = local.say("target", "replace", "t5")
    assert (refused.code, "target t5 is live" in refused.err) == (11, True), refused.err
    local.check_whole(*STEPS)


def test_one_that_is_drained_is_scrubbed(local: Local) -> None:
    local.done("repair", "pause")
    local.done("target", "drain", "t1")
    local.done("scrub", "t1")
    with start("scrub", "t1", "--store", local.url) as scrubbing:
        local.done("repair", "resume")
        scrubbing.communicate(timeout=WAIT_S)
    assert scrubbing.returncode == 0
    wait_until(lambda: local.columns("t1") == 0, "it is empty", WAIT_S, ASKED_S)
    local.done("target", "undrain", "t1")
    local.check_whole(*STEPS)


def test_a_disk_comes_back_as_it_was_some_time_ago(own: Local, tmp_path: Path) -> None:
    """A backup of its directory, put back: what was deleted since stays deleted, what was saved
    since is made again.
    """
    victim, backup = "t2", tmp_path / "backup"
    own.end(victim)
    shutil.copytree(own.folder(victim), backup, ignore=shutil.ignore_patterns("socket"))
    own.back(victim)
    own.save(7, 8, 9)
    for step in (1, 2):
        own.done("rm", f"r@{step}")
    own.end(victim)
    remove_under(own.folder(victim))
    shutil.copytree(backup, own.folder(victim))
    own.back(victim)
    left = range(3, 10)
    own.check_whole(*left)


def test_durability_and_a_drill_while_a_target_dies(local: Local) -> None:
    with start("drill", "--any", "--store", local.url) as drilling:
        local.end("t4")
        found = local.document("durability")
        _, said = drilling.communicate(timeout=WAIT_S)
    assert found
    assert drilling.returncode in (0, 4), said
    assert "Traceback" not in said
    local.back("t4")
    local.check_whole(*STEPS)


def test_a_balance_is_asked_for_during_a_rebuild(local: Local) -> None:
    local.done("repair", "pause")
    remove_under(local.folder("t0"))
    wait_until(lambda: "DIRECTORY_UNKNOWN" in local.checks(), "it knocks", WAIT_S, ASKED_S)
    local.done("target", "replace", "t0")
    asked = local.say("target", "balance")
    assert asked.code in (0, 2), asked.err
    local.done("repair", "resume")
    local.check_whole(*STEPS)


def test_the_daemon_of_a_removed_target_is_started_again(own: Local, tmp_path: Path) -> None:
    """It is told why it is none, as often as it asks; status names it, and all else goes on."""
    own.done("target", "drain", "t3", "--wait")
    own.done("target", "remove", "t3")
    removed = own.directory / "targets" / "t3.removed"
    address = json.loads((own.directory / "ready.json").read_text())["address"]
    words = [
        *("--id", "t3", "--directory", str(removed), "--coordinator", address),
        *("--secret-file", str(own.directory / "secret")),
    ]
    log = tmp_path / "log"
    with log.open("wb") as said:
        again = start_daemon(["target", *words], stderr=said.fileno())
    assert again.stdout is not None
    with again.stdout:
        refused = "target t3 was removed from this cluster, for good"
        wait_until(lambda: refused in log.read_text(), "it is refused", WAIT_S)
        assert "t3" not in own.targets()
        named = lambda: own.checks() == ["TARGET_REMOVED"]  # noqa: E731
        wait_until(named, "nothing else is wrong", WAIT_S, ASKED_S)
        own.check(*STEPS)
        own.done("drill", "--any")
        again.terminate()
        again.wait(WAIT_S)


def test_a_torn_map_is_no_map_and_is_written_again(local: Local) -> None:
    local.end("t1")
    (file,) = local.folder("t1").glob("*map*")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    local.back("t1")
    wait_until(
        lambda: (
            file.read_bytes()[:4] == whole[:4] and len(file.read_bytes()) >= len(whole) // 2 + 1
        ),
        "it is there again",
        WAIT_S,
        ASKED_S,
    )
    local.check_whole(*STEPS)


def test_one_of_a_tenth_of_the_size_is_added_on_the_same_device(own: Local, tmp_path: Path) -> None:
    place = tmp_path / "small"
    added = own.document("target", "add", str(place), "--force")
    own.save(7, 8, 9)
    own.check_whole(*range(1, 10))
    own.done("target", "drain", added["id"], "--wait")
    own.done("target", "remove", added["id"])
    own.check_whole(*range(1, 10))
