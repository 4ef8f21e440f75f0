"""A rank that comes when its peers are past its step does not wait for them for ever."""

from __future__ import annotations

import pytest

from ckpt.base.ids import LaunchNumber, Rank, Step
from ckpt.format.messages.launches import Departure
from ckpt.format.messages.saving import PayloadGivenUp
from ckpt.protocol.coordinator.cluster.launch import Launch, Saved
from tests.protocol.coordinating import Bench, RankFake, every, team


def restart(bench: Bench, *ranks: RankFake) -> None:
    """The coordinator starts again, and these stagers come back to it."""
    bench.restart(*bench.targets)
    for rank in ranks:
        rank.reconnect()


def commit(ranks: list[RankFake], step: int) -> None:
    every(ranks, lambda rank: rank.open(step))
    every(ranks, lambda rank: rank.seal_all())
    every(ranks, lambda rank: rank.certify())


def started_again(rank: RankFake) -> RankFake:
    """The same rank of the same launch, in another process."""
    bench = rank.bench
    bench.close(rank.session)
    again = RankFake(bench, rank.rank, rank.world_size, process=f"{rank.process}+")
    again.join()
    return again


def is_told_after_a_minute(late: RankFake) -> None:
    late.bench.tick(59)
    assert late.aborts() == [], "its peer may save the step again"
    late.bench.tick(2)
    assert "rank 1 joined when ranks 0 had saved this step or a later one" in (
        late.aborts()[0].message
    )


def test_a_rank_that_joins_after_an_abort_is_told_when_its_idle_peers_do_not_save_again() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    stays.open(1)
    bench.close(dies.session)
    bench.tick(16)
    assert "rank 1" in stays.aborts()[0].message
    again = started_again(dies)
    again.open(1)
    is_told_after_a_minute(again)


def test_peers_that_save_the_step_again_meet_it() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    stays.open(1)
    bench.close(dies.session)
    bench.tick(16)
    again = started_again(dies)
    again.open(1)
    bench.tick(30)
    stays.open(1)
    bench.tick(60)
    every([stays, again], lambda rank: rank.seal_all())
    every([stays, again], lambda rank: rank.certify())
    assert again.commits()
    assert stays.commits()


def test_a_rank_whose_peers_have_committed_a_later_step_is_told_likewise() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    for step in (1, 2):
        commit([stays, dies], step)
    bench.tick(1)
    again = started_again(dies)
    again.open(1)
    bench.tick(61)
    assert "rank 1 joined when ranks 0 had saved" in again.aborts()[0].message


def test_ranks_that_rewind_together_wait_for_the_slowest_without_a_bound() -> None:
    """Training went back to an older step in the same processes: nobody joined meanwhile."""
    bench = Bench()
    fast, slow = team(bench, 2)
    for step in (1, 2):
        commit([fast, slow], step)
    fast.open(1)
    bench.tick(600)
    assert fast.aborts() == []


def test_a_peer_that_was_started_again_too_is_waited_for() -> None:
    """It will come to the step as it did before."""
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    bench.close(second.session)
    bench.tick(16)
    first, second = started_again(first), started_again(second)
    second.open(1)
    bench.tick(600)
    assert second.aborts() == []


@pytest.mark.parametrize("when", ["before it joins", "before it saves", "while it waits"])
def test_a_restart_of_the_coordinator_leaves_the_answer_as_it_is(when: str) -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    stays.open(1)
    bench.close(dies.session)
    bench.tick(16)
    assert "rank 1" in stays.aborts()[0].message
    if when == "before it joins":
        restart(bench, stays)
    again = started_again(dies)
    if when == "before it saves":
        restart(bench, again, stays)
    again.open(1)
    if when == "while it waits":
        checkpoint = again.payload.checkpoint
        restart(bench, stays, again)
        again.resume(1, checkpoint)
    is_told_after_a_minute(again)


def test_behind_a_restart_too_a_rank_that_was_there_all_along_is_waited_for_and_waits() -> None:
    """Nobody is late: both were there when the first of them saved what was aborted."""
    bench = Bench()
    fast, slow = team(bench, 2)
    fast.open(1)
    bench.tell(fast.session, PayloadGivenUp(fast.payload, "failed", "no place is left"))
    assert fast.aborts()
    bench.tick(5)
    restart(bench, slow, fast)
    slow.open(1)
    bench.tick(600)
    assert slow.aborts() == []


def test_ranks_that_rewind_behind_a_restart_wait_for_the_slowest_without_a_bound() -> None:
    bench = Bench()
    fast, slow = team(bench, 2)
    commit([fast, slow], 1)
    commit([fast, slow], 2)
    restart(bench, fast, slow)
    fast.open(1)
    bench.tick(900)
    assert fast.aborts() == []


def test_a_peer_that_nobody_spoke_for_when_the_coordinator_came_back_is_given_up_in_time() -> None:
    """Its store was closed and its idle stager gone: it trains, or it is gone."""
    bench = Bench()
    stays, away = team(bench, 2)
    commit([stays, away], 1)
    away.leave(Departure.UNWATCHED)
    bench.close(away.session)
    restart(bench, stays)
    stays.open(2)
    bench.tick(599)
    assert stays.aborts() == []
    bench.tick(2)
    assert "rank 1 has no store open" in stays.aborts()[0].message


def test_the_save_that_came_last_counts_whichever_stager_tells_of_it_first() -> None:
    launch, rank = Launch(LaunchNumber(1), "k", 2), Rank(0)
    older, newer = Saved("p", Step(5), 50), Saved("p", Step(9), 90)
    for told in (older, newer, older, Saved("p", Step(9), 95)):
        launch.told_saved(rank, told)
    assert launch.saved[rank] == newer, "told again it is no later"
    launch.handed_over(rank, Saved("p", Step(5), 200), again=True)
    assert launch.saved[rank] == newer, "what is told again has its time from the join"
    rewound = Saved("p", Step(5), 300)
    launch.handed_over(rank, rewound, again=False)
    assert launch.saved[rank] == rewound
    other = Saved("q", Step(1), 10)
    launch.told_saved(rank, other)
    assert launch.saved[rank] == other, "another process holds the rank"
