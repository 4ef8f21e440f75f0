"""A step that is saved again while the ranks of a launch load it by its number: one generation for
all of them, or an error that names both (decision 0017).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.waiting import wait_until

RANKS = 2


@pytest.fixture(scope="module")
def trainers(cluster: Cluster) -> Iterator[list[RankProcess]]:
    """They save steps again and again."""
    with launched(cluster.url, RANKS, launch="trainers") as team:
        yield team


@pytest.fixture(scope="module")
def readers(cluster: Cluster) -> Iterator[list[RankProcess]]:
    """An evaluation job."""
    with launched(cluster.url, RANKS, launch="readers") as team:
        yield team


def save(team: list[RankProcess], run: str, version: int, step: int = 5) -> str:
    """The generation."""
    generations = {
        str(one["generation"]) for one in save_and_wait(team, run, step, version=version)
    }
    (generation,) = generations
    return generation


def load(rank: RankProcess, run: str, version: int, step: int | None = 5) -> str:
    """The generation; bit by bit what was saved as this version."""
    found = rank.do("load", run=run, step=step, version=version)
    assert isinstance(found, dict)
    assert found["equal"], found
    return str(found["generation"])


def load_together(team: list[RankProcess], run: str, version: int) -> str:
    """The generation that all have."""
    found = done(every(team, "load", run=run, step=5, version=version))
    (generation,) = {str(one["generation"]) for one in found}
    assert {one["equal"] for one in found} == {True}
    return generation


def test_a_step_that_is_saved_again_between_two_loads_is_one_for_both(
    trainers: list[RankProcess], readers: list[RankProcess]
) -> None:
    first = save(trainers, "again", 1)
    found = load(readers[0], "again", 1)
    newer = save(trainers, "again", 2)
    assert [found, load(readers[1], "again", 1)] == [first, first]
    assert load_together(readers, "again", 2) == newer
    newest = save(trainers, "again", 3)
    assert load_together(readers, "again", 3) == newest


def test_a_rank_that_loads_alone_waits_for_nobody_and_is_not_ahead(
    trainers: list[RankProcess], readers: list[RankProcess]
) -> None:
    first = save(trainers, "alone", 1)
    assert {load(readers[0], "alone", 1) for _ in range(3)} == {first}
    save(trainers, "alone", 2)
    assert load(readers[0], "alone", 1) == first
    assert load(readers[1], "alone", 1) == first


def test_what_a_launch_saves_it_loads(trainers: list[RankProcess]) -> None:
    for version in (1, 2, 3):
        load_from = save(trainers, "own", version)
        assert load(trainers[0], "own", version) == load_from
        found = done(every(trainers, "load", run="own", step=5, version=version))
        assert {str(one["generation"]) for one in found} == {load_from}


def test_the_coordinators_restart_between_two_loads_changes_nothing(
    cluster: Cluster, trainers: list[RankProcess], readers: list[RankProcess]
) -> None:
    first = save(trainers, "restart", 1)
    load(readers[0], "restart", 1)
    old = cluster.coordinator_pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: cluster.ready()["coordinator_pid"] not in (old, None), "another coordinator")
    newer = save(trainers, "restart", 2)
    assert load(readers[1], "restart", 1) == first
    assert load_together(readers, "restart", 2) == newer


def test_one_that_is_deleted_between_two_loads_is_an_error_that_names_both(
    cluster: Cluster, trainers: list[RankProcess], readers: list[RankProcess]
) -> None:
    first = save(trainers, "deleted", 1)
    load(readers[0], "deleted", 1)
    with ckpt.open(cluster.url) as store:
        store.delete("deleted", 5)
    newer = save(trainers, "deleted", 2)
    answer = readers[1].ask("load", run="deleted", step=5, version=2)
    assert answer.error == "lost"
    assert f"deleted@5#{first}" in answer.text
    assert f"deleted@5#{newer}" in answer.text


def test_the_newest_and_its_number_are_one(
    trainers: list[RankProcess], readers: list[RankProcess]
) -> None:
    first = save(trainers, "newest", 1)
    assert load(readers[0], "newest", 1, None) == first
    save(trainers, "newest", 2)
    assert load(readers[1], "newest", 1) == first


def test_ranks_that_load_while_the_step_is_saved_again_and_again_never_mix(
    trainers: list[RankProcess], readers: list[RankProcess]
) -> None:
    versions = {save(trainers, "race", 1): 1}
    for version in range(2, 8):
        done(every(trainers, "save", run="race", step=5, version=version))
        for rank in readers:
            rank.tell("load", run="race", step=5, version=version)
        found = [rank.heard() for rank in readers]
        commits = done(every(trainers, "wait", run="race", step=5))
        versions[str(commits[0]["generation"])] = version
        generations = {str(one["generation"]) for one in found}
        assert len(generations) == 1, f"one launch holds {generations}"
        (generation,) = generations
        # `equal` compares with this version's bits.
        assert {one["equal"] for one in found} == {versions[generation] == version}
