"""A rank whose host died says nothing more: its peers are told its name and do not wait on."""

from __future__ import annotations

from ckpt.base.ids import Rank
from ckpt.format import messages as m
from tests.protocol.coordinating import Bench, RankFake, every, team


def aborted(rank: RankFake) -> m.AttemptAborted:
    (told,) = rank.aborts()
    return told


def test_a_stager_that_goes_silently_before_it_hands_over_ends_the_attempt_and_is_named() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    stays.open(1)
    bench.close(dies.session)
    bench.tick(14)
    assert stays.aborts() == []
    bench.tick(2)
    told = aborted(stays)
    assert (told.code, "rank 1" in told.message) == ("aborted", True)


def test_it_ends_the_attempt_also_when_it_died_before_its_peers_saved() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    bench.close(dies.session)
    bench.tick(60)
    stays.open(1)
    bench.tick(1)
    assert "rank 1" in aborted(stays).message


def test_a_stager_that_comes_back_in_time_ends_nothing() -> None:
    bench = Bench()
    stays, blinks = team(bench, 2)
    stays.open(1)
    bench.close(blinks.session)
    bench.tick(14)
    blinks.reconnect()
    bench.tick(60)
    blinks.open(1)
    every([stays, blinks], lambda rank: rank.seal_all())
    every([stays, blinks], lambda rank: rank.certify())
    assert stays.commits()


def test_a_trainer_that_is_still_connected_or_never_had_a_stager_is_waited_for() -> None:
    bench = Bench()
    stays, killed = team(bench, 2)
    stays.open(1)
    trainer = bench.session()
    join = m.JoinLaunch(killed.run, "k", killed.rank, 2, killed.process, killed.launch)
    bench.tell(trainer, join)
    bench.close(killed.session)  # Its stager was killed; the trainer starts another.
    bench.tick(60)
    assert stays.aborts() == []

    bench = Bench()
    stays = RankFake(bench, 0, 2)
    trainer = bench.session()
    bench.tell(trainer, m.JoinLaunch(stays.run, "k", Rank(1), 2, "host/1/k"))
    bench.close(trainer)  # It has loaded, closed its store, and saves later.
    stays.open(1)
    bench.tick(60)
    assert stays.aborts() == []


def test_a_rank_that_does_not_come_back_after_a_restart_is_named() -> None:
    for comes in (False, True):
        bench = Bench()
        stays, other = team(bench, 2)
        stays.open(1)
        assert stays.plan is not None
        checkpoint = stays.plan.payload.checkpoint
        bench.restart(*bench.targets)
        stays.reconnect()
        stays.resume(1, checkpoint)
        if comes:
            other.reconnect()
        bench.tick(61)
        if comes:
            assert stays.aborts() == []
        else:
            assert "rank 1 did not come back" in aborted(stays).message


def test_a_refusal_for_space_says_when_to_come_again() -> None:
    bench = Bench()
    for target in bench.targets.values():
        target.refuses[m.Reserve] = m.Failed("no_space", "full")
    rank = RankFake(bench)
    (told,) = rank.open(1)
    assert isinstance(told, m.AttemptAborted)
    assert (told.code, told.retry_after_us) == ("no_space", 5_000_000)
