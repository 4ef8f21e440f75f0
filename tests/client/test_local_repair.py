"""A local cluster makes again what an emptied directory held, without anybody starting a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt_client.cli.exits import ExitCode
from tests.client.clikit import flip, run
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
        # At once, while the new directory has yet to join.
        ended = run("repair", "--wait", "--json", "--store", url)
        assert json.loads(ended.out.splitlines()[-1])["payloads_due"] == 0
        assert made(url) == 1
        assert is_whole(url)
        found = store.load("r", 1)
        assert np.array_equal(found["a"], state["a"])  # type: ignore[index]
    assert (tmp_path / "burst" / "logs" / "repair.log").exists()


def test_what_a_directory_held_that_was_removed_under_its_target_is_made_again(
    url: str, tmp_path: Path
) -> None:
    state = {"a": np.arange(1 << 18)}
    with ckpt.open(url) as store:
        store.save("r", 1, state).wait(WAIT_S)
        shown = run("show", "r@1", "--json", "--store", url).document()
        lost = shown["columns"][0]["targets"][0]
        directory = tmp_path / "burst" / "targets" / lost
        directory.rename(tmp_path / "gone")
        wait_until(
            lambda: "DIRECTORY_UNKNOWN" in checks(url), "its target began again", WAIT_S, ASKED_S
        )
        assert "REDUNDANCY_LOW" in checks(url)
        assert run("target", "replace", lost, "--store", url).code == 0
        wait_until(lambda: made(url) == 1 and is_whole(url), "nothing lacks", WAIT_S, ASKED_S)
        found = store.load("r", 1)
        assert np.array_equal(found["a"], state["a"])  # type: ignore[index]


def test_documents_that_rot_are_mended_where_they_lie(url: str, tmp_path: Path) -> None:
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": np.arange(1 << 16)}).wait(WAIT_S)
        store.tag("r", 1, "best")
        documents = sorted((tmp_path / "burst" / "targets").glob("*/documents/*"))
        assert {path.name.split("-")[0] for path in documents} == {"index", "record", "labels"}
        right = {path: path.read_bytes() for path in documents}
        # Of each kind one file: both copies, and the first header.
        rotten = {path.name.split("-")[0]: path for path in documents}
        for path in rotten.values():
            for offset in (3, 4096 + 40, 2 * 4096 + 40):
                flip(path, offset)
        assert run("scrub", "--store", url).code in (0, 3)
        wait_until(
            lambda: all(path.read_bytes() == right[path] for path in rotten.values()),
            "they are as they were", WAIT_S, ASKED_S,
        )  # fmt: skip
        wait_until(lambda: is_whole(url), "no rot is known", WAIT_S, ASKED_S)
        assert {path: path.read_bytes() for path in documents} == right


def test_columns_that_rot_are_mended_where_they_lie_when_no_other_target_may_take_them(
    tmp_path: Path,
) -> None:
    """4+2 on exactly 6 targets; each region of a file, and a load that meets the damage first."""
    url = f"ckpt+local://{tmp_path}/six?targets=6&code=4+2"
    state = {"a": np.arange(1 << 18)}
    try:
        with ckpt.open(url) as store:
            store.save("r", 1, state).wait(WAIT_S)
            columns = sorted((tmp_path / "six" / "targets").glob("*/columns/*"))
            right = {path: (path.read_bytes(), path.stat().st_ino) for path in columns}
            size = len(right[columns[0]][0])
            # Of one the first header and a cell, of another the second table and the last header.
            rotten = {columns[0]: (7, 4096 + 9), columns[1]: (size - 8192, size - 9)}
            for path, offsets in rotten.items():
                for offset in offsets:
                    flip(path, offset)
            found = store.load("r", 1)
            assert np.array_equal(found["a"], state["a"])  # type: ignore[index]
            assert run("scrub", "--store", url).code in (0, 3)
            wait_until(
                lambda: all(path.read_bytes() == right[path][0] for path in rotten),
                "they are as they were", WAIT_S, ASKED_S,
            )  # fmt: skip
            wait_until(lambda: is_whole(url), "no rot is known", WAIT_S, ASKED_S)
            assert made(url) == 2
            files = {path: (path.read_bytes(), path.stat().st_ino) for path in columns}
            assert {path for path in columns if files[path] != right[path]} == {*rotten}
            assert run("scrub", "--store", url).code == 0
    finally:
        assert run("local", "stop", f"{tmp_path}/six").code == 0


def test_people_pause_it_and_set_its_pace_and_a_restart_knows(url: str, tmp_path: Path) -> None:
    sizes = ("--floor-bytes", "4MiB", "--cap-bytes", "200MB")
    view = run("repair", "set", *sizes, "--json", "--store", url).document()
    assert (view["floor_bytes"], view["cap_bytes"]) == (4 << 20, 200_000_000)
    assert run("repair", "pause", "--json", "--store", url).document()["paused_at_s"] > 0
    assert run("local", "stop", f"{tmp_path}/burst").code == 0
    shown = run("repair", "--store", url).out
    assert "takes   4 MiB/s of each target beside saves and loads, else 191 MiB/s\n" in shown
    assert "paused  " in shown
    assert "worker  none was heard: one starts when it is needed\n" in shown
    resumed = run("repair", "resume", "--store", url)
    assert (resumed.code, "paused" in resumed.out) == (0, False)
    view = run("repair", "set", "--as-configured", "--json", "--store", url).document()
    assert (view["floor_bytes"], view["cap_bytes"]) == (8 << 20, 0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set",), "set says nothing"),
        (("pause", "--wait"), "--wait, and pause"),
        (("pause", "--cap-bytes", "1"), "a limit, and pause"),
        (("--floor-bytes", "1"), "a limit, and ls"),
        (("set", "--floor-bytes", "0"), "the floor is at least 1"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    url: str, words: tuple[str, ...], why: str
) -> None:
    refused = run("repair", *words, "--store", url)
    assert refused.code == ExitCode.USAGE
    assert why in refused.err


def empty(directory: Path, pid: int) -> None:
    """As an operator who has put a new disk there: its process comes again by itself."""
    # While it stands still: what it writes meanwhile would be in the way of who removes it.
    os.kill(pid, signal.SIGSTOP)
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


def checks(url: str) -> set[str]:
    document = run("status", "--json", "--store", url).document()
    return {each["name"] for each in document["checks"]}


def made(url: str) -> int:
    return int(run("repair", "--json", "--store", url).document()["columns_made"])


def is_whole(url: str) -> bool:
    return run("status", "--json", "--store", url).document()["health"] == "HEALTH_OK"
