"""What operators do wrong with directories of a local cluster: it is said, and nothing is lost."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpt
from ckptd.local.supervisor import LocalConfig, run_local
from ckptd.log import reporter
from tests.client.clikit import Ended, run
from tests.harm import remove_under
from tests.landing import in_turn
from tests.waiting import ASKED_S, wait_until

WAIT_S = 60.0
CLONE_NEWNET = 0x40000000
STATE = {"a": np.arange(1 << 18)}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = f"ckpt+local://{tmp_path}/burst?targets=5&code=2+1&pretend_domains=1"
    with ckpt.open(made) as store:
        store.save("r", 1, STATE).wait(WAIT_S)
    yield made
    assert run("local", "stop", f"{tmp_path}/burst").code == 0


@pytest.fixture
def targets(tmp_path: Path, url: str) -> Path:
    return tmp_path / "burst" / "targets"


def checks(url: str) -> list[dict[str, Any]]:
    found = run("status", "--json", "--store", url).document()["checks"]
    assert isinstance(found, list)
    return found


def unknown(url: str) -> list[str]:
    """Commands that replace what knocks."""
    return [one["command"] for one in checks(url) if one["name"] == "DIRECTORY_UNKNOWN"]


def replace(url: str, *words: str) -> Ended:
    return run("target", "replace", *words, "--store", url)


def holders(url: str) -> list[str]:
    found = run("show", "r@1", "--json", "--store", url).document()["columns"][0]["targets"]
    assert isinstance(found, list)
    return found


def is_well(url: str) -> bool:
    return run("status", "--json", "--store", url).document()["health"] == "HEALTH_OK"


def check_loads(url: str) -> None:
    with ckpt.open(url) as store:
        found = store.load("r", 1)
    assert isinstance(found, dict)
    assert np.array_equal(found["a"], STATE["a"])


@pytest.fixture
def without_loopback() -> Iterator[ThreadPoolExecutor]:
    """A thread in a network of its own, as `unshare -n` makes it; skips where none can be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    with ThreadPoolExecutor(1) as thread:
        if thread.submit(libc.unshare, CLONE_NEWNET).result() != 0:
            pytest.skip("no network namespace can be made here")
        yield thread


def test_a_network_without_loopback_is_named_before_anything_is_started(
    tmp_path: Path, without_loopback: ThreadPoolExecutor
) -> None:
    """It took 76 s until somebody said that a coordinator is out of reach."""
    directory = tmp_path / "burst"
    config, report = LocalConfig(directory=directory), reporter("test")
    for asked in (
        without_loopback.submit(ckpt.open, f"ckpt+local://{directory}"),
        without_loopback.submit(run_local, config, report=report),
    ):
        with pytest.raises(ckpt.Unavailable, match=r"127\.0\.0\.1: Network is unr.*ip link set lo"):
            asked.result(WAIT_S)
    assert not (directory / "logs").exists()


def test_disks_that_are_not_mounted_are_not_replaced_unasked(
    url: str, targets: Path, tmp_path: Path
) -> None:
    """Two of three: `ckpt status` names the command for each, and one would be too many."""
    away = holders(url)[:2]
    for id in away:
        (targets / id).rename(tmp_path / f"unmounted-{id}")
    wait_until(lambda: len(unknown(url)) == 2, "both begin on empty ones", WAIT_S, ASKED_S)
    planned = replace(url, away[0], "--dry-run")
    assert (planned.code, len(planned.out.splitlines())) == (0, 4), planned.out
    assert f"target {away[0]} is another directory" in planned.out
    assert "1 column (" in planned.out
    assert "against it: without" in planned.out
    for id in away:
        refused = replace(url, id)
        assert refused.code == 2
        assert f"what {id} had in its own directory would not count any more" in refused.err
        assert "too little is left of r@1" in refused.err
        assert f"bring back {targets / id} as it was" in refused.err
    for id in away:
        remove_under(targets / id)
        (tmp_path / f"unmounted-{id}").rename(targets / id)
    wait_until(lambda: is_well(url), "both are back", WAIT_S, ASKED_S)
    check_loads(url)
    assert holders(url)[:2] == away, "nothing has moved"


def test_what_is_gone_for_good_is_given_up_by_a_word(url: str, targets: Path) -> None:
    away = holders(url)[:2]
    for id in away:
        remove_under(targets / id)
    wait_until(lambda: len(unknown(url)) == 2, "both begin on empty ones", WAIT_S, ASKED_S)
    for id in away:
        assert replace(url, id, "--force").code == 0
    wait_until(lambda: not unknown(url), "both have joined", WAIT_S, ASKED_S)
    with ckpt.open(url) as store:
        store.save("r", 2, STATE).wait(WAIT_S)


@pytest.mark.parametrize("folder", in_turn(["columns", "documents"], every=2))
def test_what_a_folder_had_that_was_removed_under_its_target_is_made_again(
    url: str, targets: Path, folder: str
) -> None:
    """Its process would go on to answer for it; nobody would miss it before a scrub."""
    having = sorted(path for path in targets.glob(f"*/{folder}/*"))
    harmed = having[0].parent
    remove_under(harmed)

    def is_whole() -> bool:
        left = sorted(path.name for path in targets.glob(f"*/{folder}/*"))
        return harmed.is_dir() and left == sorted(path.name for path in having)

    wait_until(is_whole, "all of it is there again", WAIT_S, ASKED_S)
    wait_until(lambda: is_well(url), "nothing is wrong", WAIT_S, ASKED_S)
    check_loads(url)


def test_a_directory_of_another_cluster_is_named_and_gives_way_to_an_empty_one(
    url: str, targets: Path, tmp_path: Path
) -> None:
    other = f"ckpt+local://{tmp_path}/other?targets=3&code=2+1"
    with ckpt.open(other) as store:
        store.save("other", 1, STATE).wait(WAIT_S)
    assert run("local", "stop", f"{tmp_path}/other").code == 0
    lost = holders(url)[0]
    remove_under(targets / lost)
    wait_until(lambda: len(unknown(url)) == 1, "it begins on an empty one", WAIT_S, ASKED_S)
    remove_under(targets / lost)
    shutil.copytree(tmp_path / "other" / "targets" / "t0", targets / lost)

    def down() -> str:
        found = (one for one in checks(url) if one["name"] == "TARGET_DOWN")
        return next((one["remedy"] for one in found), "")

    wait_until(lambda: "belongs to cluster" in down(), "status says why", WAIT_S, ASKED_S)
    assert "mend that: it is tried again by itself" in down()
    assert replace(url, lost).code == 10, "nobody asks for the place"
    assert "other" not in run("ls", "--store", url).out
    remove_under(targets / lost)
    wait_until(lambda: len(unknown(url)) == 1, "it begins on an empty one", WAIT_S, ASKED_S)
    assert replace(url, lost).code == 0
    wait_until(lambda: is_well(url), "all is whole", WAIT_S, ASKED_S)
    check_loads(url)
