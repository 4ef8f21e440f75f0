"""A local cluster makes again what an emptied directory held, without anybody starting a worker."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.client.clikit import run
from tests.waiting import ASKED_S, wait_until

WAIT_S = 60.0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = f"ckpt+local://{tmp_path}/burst?targets=5&code=2+1"
    ckpt.open(made).close()
    yield made
    assert run("local", "stop", f"{tmp_path}/burst").code == 0


def test_what_an_emptied_directory_held_is_made_again(url: str, tmp_path: Path) -> None:
    state = {"a": np.arange(1 << 20)}
    with ckpt.open(url) as store:
        store.save("r", 1, state).wait(WAIT_S)
        shown = run("show", "r@1", "--json", "--store", url).document()
        lost = shown["columns"][0]["targets"][1]
        directory = tmp_path / "burst" / "targets" / lost
        empty(directory, pid_of(url, lost))
        wait_until(
            lambda: run("target", "replace", lost, "--store", url).code == 0,
            f"{lost} has knocked", WAIT_S, ASKED_S,
        )  # fmt: skip
        wait_until(lambda: made(url) == 1, "its column is made again", WAIT_S, ASKED_S)
        wait_until(lambda: is_whole(url), "nothing lacks", WAIT_S, ASKED_S)
        found = store.load("r", 1)
        assert np.array_equal(found["a"], state["a"])  # type: ignore[index]
    assert (tmp_path / "burst" / "logs" / "repair.log").exists()


def empty(directory: Path, pid: int) -> None:
    """As an operator who has put a new disk there: its process comes again by itself."""
    for each in directory.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    os.kill(pid, signal.SIGKILL)


def pid_of(url: str, target: str) -> int:
    targets = run("status", "--json", "--store", url).document()["targets"]
    (pid,) = (each["pid"] for each in targets if each["id"] == target)
    return int(pid)


def made(url: str) -> int:
    return int(run("repair", "--json", "--store", url).document()["columns_made"])


def is_whole(url: str) -> bool:
    return run("status", "--json", "--store", url).document()["health"] == "HEALTH_OK"
