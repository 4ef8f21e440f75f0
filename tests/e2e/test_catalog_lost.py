"""The catalog is lost, old or torn: nobody is told an older truth, and the command that is named
brings back all that was acknowledged.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ckpt
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
from tests.e2e.cluster import Cluster, command
from tests.landing import in_turn
from tests.small_disk import small_files

OPTIONS = "targets=3&code=2+1"


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
    remove(cluster.directory)
    for file in copy.iterdir():
        shutil.copy2(file, cluster.directory)


def lose(cluster: Cluster) -> None:
    remove(cluster.directory)


def empty(cluster: Cluster) -> None:
    remove(cluster.directory)
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


@pytest.mark.parametrize("harm", in_turn([lose, empty, tear, spoil], every=2))
def test_a_harmed_catalog_serves_nobody_and_names_the_command_that_mends_it(
    cluster: Cluster, harm: Callable[[Cluster], None]
) -> None:
    save(cluster, 1, 2)
    harm(cluster)
    told = refusal(cluster.url)
    assert str(cluster.directory) in told
    if harm in (lose, empty):
        out = command("status", "--json", "--store", cluster.url, codes=(4,)).out
        status = json.loads(out)
        commands = {check["name"]: check["command"] for check in status["checks"]}
        assert (status["health"], commands["CATALOG_OLD"]) == ("HEALTH_ERR", command_in(told))
    run_line(command_in(told))
    check_all_is_there(cluster.url, 1, 2)


@pytest.mark.parametrize("lives", in_turn([1, 2, 3], every=3))
def test_a_catalog_that_is_older_than_its_targets_serves_nobody(
    cluster: Cluster, tmp_path: Path, lives: int
) -> None:
    """Behind one start, its term would be that of the life which it does not know."""
    save(cluster, 1)
    copy = copy_of(cluster, tmp_path / "copy")
    for life in range(lives):
        save(cluster, 2 + life)
    put_back(cluster, copy)
    told = refusal(cluster.url)
    assert "older" in told
    # Nothing changes by trying again, though each start is another term.
    for _ in range(3):
        cluster.stop()
        assert "older" in refusal(cluster.url)
    run_line(command_in(told))
    check_all_is_there(cluster.url, *range(1, 2 + lives))


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
    told = refusal(cluster.url)
    assert "older" in told
    run_line(command_in(told))
    check_all_is_there(cluster.url, 1, 2)


def test_a_backup_made_while_it_runs_is_restored_without_losing_what_came_behind_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    file, directory = tmp_path / "away" / "catalog.sqlite", str(cluster.directory)
    with ckpt.open(cluster.url) as store:
        store.save("run", 1, state(1)).wait(WAIT_S)
        store.save("run", 2, state(2)).wait(WAIT_S)
        with small_files(1000):
            told = command("catalog", "backup", directory, "--to", str(file), codes=(13,)).err
        assert str(file) in told
        assert list(file.parent.iterdir()) == []
        command("catalog", "backup", directory, "--to", str(file))
        store.delete("run", 1)
        store.save("run", 3, state(3)).wait(WAIT_S)
    cluster.stop()
    # As somebody would who does not know better.
    remove(cluster.directory)
    shutil.copy2(file, cluster.directory / NAME)
    assert "older" in refusal(cluster.url)
    cluster.stop()
    command("catalog", "restore", directory, "--from", str(file))
    check_all_is_there(cluster.url, 2, 3)


def test_a_backup_of_a_cluster_that_rests_is_the_catalog_of_the_next_start(
    cluster: Cluster,
) -> None:
    save(cluster, 1)
    told = command("catalog", "backup", str(cluster.directory), "--json").out
    (copy,) = (cluster.directory / "backups").iterdir()
    assert json.loads(told)["path"] == str(copy)
    assert copy.stat().st_mode & 0o777 == 0o600
    remove(cluster.directory)
    copy.rename(cluster.directory / NAME)
    check_all_is_there(cluster.url, 1)


def test_one_target_that_holds_records_is_enough_to_refuse_an_empty_catalog(
    cluster: Cluster,
) -> None:
    save(cluster, 1)
    remove(cluster.directory)
    for id in ("t0", "t1"):
        (cluster.directory / "targets" / id / "held").touch()
    refusal(cluster.url)
    for id in ("t0", "t1"):
        (cluster.directory / "targets" / id / "held").unlink()
    run_line(command_in(refusal(cluster.url)))
    check_all_is_there(cluster.url, 1)
