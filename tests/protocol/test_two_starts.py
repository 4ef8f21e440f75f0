"""Two starts of a job under one launch key: no checkpoint is made of the states of both, and all
ranks of the second load one step.
"""

from __future__ import annotations

import random

import pytest

from ckpt.format.messages.loading import LoadConfirmed
from tests.protocol.coordinating import Bench, RankFake, every, team
from tests.protocol.test_coordinator_rounds import Loader


def again(rank: RankFake) -> RankFake:
    """The rank's process in the next start of the job; the stager of the one before lives on."""
    return RankFake(
        rank.bench, rank.rank, rank.world_size, key=rank.key, process=f"{rank.process}+"
    )


def ended(bench: Bench) -> list[RankFake]:
    """Both trainers have been killed; rank 0's stager still sends its save of step 6."""
    ranks = team(bench, 2)
    ranks[1].leave()
    ranks[0].open(6)
    ranks[0].seal_all()
    ranks[0].leave()
    bench.tick(1)
    return ranks


def finish(ranks: list[RankFake]) -> None:
    every(ranks, lambda rank: rank.seal_all())
    every(ranks, lambda rank: rank.certify())


@pytest.mark.parametrize("first", [0, 1])
def test_a_payload_of_a_start_that_has_ended_is_not_completed_by_the_next_start(first: int) -> None:
    """Rank 0 had saved the step when all were killed, rank 1 had not. A fixed `launch=` gives each
    start the same key.
    """
    bench = Bench()
    ranks = ended(bench)
    order = [ranks[first], ranks[1 - first]]
    fresh = [again(rank) for rank in order]
    every(fresh, lambda rank: rank.open(6))
    assert "two starts of the run" in ranks[0].aborts()[0].message
    finish(fresh)
    assert len({rank.commits()[0].info.checkpoint for rank in fresh}) == 1
    assert ranks[0].commits() == []


def test_a_rank_that_comes_before_its_peers_meets_none_that_have_ended() -> None:
    """As above, and rank 0's next process is not there yet as rank 1 saves."""
    bench = Bench()
    ranks = ended(bench)
    one = again(ranks[1])
    one.open(6)
    zero = again(ranks[0])
    zero.open(6)
    finish([one, zero])
    assert one.commits()[0].info.checkpoint == zero.commits()[0].info.checkpoint
    assert "two starts of the run" in ranks[0].aborts()[0].message


def test_what_an_ended_start_hands_over_late_meets_no_later_start() -> None:
    """Its stager was held up, and speaks once the next start saves."""
    bench = Bench()
    ranks = team(bench, 2)
    every(ranks, lambda rank: rank.leave())
    bench.tick(1)
    fresh = [again(rank) for rank in ranks]
    fresh[1].open(6)
    ranks[0].open(6)
    fresh[0].open(6)
    finish(fresh)
    assert fresh[0].commits()[0].info.checkpoint == fresh[1].commits()[0].info.checkpoint
    assert ranks[0].commits() == []


def test_what_two_starts_ago_had_saved_is_completed_by_none_since() -> None:
    """The start between saved nothing before its hosts died."""
    bench = Bench()
    ranks = ended(bench)
    between = [again(rank) for rank in ranks]
    every(between, lambda rank: bench.close(rank.session))
    bench.tick(1)
    fresh = [again(rank) for rank in between]
    every(fresh[::-1], lambda rank: rank.open(6))
    finish(fresh)
    assert fresh[0].commits()[0].info.checkpoint == fresh[1].commits()[0].info.checkpoint
    assert "two starts of the run" in ranks[0].aborts()[0].message


def test_a_rank_that_never_came_completes_no_save_of_a_peer_that_was_started_again() -> None:
    """It died before its first save. The peer's next process is there: this is another start."""
    bench = Bench()
    zero = RankFake(bench, 0, 2)
    zero.open(6)
    zero.leave()
    bench.tick(1)
    fresh = [again(zero), RankFake(bench, 1, 2)]
    every(fresh[::-1], lambda rank: rank.open(6))
    finish(fresh)
    assert fresh[0].commits()[0].info.checkpoint == fresh[1].commits()[0].info.checkpoint
    assert "two starts of the run" in zero.aborts()[0].message


def test_one_rank_that_was_started_again_beside_its_peers_completes_their_save() -> None:
    """They live: it is one start, and the rank is where they are."""
    bench = Bench()
    ranks = team(bench, 2)
    ranks[1].leave()
    ranks[0].open(6)
    bench.tick(1)
    one = again(ranks[1])
    one.open(6)
    finish([ranks[0], one])
    assert one.commits()


def test_a_trainer_that_ends_once_its_peer_is_there_again_counts_as_beside_it() -> None:
    bench = Bench()
    ranks = team(bench, 2)
    ranks[1].leave()
    ranks[0].open(6)
    bench.tick(1)
    one = again(ranks[1])
    bench.tick(1)
    ranks[0].leave()
    one.open(6)
    finish([ranks[0], one])
    assert one.commits()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("loads", [(1, 0), (0, 1), (2, 1), (1, 1)])
def test_a_start_loads_one_step_however_often_the_one_before_had_loaded(
    loads: tuple[int, int], first: int
) -> None:
    """That one may have been killed between two ranks' loads."""
    bench = Bench()
    ranks = team(bench, 2)
    for step in (1, 2):
        every(ranks, lambda rank: rank.open(step))  # noqa: B023
        finish(ranks)
        every(ranks, lambda rank: rank.leave())
        bench.tick(1)
        ranks = [again(rank) for rank in ranks]
        if step == 1:
            for rank, count in zip(ranks, loads, strict=True):
                assert [loaded_by(rank) for _ in range(count)] == [1] * count
    assert [loaded_by(rank) for rank in (ranks[first], ranks[1 - first])] == [2, 2]


def test_a_rank_that_starts_again_alone_goes_on_with_its_own_loads() -> None:
    """Its peers go on with theirs."""
    bench = Bench()
    ranks = team(bench, 2)
    every(ranks, lambda rank: rank.open(1))
    finish(ranks)
    assert [loaded_by(rank) for rank in ranks] == [1, 1]
    ranks[1].leave()
    bench.tick(1)
    ranks[1] = again(ranks[1])
    every(ranks, lambda rank: rank.open(2))
    finish(ranks)
    assert [loaded_by(rank) for rank in ranks] == [2, 2]


def loaded_by(rank: RankFake) -> int:
    """The newest step, as the rank's process gets it; it is loaded at once."""
    one = Loader(rank)
    assert one.load() == [LoadConfirmed()]
    return int(one.found.step)


@pytest.mark.parametrize("seed", range(6))
def test_starts_of_which_some_end_early_count_their_loads_alike(seed: int) -> None:
    """Ranks come in any order, some before others have, some never, and load as often as they like;
    a start that is whole may save.
    """
    chance = random.Random(seed)
    bench = Bench()
    size = chance.choice([2, 3, 4])
    live = team(bench, size)
    every(live, lambda rank: rank.open(1))
    finish(live)
    for start in range(2, 8):
        every(live, lambda rank: rank.leave())
        bench.tick(1)
        come = chance.sample(range(size), chance.choice([size, chance.randint(0, size)]))
        turns: dict[int, list[int]] = {number: [] for number in come}
        live = []
        for number in come:
            live.append(RankFake(bench, number, size, process=f"{start}/{number}"))
            for rank in chance.choices(live, k=chance.randint(0, 2)):
                turns[rank.rank].append(turn_of(rank))
        taken = [each for each in turns.values() if each]
        for each in taken:
            assert each == list(range(taken[0][0], taken[0][0] + len(each))), f"seed {seed}"
        if len(live) == size:
            every(live, lambda rank: rank.open(start))  # noqa: B023
            finish(live)


def turn_of(rank: RankFake) -> int:
    """Of its next load, which it does."""
    one = Loader(rank)
    one.load()
    return one.question.turn
