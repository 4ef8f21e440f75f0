"""A catalog that is made again of what the targets hold knows the targets as they stood."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.format.documents.cluster_map import decode_map
from ckpt.protocol.target.notes.map_note import MAP_FILE
from tests.client.clikit import run
from tests.waiting import ASKED_S, wait_until

WAIT_S = 60.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "burst"
    ckpt.open(f"ckpt+local://{made}?targets=5&code=2+1").close()
    yield made
    assert run("local", "stop", str(made)).code == 0


def standings(url: str) -> dict[str, str]:
    listed = run("target", "ls", "--json", "--store", url).document()["targets"]
    return {each["id"]: each["standing"] for each in listed}


def kept(directory: Path, id: str) -> dict[str, str]:
    """How each stands, says this target's copy."""
    file = directory / "targets" / id / MAP_FILE
    entries = decode_map(file.read_bytes()).targets if file.exists() else ()
    return {entry.target: entry.standing for entry in entries}


def test_it_knows_who_drains_and_who_was_removed(directory: Path) -> None:
    url = f"ckpt+local://{directory}"
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": np.arange(10_000)}).wait(WAIT_S)
        assert run("target", "drain", "t0", "--wait", "--store", url).code == 0
        assert run("target", "out", "t1", "--wait", "--store", url).code == 0
        assert run("target", "hold", "t0", "--store", url).code == 0
        listed = run("target", "ls", "--json", "--store", url).document()["targets"]
        os.kill(next(each["pid"] for each in listed if each["id"] == "t0"), signal.SIGTERM)
        wait_until(
            lambda: run("target", "remove", "t0", "--store", url).code == 0,
            "it has ended", WAIT_S, ASKED_S,
        )  # fmt: skip
        known = {"t0": "removed", "t1": "out", "t2": "in", "t3": "in", "t4": "in"}
        wait_until(
            lambda: all(kept(directory, id) == known for id in ("t1", "t2", "t3", "t4")),
            "all have the map", WAIT_S, ASKED_S,
        )  # fmt: skip
    assert run("local", "stop", str(directory)).code == 0
    for file in directory.glob("catalog.sqlite*"):
        file.unlink()
    made = run("catalog", "rebuild", str(directory))
    assert (made.code, "t0" in made.out) == (0, False), made
    with ckpt.open(url) as store:
        assert standings(url) == {"t1": "out", "t2": "in", "t3": "in", "t4": "in"}
        assert "removed" in run("target", "in", "t0", "--store", url).err
        found = store.load("r", 1)
        assert isinstance(found, dict)
        assert np.array_equal(found["a"], np.arange(10_000))


def test_one_that_is_not_there_is_known_and_not_waited_for(directory: Path) -> None:
    url = f"ckpt+local://{directory}"
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": np.arange(10_000)}).wait(WAIT_S)
        wait_until(lambda: len(kept(directory, "t4")) == 5, "t4 has the map", WAIT_S, ASKED_S)
    assert run("local", "stop", str(directory)).code == 0
    (directory / "catalog.sqlite").unlink()
    shutil.rmtree(directory / "targets" / "t0")
    assert run("catalog", "rebuild", str(directory)).code == 3
    with ckpt.open(url) as store:
        assert set(standings(url)) == {"t0", "t1", "t2", "t3", "t4"}
        found = store.load("r", 1)
        assert isinstance(found, dict)
        assert np.array_equal(found["a"], np.arange(10_000))
