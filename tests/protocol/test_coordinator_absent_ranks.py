"""A rank whose host died says nothing more: its peers are told its name and do not wait on.
One that closed its store may be training: its peers wait.
"""

from __future__ import annotations

import pytest

from ckpt.base.ids import Rank
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import Departure, JoinLaunch
from ckpt.format.messages.saving import AttemptAborted
from ckpt.format.messages.targets import Reserve
from tests.calls import counted
from tests.protocol.coordinating import Bench, RankFake, every, team


def aborted(rank: RankFake) -> AttemptAborted:
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
    bench.tick(14)
    assert stays.aborts() == []
    bench.tick(2)
    assert "rank 1" in aborted(stays).message


def test_a_trainer_whose_stager_was_killed_meets_its_peers_in_the_next_save() -> None:
    """It starts another only then: the peers' saves are there before it."""
    bench = Bench()
    stays, killed = team(bench, 2)
    stays.open(1)
    bench.close(killed.session)
    bench.tick(16)
    assert "rank 1" in aborted(stays).message
    stays.open(2)
    bench.tick(5)
    killed.reconnect()
    killed.open(2)
    every([stays, killed], lambda rank: rank.seal_all())
    every([stays, killed], lambda rank: rank.certify())
    assert [told.info.checkpoint.step for told in stays.commits()] == [2]


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
    join = JoinLaunch(killed.run, "k", killed.rank, 2, killed.process, killed.launch)
    bench.tell(trainer, join)
    bench.close(killed.session)  # Its stager was killed; the trainer starts another.
    bench.tick(60)
    assert stays.aborts() == []

    bench = Bench()
    stays = RankFake(bench, 0, 2)
    trainer = bench.session()
    bench.tell(trainer, JoinLaunch(stays.run, "k", Rank(1), 2, "host/1/k"))
    bench.close(trainer)  # It has loaded, closed its store, and saves later.
    stays.open(1)
    bench.tick(60)
    assert stays.aborts() == []


def test_a_rank_that_only_loaded_and_left_is_waited_for_within_a_bound() -> None:
    """Nobody ever watched its process: it may be training towards its first save."""
    bench = Bench()
    stays = RankFake(bench, 0, 2)
    trainer = bench.session()
    bench.tell(trainer, JoinLaunch(stays.run, "k", Rank(1), 2, "host/1/k"))
    bench.close(trainer)
    stays.open(1)
    bench.tick(599)
    assert stays.aborts() == []
    bench.tick(2)
    assert "rank 1 has no store open" in aborted(stays).message


def test_a_rank_that_never_came_is_waited_for_an_hour_once_all_trainers_have_ended() -> None:
    """A job that was started with too few ranks; or ranks that are started one after the other."""
    bench = Bench()
    ended, lives = RankFake(bench, 0, 3), RankFake(bench, 1, 3)
    for one in (ended, lives):
        one.open(1)
        one.seal_all()
        one.certify()
    ended.leave()
    bench.tick(7200)
    assert lives.aborts() == [], "a trainer waits for the save"
    lives.leave()
    bench.tick(3599)
    assert ended.aborts() == []
    bench.tick(2)
    assert "rank 2 never came" in aborted(ended).message
    assert "rank 2 never came" in aborted(lives).message


def test_a_rank_that_comes_within_that_hour_is_waited_for() -> None:
    bench = Bench()
    ended = RankFake(bench, 0, 2)
    ended.open(1)
    ended.seal_all()
    ended.certify()
    ended.leave()
    bench.tick(3500)
    late = RankFake(bench, 1, 2)
    bench.tick(3600)
    assert ended.aborts() == []
    late.open(1)
    late.seal_all()
    late.certify()
    assert [word.info.checkpoint.step for word in ended.commits()] == [1]


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
        target.refuses[Reserve] = Failed("no_space", "full")
    rank = RankFake(bench)
    (told,) = rank.open(1)
    assert isinstance(told, AttemptAborted)
    assert (told.code, told.retry_after_us) == ("no_space", 5_000_000)


# --------------------------------------------------------------------------- closed stores


def go_idle(bench: Bench, rank: RankFake) -> None:
    """Its stager goes, and says so."""
    rank.leave(Departure.UNWATCHED)
    bench.close(rank.session)


def test_a_rank_that_opens_its_store_for_each_save_is_waited_for_however_long_it_trains() -> None:
    bench = Bench()
    fast, slow = team(bench, 2)
    for step in range(1, 4):
        fast.open(step)
        slow.leave(Departure.CLOSED)  # Of the step before: the fast rank is one ahead.
        bench.tick(60)
        go_idle(bench, slow)
        bench.tick(500)
        assert fast.aborts() == []
        slow.reconnect()
        slow.open(step)
        every([fast, slow], lambda rank: rank.seal_all())
        every([fast, slow], lambda rank: rank.certify())
        assert len(fast.commits()) == step


def test_a_process_that_ends_behind_its_closed_store_ends_the_wait_of_its_peers() -> None:
    bench = Bench()
    stays, ends = team(bench, 2)
    stays.open(1)
    ends.leave(Departure.CLOSED)
    bench.tick(60)
    assert stays.aborts() == []
    ends.leave()
    assert "the trainer of rank 1 ended" in aborted(stays).message


def test_a_host_that_dies_while_its_store_is_closed_is_noticed_as_before() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    stays.open(1)
    dies.leave(Departure.CLOSED)
    bench.tick(60)
    bench.close(dies.session)
    bench.tick(16)
    assert "without a word" in aborted(stays).message


def test_a_rank_without_a_store_that_nobody_watches_is_waited_for_within_a_bound() -> None:
    bench = Bench()
    stays, other = team(bench, 2)
    other.leave(Departure.CLOSED)
    go_idle(bench, other)
    bench.tick(3600)  # It trains; nobody waits for it yet.
    stays.open(1)
    bench.tick(599)
    assert stays.aborts() == []
    bench.tick(2)
    assert "rank 1 has no store open" in aborted(stays).message


def test_a_store_that_is_open_stands_above_one_of_its_process_that_was_closed() -> None:
    bench = Bench()
    stays, both = team(bench, 2)
    stays.open(1)
    second = RankFake(bench, 1, 2, process=both.process)
    both.leave(Departure.CLOSED)
    go_idle(bench, both)
    bench.tick(700)
    assert stays.aborts() == []
    bench.close(second.session)
    bench.tick(16)
    assert "without a word" in aborted(stays).message


def test_a_closed_store_makes_room_for_another_process_of_its_rank() -> None:
    bench = Bench()
    _, closes = team(bench, 2)
    failed = RankFake(bench, 1, 2, process="another").heard
    assert [type(one) for one in failed] == [Failed]
    closes.leave(Departure.CLOSED)
    assert RankFake(bench, 1, 2, process="another").launch == closes.launch
    closes.leave()
    assert RankFake(bench, 1, 2, process="a third").launch == 0, "the second one is there"


def test_a_rank_whose_store_is_closed_came_back_to_a_restarted_coordinator_with_its_stager() -> (
    None
):
    bench = Bench()
    stays, other = team(bench, 2)
    stays.open(1)
    assert stays.plan is not None
    checkpoint = stays.plan.payload.checkpoint
    bench.restart(*bench.targets)
    stays.reconnect()
    stays.resume(1, checkpoint)
    other.reconnect()
    other.leave(Departure.CLOSED)
    bench.tick(61)
    assert stays.aborts() == []


# --------------------------------------------------------------------------- several ranks in one


def test_a_process_of_several_ranks_that_ends_between_them_ends_the_attempt() -> None:
    bench = Bench()
    first = RankFake(bench, 0, 2, process="both")
    trainer = bench.session()
    bench.tell(trainer, JoinLaunch(first.run, "k", Rank(1), 2, "both"))
    first.open(1)
    bench.close(trainer)
    first.leave()
    bench.tick(14)
    assert first.aborts() == [], "its other payload may be on its way"
    bench.tick(2)
    assert "the trainer of rank 1 ended" in aborted(first).message


def test_a_process_of_several_ranks_that_handed_all_over_and_ended_is_committed() -> None:
    bench = Bench()
    first = RankFake(bench, 0, 2, process="both")
    bench.tell(bench.session(), JoinLaunch(first.run, "k", Rank(1), 2, "both"))
    first.open(1)
    first.leave()
    second = RankFake(bench, 1, 2, process="both")  # Its stager comes to speak only now.
    bench.tick(60)
    second.open(1)
    second.leave()
    every([first, second], lambda rank: rank.seal_all())
    every([first, second], lambda rank: rank.certify())
    assert first.commits()


@pytest.mark.parametrize("restarts", [False, True])
def test_ranks_that_nobody_has_heard_of_cost_no_tick_anything(restarts: bool) -> None:
    """A launch says itself how many it has: one of a million took 0.6 s of each tick."""

    def calls(world_size: int) -> int:
        bench = Bench()
        rank = RankFake(bench, 0, world_size)
        rank.open(1)
        if restarts:
            bench.restart(*bench.targets)
            rank.reconnect()
            rank.resume(1, rank.payload.checkpoint)
        return counted(bench.tick)[1]

    assert calls(5000) < 2 * calls(2)
