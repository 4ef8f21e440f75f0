"""Targets of a cluster are emptied and taken out for good, as an operator does it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt_client.cli.cluster import HOLD_NAME, is_running
from tests.client.bits import bits_of
from tests.client.clikit import run, start
from tests.waiting import ASKED_S, wait_until
from tests.warm_child import start_daemon

WAIT_S = 60.0
LEAVING = "t1"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = f"ckpt+local://{tmp_path}/burst?targets=6&code=2+1"
    ckpt.open(made).close()
    yield made
    assert run("local", "stop", f"{tmp_path}/burst").code == 0


def target(url: str, id: str) -> dict[str, object]:
    listed = run("target", "ls", "--json", "--store", url).document()["targets"]
    return next((each for each in listed if each["id"] == id), {})


def test_a_target_is_drained_and_removed_and_nothing_of_what_it_had_is_lost(
    url: str, tmp_path: Path
) -> None:
    states = {step: {"a": np.arange(step * 100_000)} for step in range(1, 5)}
    with ckpt.open(url) as store:
        for step, state in states.items():
            store.save("r", step, state).wait(WAIT_S)
        columns = target(url, LEAVING)["columns"]
        assert columns

        planned = run("target", "drain", LEAVING, "--dry-run", "--json", "--store", url).document()
        assert (planned["columns"], planned["was"], planned["doubts"]) == (columns, "in", [])
        assert planned["survives"] in (0, 1)
        assert "takes_s" in planned
        assert target(url, LEAVING)["standing"] == "in"
        told = run("target", "remove", LEAVING, "--dry-run", "--store", url).out
        assert "meanwhile each step survives the loss of at least 0 more targets\n" in told

        ended = run("target", "drain", LEAVING, "--wait", "--store", url)
        assert (ended.code, f"{LEAVING} is draining" in ended.out) == (0, True)
        assert f"elsewhere; ckpt target remove {LEAVING}\n" in ended.out, "that ends its process"
        assert target(url, LEAVING)["columns"] == 0
        assert "draining" in run("status", "--store", url).out

        pid = target(url, LEAVING)["pid"]
        assert isinstance(pid, int)
        assert run("target", "remove", LEAVING, "--store", url).code == 0
        assert not is_running(pid)
        assert target(url, LEAVING) == {}
        health = run("status", "--json", "--store", url).document()["health"]
        assert health == "HEALTH_OK"
        for step, state in states.items():
            found = store.load("r", step)
            assert isinstance(found, dict)
            assert bits_of(found["a"]) == bits_of(state["a"])
    assert "removed" in run("target", "in", LEAVING, "--store", url).err
    # Nobody misses it, nor can start it again.
    assert "targets  5/5 live" in run("status", "--store", url).out
    again = run("target", "release", LEAVING, "--store", url)
    assert (again.code, f"no target '{LEAVING}'" in again.err) == (10, True)
    assert (tmp_path / "burst" / "targets" / f"{LEAVING}.removed").is_dir()
    assert not (tmp_path / "burst" / "targets" / LEAVING).exists()


def test_who_waits_for_a_drain_hears_that_another_has_taken_it_back(url: str) -> None:
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": np.arange(100_000)}).wait(WAIT_S)
    leaving = next(f"t{i}" for i in range(6) if target(url, f"t{i}")["columns"])
    # So that it does not end before it is taken back.
    assert run("repair", "pause", "--store", url).code == 0
    with start("target", "drain", leaving, "--wait", "--json", "--store", url) as waiting:
        assert waiting.stdout is not None
        progress = json.loads(waiting.stdout.readline())
        assert progress["held_up"] == "paused: ckpt repair resume"
        wait_until(
            lambda: target(url, leaving)["standing"] == "draining", "it drains", WAIT_S, ASKED_S
        )
        assert run("target", "undrain", leaving, "--store", url).code == 0
        _, said = waiting.communicate(timeout=WAIT_S)
    assert waiting.returncode == 1
    assert f"{leaving} is in now, not draining: somebody has said so" in said


def test_who_waits_for_a_drain_hears_what_stays_there_for_a_load(url: str) -> None:
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": np.arange(100_000)}).wait(WAIT_S)
        leaving = next(f"t{i}" for i in range(6) if target(url, f"t{i}")["columns"])
        with (
            store.resolve("r", 1) as held,
            start("target", "drain", leaving, "--wait", "--json", "--store", url) as waiting,
        ):
            assert waiting.stdout is not None
            # All that is named there goes first.
            progress = next(
                each for each in map(json.loads, waiting.stdout) if not each.get("columns")
            )
            assert progress["message_type"] == "progress"
            assert "elsewhere as well: they go once no load is left" in progress["held_up"]
            held.close()
            _, said = waiting.communicate(timeout=WAIT_S)
        assert (waiting.returncode, said) == (0, "")
    assert not target(url, leaving)["columns"]


def test_an_interrupted_removal_holds_nothing(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "burst"
    address = json.loads((directory / "ready.json").read_text())["address"]
    # The supervisor does not know it, so nobody ends it: the removal waits for that.
    words = [
        *("target", "--id", "t9", "--directory", str(tmp_path / "t9")),
        *("--coordinator", address, "--secret-file", str(directory / "secret")),
    ]
    held = directory / "targets" / "t9" / HOLD_NAME
    with (tmp_path / "log").open("wb") as log:
        alone = start_daemon(words, stderr=log.fileno())
    assert alone.stdout is not None
    with alone.stdout:
        wait_until(
            lambda: target(url, "t9").get("state") == "live", "it has joined", WAIT_S, ASKED_S
        )
        with start("target", "remove", "t9", "--store", url) as removing:
            wait_until(held.exists, "it is held", WAIT_S)
            removing.send_signal(signal.SIGINT)
            removing.communicate(timeout=WAIT_S)
        assert (removing.returncode, held.exists()) == (130, False)
        alone.terminate()
        assert alone.wait(WAIT_S) == 0


def test_a_directory_is_one_target_more_and_goes_again(url: str, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    add = ("target", "add", str(place), "--store", url)
    shared = run(*add)
    assert (shared.code, "is on the device of target t0" in shared.err) == (2, True)
    before = {id: target(url, id)["pid"] for id in ("t0", "t5")}

    added = run(*add, "--force", "--json").document()
    assert (added["id"], added["directory"]) == ("t6", str(place))
    assert {id: target(url, id)["pid"] for id in before} == before
    assert run(*add, "--force").code == 2
    states = {step: {"a": np.arange(step * 50_000)} for step in range(1, 9)}
    with ckpt.open(url) as store:
        for step, state in states.items():
            store.save("r", step, state).wait(WAIT_S)
    assert target(url, "t6")["columns"]

    directory = f"{tmp_path}/burst"
    assert run("local", "stop", directory).code == 0
    # As an unmounted one: it is waited for.
    place.rename(tmp_path / "unmounted")
    assert target(url, "t6")["state"] == "down"
    (tmp_path / "unmounted").rename(place)
    wait_until(lambda: target(url, "t6")["state"] == "live", "it is back", WAIT_S, ASKED_S)
    assert target(url, "t6")["columns"]
    assert run("target", "drain", "t6", "--wait", "--store", url).code == 0
    pid = target(url, "t6")["pid"]
    assert run("target", "remove", "t6", "--store", url).code == 0
    assert not is_running(pid)
    assert (target(url, "t6"), place.is_dir()) == ({}, True)
    wait_until(
        lambda: "t6" not in Path(directory, "ready.json").read_text(), "its place is left",
        WAIT_S, ASKED_S,
    )  # fmt: skip
    with ckpt.open(url) as store:
        for step, state in states.items():
            found = store.load("r", step)
            assert isinstance(found, dict)
            assert bits_of(found["a"]) == bits_of(state["a"])
    again = run("target", "add", "--force", "--name", "t6", "--store", url)
    assert (again.code, "t6 was a target" in again.err) == (2, True)


def test_a_target_whose_loss_would_lose_data_is_not_ended(url: str) -> None:
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": np.arange(100_000)}).wait(WAIT_S)
    gone, last = [f"t{i}" for i in range(6) if target(url, f"t{i}")["columns"]][:2]
    assert run("target", "hold", gone, "--store", url).code == 0
    pid = target(url, gone)["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: target(url, gone)["state"] == "down", "it is away", WAIT_S, ASKED_S)
    pid = target(url, last)["pid"]
    refused = run("target", "remove", last, "--store", url)
    assert (refused.code, "too little is left" in refused.err) == (2, True)
    assert target(url, last)["pid"] == pid
    assert is_running(pid)
    assert run("target", "release", gone, "--store", url).code == 0


def test_a_step_back_and_what_speaks_against_one(url: str) -> None:
    for id in ("t0", "t1", "t2"):
        assert run("target", "out", id, "--store", url).code == 0
    against = run("target", "out", "t3", "--store", url)
    assert against.code == 2
    assert "2 of the 3 columns of a save find a place" in against.err
    assert "against it: " in run("target", "out", "t3", "--dry-run", "--store", url).out
    refused = run("target", "undrain", "t0", "--store", url)
    assert refused.code == 2
    assert "ckpt target in t0" in refused.err
    assert "in; it was in" in run("target", "undrain", "t3", "--store", url).out
    for id in ("t0", "t1", "t2"):
        assert run("target", "in", id, "--store", url).code == 0
    assert {target(url, id)["standing"] for id in ("t0", "t1", "t2")} == {"in"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("ls", "t0"), "ls takes no ID"),
        (("drain",), "drain of which target?"),
        (("hold", "t0", "--dry-run"), "hold takes no --dry-run"),
        (("hold", "t0", "--force"), "neither --dry-run nor --force"),
        (("in", "t0", "--wait"), "only drain, out and balance take --wait"),
        (("drain", "t0", "--wait", "--dry-run"), "without --dry-run"),
        (("drain", "t0", "--incarnation", "00"), "only replace takes --incarnation"),
        (("drain", "t0", "--name", "t9"), "only add takes --name"),
        (("add", "d", "--dry-run"), "add takes no --dry-run"),
        (("add", "d"), "ckptd target --id ID --directory DIR --coordinator 127.0.0.1:9"),
    ],
)
def test_a_word_that_would_do_nothing_is_refused(words: tuple[str, ...], named: str) -> None:
    ended = run("target", *words, "--store", "ckpt://127.0.0.1:9")
    assert (ended.code, named in ended.err) == (2, True)
