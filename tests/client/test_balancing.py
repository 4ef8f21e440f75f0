"""Columns go from full targets to an empty one, by real processes, and all is there as before."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.client.bits import bits_of
from tests.client.clikit import run
from tests.waiting import ASKED_S, wait_until

WAIT_S = 60.0
STEPS = range(1, 11)
OPTIONS = "targets=4&code=2+1&capacity=80MiB&cell=128KiB&pretend_domains=1"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = f"ckpt+local://{tmp_path}/burst?{OPTIONS}"
    ckpt.open(made).close()
    yield made
    assert run("local", "stop", f"{tmp_path}/burst").code == 0


def columns(url: str) -> dict[str, int]:
    listed = run("target", "ls", "--json", "--store", url).document()["targets"]
    return {each["id"]: each["columns"] for each in listed if each["state"] == "live"}


def balance(url: str) -> dict[str, object]:
    found = run("repair", "--json", "--store", url).document()["balance"]
    assert isinstance(found, dict)
    return found


def test_an_empty_target_gets_its_share_and_every_step_loads_as_before(url: str) -> None:
    states = {step: {"a": np.random.default_rng(step).bytes(1 << 21)} for step in STEPS}
    arrays = {step: {"a": np.frombuffer(state["a"], "u1")} for step, state in states.items()}
    assert run("target", "hold", "t3", "--store", url).code == 0
    views = run("status", "--json", "--store", url).document()["targets"]
    os.kill(next(view["pid"] for view in views if view["id"] == "t3"), signal.SIGTERM)
    wait_until(lambda: "t3" not in columns(url), "t3 is away", WAIT_S, ASKED_S)
    with ckpt.open(url) as store:
        for step, state in arrays.items():
            store.save("r", step, state).wait(WAIT_S)
    assert run("target", "release", "t3", "--store", url).code == 0
    wait_until(lambda: columns(url).get("t3") == 0, "t3 is back, empty", WAIT_S, ASKED_S)

    line = ("target", "balance", "--store", url)
    wait_until(lambda: run(*line, "--dry-run").code == 0, "t3 says its room", WAIT_S, ASKED_S)
    planned = run(*line, "--dry-run", "--json").document()
    assert (planned["running"], planned["columns_moved"]) == (False, 0)
    assert planned["bytes_left"] > 4 << 20
    assert "would move" in run(*line, "--dry-run").out
    begun = run(*line)
    assert (begun.code, "are to move" in begun.out) == (0, True), begun.err
    assert run(*line, "--json").document()["running"]
    waited = [json.loads(each) for each in run(*line, "--wait", "--json").out.splitlines()]
    assert waited[-1]["message_type"] == "summary"
    assert not waited[-1]["balance"]["asked"]
    assert waited[-1]["balance"]["columns_moved"] >= 5
    assert not balance(url)["asked"]
    wait_until(
        lambda: sum(columns(url).values()) == 3 * len(STEPS), "old copies are gone", WAIT_S, ASKED_S
    )
    assert columns(url)["t3"] >= 5
    again = run(*line)
    assert (again.code, "nothing is moved for less than" in again.err) == (2, True)
    assert run("status", "--json", "--store", url).document()["health"] == "HEALTH_OK"
    with ckpt.open(url) as store:
        for step, state in arrays.items():
            found = store.load("r", step)
            assert isinstance(found, dict)
            assert bits_of(found["a"]) == bits_of(state["a"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (("balance", "t0"), "balance takes no ID"),
        (("balance", "--stop", "--dry-run"), "without --dry-run"),
        (("balance", "--stop", "--wait"), "without --dry-run and --stop"),
        (("drain", "t0", "--stop"), "only balance takes --stop"),
        (("balance", "--force"), "balance takes neither"),
    ],
)
def test_words_that_do_not_belong_together_are_refused(line: tuple[str, ...], why: str) -> None:
    ended = run("target", *line, "--store", "ckpt+local:///nowhere")
    assert (ended.code, why in ended.err) == (2, True), ended.err
