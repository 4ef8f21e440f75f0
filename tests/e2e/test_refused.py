"""A rank refuses a step that its peers have staged, or will: all hear it, and the retry commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.landing import in_turn

RANKS = 4
REFUSING = 2


@pytest.fixture(params=in_turn([True, False], every=2), ids=["first", "later"])
def team(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[list[RankProcess]]:
    """Four rank processes, without a stager yet, or with one that has saved."""
    first = request.param
    with launched(cluster.url, RANKS, launch=request.node.name) as ranks:
        if not first:
            save_and_wait(ranks, request.node.name, 1)
        yield ranks


def peers_of(team: Sequence[RankProcess]) -> list[RankProcess]:
    return [rank for rank in team if rank.rank != REFUSING]


def refuse(team: Sequence[RankProcess], run: str, step: int, *, nan: bool = False) -> str:
    answer = team[REFUSING].ask("save_refused", run=run, step=step, nan=nan)
    assert answer.error == "refused"
    return answer.text


def check_retry(team: Sequence[RankProcess], run: str, step: int, text: str) -> None:
    """All peers hear the refusal; a retry of all commits, of the retry's bytes alone."""
    for answer in every(peers_of(team), "wait", run=run, step=step):
        assert answer.error == "aborted"
        assert f"rank {REFUSING} refused step {step}: " in answer.text
        assert text in answer.text
    save_and_wait(team, run, step, version=2)
    for answer in done(every(team, "load", run=run, step=step, version=2)):
        assert answer["equal"] is True


def test_a_value_that_cannot_be_stored_is_heard_by_ranks_that_had_staged(
    team: list[RankProcess], request: pytest.FixtureRequest
) -> None:
    run = request.node.name
    done(every(peers_of(team), "save", run=run, step=7, version=1))
    assert "bad" in refuse(team, run, 7)
    check_retry(team, run, 7, "bad")


def test_a_nan_is_heard_by_ranks_that_stage_behind_it(
    team: list[RankProcess], request: pytest.FixtureRequest
) -> None:
    run = request.node.name
    assert "nan" in refuse(team, run, 7, nan=True)
    done(every(peers_of(team), "save", run=run, step=7, version=1))
    check_retry(team, run, 7, "bad: element [1] of (2,) is nan")


def test_every_try_that_a_rank_refuses_ends_that_try_of_all(
    team: list[RankProcess], request: pytest.FixtureRequest
) -> None:
    run = request.node.name
    for _ in range(3):
        done(every(peers_of(team), "save", run=run, step=7, version=1))
        refuse(team, run, 7)
        for answer in every(peers_of(team), "wait", run=run, step=7):
            assert answer.error == "aborted"
    save_and_wait(team, run, 7)


def test_a_save_that_only_tells_of_an_earlier_one_is_made_when_it_is_called_again(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    run = request.node.name
    with launched(cluster.url, 2, launch=run) as (ahead, behind):
        save_and_wait((ahead, behind), run, 1)
        done([behind.ask("save", run=run, step=2, version=1)])
        done([ahead.ask("save", run=run, step=3, version=1)])  # Step 2 can never be whole now.
        assert behind.do("hear", run=run, step=2)
        answer = behind.ask("save", run=run, step=3, version=1)
        assert f"rank {ahead.rank} went on to step 3" in answer.text
        done([behind.ask("save", run=run, step=3, version=1)])
        done(every((ahead, behind), "wait", run=run, step=3))
