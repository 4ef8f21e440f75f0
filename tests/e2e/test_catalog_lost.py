"""The catalog is lost, old or torn: nobody is told an older truth, and the command that is named
brings back all that was acknowledged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import Cluster, command
from tests.e2e.states import form_of

OPTIONS = "targets=3&code=2+1"
WAIT_S = 60.0
NAME = "catalog.sqlite"


def state(step: int) -> dict[str, object]:
    return {"a": np.random.default_rng(step).integers(0, 255, 100_000, "u1")}


def save(cluster: Cluster, *steps: int) -> None:
    """Acknowledged, in one life of the cluster, which is stopped behind it."""
    with ckpt.open(cluster.url) as store:
        for step in steps:
            store.save("run", step, state(step)).wait(WAIT_S)
    cluster.stop()


def copy_of(cluster: Cluster, folder: Path) -> Path:
    """The catalog as a backup of the disk would have it."""
    folder.mkdir()
    for file in cluster.directory.glob(f"{NAME}*"):
        shutil.copy2(file, folder)
    return folder


def put_back(cluster: Cluster, copy: Path) -> None:
    remove(cluster)
    for file in copy.iterdir():
        shutil.copy2(file, cluster.directory)


def remove(cluster: Cluster) -> None:
    for file in cluster.directory.glob(f"{NAME}*"):
        file.unlink()


def empty(cluster: Cluster) -> None:
    remove(cluster)
    (cluster.directory / NAME).touch()


def tear(cluster: Cluster) -> None:
    path = cluster.directory / NAME
    os.truncate(path, path.stat().st_size // 2)


def spoil(cluster: Cluster) -> None:
    path = cluster.directory / NAME
    path.write_bytes(b"garbage " * (path.stat().st_size // 8))


@pytest.fixture
def cluster(mark: str, tmp_path: Path) -> Iterator[Cluster]:
    """One of this test's own, which is left stopped."""
    made = Cluster(tmp_path / "cluster", OPTIONS)
    yield made
    command("local", "stop", str(made.directory))


def refusal(cluster: Cluster) -> str:
    """What a job hears that begins now; it must not hear that there is nothing, or less."""
    try:
        with ckpt.open(cluster.url) as store:
            newest = store.latest("run")
    except ckpt.CkptError as error:
        return str(error)
    pytest.fail(f"the newest step is said to be {newest}")


def run_what_it_says(text: str) -> None:
    """The command that an error names, as a person would run it."""
    _, marker, line = text.partition("run: ")
    assert marker, f"no command in: {text}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env={**os.environ, "PATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


def check_all_is_there(cluster: Cluster, *steps: int) -> None:
    with ckpt.open(cluster.url) as store:
        assert store.latest("run") == steps[-1]
        for step in steps:
            assert form_of(store.load("run", step=step)) == form_of(state(step))
        generations = [commit.generation for commit in store.steps("run")]
        store.save("run", steps[-1] + 1, state(0)).wait(WAIT_S)
        (new,) = {c.generation for c in store.steps("run")} - set(generations)
        assert new.term > max(generation.term for generation in generations)


@pytest.mark.parametrize("harm", [remove, empty, tear, spoil])
def test_a_harmed_catalog_serves_nobody_and_names_the_command_that_mends_it(
    cluster: Cluster, harm: Callable[[Cluster], None]
) -> None:
    save(cluster, 1, 2)
    harm(cluster)
    told = refusal(cluster)
    assert str(cluster.directory) in told
    run_what_it_says(told)
    check_all_is_there(cluster, 1, 2)


@pytest.mark.parametrize("lives", [1, 2, 3])
def test_a_catalog_that_is_older_than_its_targets_serves_nobody(
    cluster: Cluster, tmp_path: Path, lives: int
) -> None:
    """Behind one start, its term would be that of the life which it does not know."""
    save(cluster, 1)
    copy = copy_of(cluster, tmp_path / "copy")
    for life in range(lives):
        save(cluster, 2 + life)
    put_back(cluster, copy)
    told = refusal(cluster)
    assert "older" in told
    # Nothing changes by trying again, though each start is another term.
    for _ in range(3):
        cluster.stop()
        assert "older" in refusal(cluster)
    run_what_it_says(told)
    check_all_is_there(cluster, *range(1, 2 + lives))


def test_a_copy_from_the_life_that_was_the_last_one_serves_nobody(
    cluster: Cluster, tmp_path: Path
) -> None:
    """No term tells it from the catalog that was lost."""
    with ckpt.open(cluster.url) as store:
        store.save("run", 1, state(1)).wait(WAIT_S)
        copy = copy_of(cluster, tmp_path / "copy")
        store.save("run", 2, state(2)).wait(WAIT_S)
    cluster.stop()
    put_back(cluster, copy)
    told = refusal(cluster)
    assert "older" in told
    run_what_it_says(told)
    check_all_is_there(cluster, 1, 2)


def test_one_target_that_holds_records_is_enough_to_refuse_an_empty_catalog(
    cluster: Cluster,
) -> None:
    save(cluster, 1)
    remove(cluster)
    for id in ("t0", "t1"):
        (cluster.directory / "targets" / id / "held").touch()
    refusal(cluster)
    for id in ("t0", "t1"):
        (cluster.directory / "targets" / id / "held").unlink()
    run_what_it_says(refusal(cluster))
    check_all_is_there(cluster, 1)
