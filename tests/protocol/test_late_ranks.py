"""A rank that comes when its peers are past its step does not wait for them for ever."""

from __future__ import annotations

from tests.protocol.coordinating import Bench, RankFake, every, team


def started_again(rank: RankFake) -> RankFake:
    """The same rank of the same launch, in another process."""
    bench = rank.bench
    bench.close(rank.session)
    again = RankFake(bench, rank.rank, rank.world_size, process=f"{rank.process}+")
    again.join()
    return again


def test_a_rank_that_joins_after_an_abort_is_told_when_its_idle_peers_do_not_save_again() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    stays.open(1)
    bench.close(dies.session)
    bench.tick(16)
    assert "rank 1" in stays.aborts()[0].message
    again = started_again(dies)
    again.open(1)
    bench.tick(59)
    assert again.aborts() == [], "its peer may save the step again"
    bench.tick(2)
    assert "rank 1 joined when ranks 0 had saved this step or a later one" in (
        again.aborts()[0].message
    )


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
        every([stays, dies], lambda rank, step=step: rank.open(step))  # type: ignore[misc]
        every([stays, dies], lambda rank: rank.seal_all())
        every([stays, dies], lambda rank: rank.certify())
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
        every([fast, slow], lambda rank, step=step: rank.open(step))  # type: ignore[misc]
        every([fast, slow], lambda rank: rank.seal_all())
        every([fast, slow], lambda rank: rank.certify())
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
