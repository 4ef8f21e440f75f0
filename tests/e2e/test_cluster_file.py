"""Somebody edits or removes the `cluster.toml` of a cluster that has checkpoints: it is said which
cluster the directory is of, nothing begins as another one, and no command makes an empty catalog.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ckpt
from tests.e2e.catalogs import WAIT_S, check_all_is_there, refusal, state
from tests.e2e.cluster import Cluster, command

OPTIONS = "targets=3&code=2+1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """It is stopped, and has two checkpoints."""
    made = Cluster(tmp_path / "cluster", OPTIONS)
    with ckpt.open(made.url) as store:
        for step in (1, 2):
            store.save("run", step, state(step)).wait(WAIT_S)
    made.stop()
    yield made
    command("local", "stop", str(made.directory))


@pytest.fixture
def file(cluster: Cluster) -> Path:
    return cluster.directory / "cluster.toml"


def id_in(file: Path) -> str:
    return (file.parent / "cluster.id").read_text().strip()


def contents(directory: Path) -> dict[str, bytes]:
    """Of all that says whose the cluster is and what it has."""
    names = ("cluster.toml", "cluster.id", "catalog.sqlite")
    there = (path for path in directory.iterdir() if path.name.startswith(names))
    return {path.name: path.read_bytes() for path in there}


def test_a_catalog_is_not_made_again_for_another_cluster_than_the_targets_are_of(
    cluster: Cluster, file: Path
) -> None:
    """All that they hold would be passed over without a word."""
    kept, id = file.read_text(), id_in(file)
    file.write_text(kept.replace(id, "another"))
    assert f"is of cluster {id}, not another" in refusal(cluster.url)
    before = contents(cluster.directory)
    refused = command("catalog", "rebuild", str(cluster.directory), codes=(2,))
    assert f"{file} says cluster another, and its targets are of {id}" in refused.err
    assert f'cluster = "{id}"' in refused.err
    assert contents(cluster.directory) == before
    file.write_text(kept)
    check_all_is_there(cluster.url, 1, 2)


def test_a_target_of_another_cluster_is_named_when_the_catalog_is_made_again(
    cluster: Cluster, file: Path
) -> None:
    target = cluster.directory / "targets" / "t1" / "target.toml"
    target.write_text(target.read_text().replace(id_in(file), "another"))
    partly = command("catalog", "rebuild", str(cluster.directory), codes=(3,))
    assert f"{target.parent}: it is of cluster another" in partly.out


def test_without_its_file_no_other_cluster_begins_among_the_targets(
    cluster: Cluster, file: Path
) -> None:
    kept, id = file.read_text(), id_in(file)
    file.unlink()
    before = contents(cluster.directory)
    asked = command("status", "--store", f"ckpt+local://{cluster.directory}", codes=(10,))
    for told in (refusal(f"ckpt+local://{cluster.directory}"), refusal(cluster.url), asked.err):
        assert f'cluster = "{id}"' in told, "what brings it back"
        assert "makes one" not in told
    assert contents(cluster.directory) == before
    file.write_text(kept)
    check_all_is_there(cluster.url, 1, 2)


@pytest.mark.parametrize("key", ["cluster", "host", "created_by"])
def test_a_line_that_is_missing_is_named(cluster: Cluster, file: Path, key: str) -> None:
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in kept if not line.startswith(key)))
    assert f"{file} does not parse: {key} is missing" in refusal(cluster.url)
    file.write_text("".join(kept))


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_text("garbage")])
def test_a_cluster_that_runs_is_stopped_whatever_its_file_says_by_now(
    cluster: Cluster, file: Path, harm: Callable[[Path], None]
) -> None:
    with ckpt.open(cluster.url):
        kept = file.read_text()
    harm(file)
    stopped = command("local", "stop", str(cluster.directory))
    assert "stopped the cluster" in stopped.out
    again = command("local", "stop", str(cluster.directory), codes=(4, 10))
    assert str(file.name) in again.err, "where nothing runs, the harm is said"
    file.write_text(kept)
    check_all_is_there(cluster.url, 1, 2)


def test_a_machine_that_was_renamed_hears_how_its_cluster_comes_back(
    cluster: Cluster, file: Path
) -> None:
    """Or that has got the disk of another one."""
    line = f'host = "{socket.gethostname()}"'
    file.write_text(file.read_text().replace(line, 'host = "elsewhere"'))
    asked = command("status", "--store", cluster.url, codes=(2,)).err
    served = subprocess.run(
        [sys.executable, "-m", "ckptd.cli", "local", str(cluster.directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for told in (asked, refusal(cluster.url), served.stderr):
        assert "belongs to host elsewhere" in told
        assert f"say {line} in {file}" in told
    file.write_text(file.read_text().replace('host = "elsewhere"', line))
    check_all_is_there(cluster.url, 1, 2)


def test_a_store_begins_no_other_cluster_where_its_own_was_moved_away(cluster: Cluster) -> None:
    """A training would find nothing there after its next start, and begin at step 0."""
    away = cluster.directory.with_name("away")
    with ckpt.open(cluster.url) as store:
        known = id_in(cluster.directory / "cluster.toml")
        cluster.directory.rename(away)
        for ask in (lambda: store.latest("run"), lambda: store.save("run", 3, state(3))):
            with pytest.raises(
                ckpt.NotFound, match=f"cluster {known} is no longer in .*move it back"
            ):
                ask()
        assert not cluster.directory.exists()
        away.rename(cluster.directory)
        store.save("run", 3, state(3)).wait(WAIT_S)
    command("local", "stop", str(cluster.directory))
    check_all_is_there(cluster.url, 1, 2, 3)


def test_a_store_hears_that_another_cluster_is_where_its_own_was(cluster: Cluster) -> None:
    away = cluster.directory.with_name("away")
    with ckpt.open(cluster.url) as store:
        known = id_in(cluster.directory / "cluster.toml")
        command("local", "stop", str(cluster.directory))
        cluster.directory.rename(away)
        with ckpt.open(cluster.url) as other:
            other.save("run", 1, state(1)).wait(WAIT_S)
            found = id_in(cluster.directory / "cluster.toml")
            wrong = f"is of cluster {found} now; this process was connected to cluster {known}"
            for ask in (lambda: store.latest("run"), lambda: store.save("run", 3, state(3))):
                with pytest.raises(ckpt.NotFound, match=wrong):
                    ask()
        command("local", "stop", str(cluster.directory))
        with pytest.raises(ckpt.NotFound, match=wrong):
            store.latest("run")
    assert not (cluster.directory / "ready.json").exists(), "nobody has started it for that"
