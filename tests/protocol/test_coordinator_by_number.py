"""Ranks of a launch that load a step by its number get one generation, however often it is saved
again meanwhile, or an error that names both (decision 0017).
"""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import LoadConfirmed, Resolve, Resolved
from tests.protocol.coordinating import RUN, Bench, RankFake, every
from tests.protocol.numbered import STEP, ByNumber, names_both, readers, together
from tests.protocol.test_coordinator_resolving import lose
from tests.protocol.test_coordinator_rounds import CONFIRMED


def test_a_step_that_is_saved_again_between_two_ranks_loads_is_the_same_for_both() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.begin()
    again = bench.save(STEP)
    other.begin()
    assert one.finish() == []
    assert other.finish() == [CONFIRMED]
    assert one.found == other.found == first
    (alone,) = bench.tell(bench.session(), Resolve(RUN, STEP))
    assert isinstance(alone, Resolved)
    assert alone.info.checkpoint == again, "who belongs to no launch sees the newest"


def test_another_launch_is_not_bound() -> None:
    bench = Bench()
    first = bench.save(STEP)
    assert readers(bench)[0].load() == first
    again = bench.save(STEP)
    judge = ByNumber(RankFake(bench, 0, 2, key="an evaluation job"))
    assert judge.load() == again


def test_when_all_ranks_ask_again_at_once_they_get_what_was_saved_since() -> None:
    bench = Bench()
    first = bench.save(STEP)
    ranks = readers(bench)
    assert [rank.load() for rank in ranks] == [first, first]
    again = bench.save(STEP)
    one, other = [rank.again() for rank in ranks]
    assert one.resolve() == [], "the other may be about to ask"
    assert together([other, one]) == [again, again]
    third = bench.save(STEP)
    assert together([one.again(), other.again()]) == [third, third]


def test_one_that_asks_again_alone_waits_only_so_long_and_gets_what_the_others_have() -> None:
    bench = Bench()
    first = bench.save(STEP)
    bench.tell(bench.session(), Resolve(RUN, STEP))  # A pin: else the next commit is its end.
    one, other = readers(bench)
    one.load()
    other.load()
    bench.save(STEP)
    alone = one.again()
    assert alone.resolve() == []
    bench.tick(11)
    alone.hear()
    assert alone.finish() == [CONFIRMED]
    late = other.again()
    assert [alone.found, late.load()] == [first, first]


def test_one_that_asks_again_alone_for_what_is_gone_is_told_both() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    other.load()
    every([one, other], lambda load: bench.close(load.session))
    again = bench.save(STEP)
    alone = one.again()
    assert alone.resolve() == []
    bench.tick(11)
    (failed,) = bench.to(alone.session)
    assert isinstance(failed, Failed)
    assert names_both(failed, first, again), failed.message
    assert "load it on all ranks at once" in failed.hint


def test_a_rank_that_loads_alone_is_not_ahead_of_the_others_and_waits_for_none() -> None:
    bench = Bench()
    first = bench.save(STEP)
    alone, other = readers(bench)
    assert [alone.load(), alone.again().load()] == [first, first]
    bench.save(STEP)
    assert alone.again().again().load() == first, "its peers may still come for it"
    assert other.load() == first
    assert other.again().load() == first, "the other has had more of them"


def test_a_rank_that_peeked_does_not_get_another_than_peers_that_were_quicker() -> None:
    bench = Bench()
    first = bench.save(STEP)
    peeking, quick = readers(bench)
    bench.tell(bench.session(), Resolve(RUN, STEP))
    peeking.load()
    assert quick.load() == first, "of the load that all do"
    bench.save(STEP)
    late = peeking.again()
    assert late.resolve() == []
    bench.tick(11)
    late.hear()
    assert late.found == first


def test_a_rank_that_is_a_load_ahead_does_not_take_the_others_along() -> None:
    bench = Bench()
    first = bench.save(STEP)
    ahead, behind = readers(bench)
    ahead.load()
    bench.save(STEP)
    next_load = ahead.again()
    next_load.resolve()
    behind.begin()
    next_load.hear()
    assert [next_load.found, behind.found] == [first, first]


def test_a_rank_that_was_not_confirmed_gets_the_same_again() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    other.begin()
    bench.save(STEP)
    other.reconnect()
    assert other.load() == first


def test_who_reads_on_gets_what_it_was_confirmed_or_an_error_that_names_both() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    other.load()
    again = bench.save(STEP)
    together([one.again(), other.again()])
    one.question = replace(one.question, only=first.generation)
    one.begin()
    assert one.found == first
    every([one, other], lambda load: bench.close(load.session))
    one.reconnect()
    failed = one.failed()
    assert names_both(failed, first, again), failed.message


def test_a_confirmation_that_is_asked_for_twice_is_given_twice_also_behind_a_restart() -> None:
    for restarted in (False, True):
        bench = Bench()
        bench.save(STEP)
        one, other = readers(bench)
        one.load()
        other.load()
        if restarted:
            bench.restart(*bench.targets)
            every([one.rank, other.rank], lambda rank: rank.reconnect())
            other.reconnect()
        bench.save(STEP)
        assert one.again().resolve() == []
        assert other.finish() == [CONFIRMED]


# --------------------------------------------------------------------------- restarts


def test_what_is_settled_binds_behind_a_restart() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    bench.restart(*bench.targets)
    every([one.rank, other.rank], lambda rank: rank.reconnect())
    bench.save(STEP)
    other.reconnect()
    assert other.load() == first


def test_loads_that_a_restart_interrupts_still_end_with_one_generation() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.begin()
    other.begin()
    bench.restart(*bench.targets)
    bench.tell(bench.session(), Resolve(RUN, STEP))  # A pin: else the next commit ends it.
    again = bench.save(STEP)
    for rank in (one, other):
        rank.rank.reconnect()
        rank.reconnect()
    other.begin()
    assert other.found == again
    (overruled,) = one.finish()
    assert isinstance(overruled, LoadConfirmed)
    assert str(again) in overruled.superseded
    # The other way round: who has loaded already names the generation.
    bench.restart(*bench.targets)
    every([one.rank, other.rank], lambda rank: rank.reconnect())
    one.reconnect()
    other.reconnect()
    assert one.found == first
    assert one.finish() == [CONFIRMED]
    other.begin()
    assert other.found == first


def test_a_launch_that_moved_on_and_had_not_settled_it_goes_on_with_one_behind_a_restart() -> None:
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    other.load()
    again = bench.save(STEP)
    loads = [one.again(), other.again()]
    for load in loads:
        load.resolve()
    for load in loads:
        load.hear()
        assert load.found == again
    bench.restart(*bench.targets)
    for load in loads:
        load.rank.reconnect()
        load.reconnect()
    (overruled,) = loads[0].finish()
    assert isinstance(overruled, LoadConfirmed)
    assert str(first) in overruled.superseded
    assert together(loads) == [again, again]


def test_ranks_that_ask_again_at_once_move_on_behind_a_restart_too() -> None:
    bench = Bench()
    bench.save(STEP)
    ranks = readers(bench)
    for rank in ranks:
        rank.load()
    bench.restart(*bench.targets)
    again = bench.save(STEP)
    every([rank.rank for rank in ranks], lambda rank: rank.reconnect())
    assert together([rank.again() for rank in ranks]) == [again, again]


def test_a_load_between_two_restarts_is_not_taken_for_another() -> None:
    """What ranks have had is theirs to say: a coordinator that forgot it mixed two loads."""
    bench = Bench()
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    bench.restart(*bench.targets)
    every([one.rank, other.rank], lambda rank: rank.reconnect())
    other.reconnect()
    bench.save(STEP)
    assert other.load() == first
    second = one.again()
    assert second.resolve() == [], "the other may be about to ask for its second"
    bench.tick(11)
    second.hear()
    assert second.finish() == [CONFIRMED]
    late = other.again()
    assert [second.found, late.load()] == [first, first]


# --------------------------------------------------------------------------- what is gone


def test_a_step_that_is_deleted_between_two_loads_is_an_error_that_names_both() -> None:
    for restarted in (False, True):
        bench = Bench()
        first = bench.save(STEP)
        one, other = readers(bench)
        one.load()
        bench.tell(bench.session(), DeleteStep(RUN, STEP))
        again = bench.save(STEP)
        if restarted:
            bench.restart(*bench.targets)
            every([one.rank, other.rank], lambda rank: rank.reconnect())
            other.reconnect()
        failed = other.failed()
        assert failed.code == "lost"
        assert names_both(failed, first, again), failed.message
        assert restarted or "ranks 0 of this launch" in failed.message


def test_a_step_that_is_deleted_and_not_saved_again_is_not_found() -> None:
    bench = Bench()
    bench.save(STEP)
    one, other = readers(bench)
    one.load()
    bench.tell(bench.session(), DeleteStep(RUN, STEP))
    assert [other.failed().code, one.again().failed().code] == ["not_found", "not_found"]


def test_retention_leaves_a_generation_to_the_ranks_that_are_still_to_come() -> None:
    bench = Bench(keep=1)
    first = bench.save(STEP)
    one, other = readers(bench)
    one.load()
    bench.close(one.session)
    bench.save(STEP)
    assert bench.states()[str(first)] == "committed"
    assert other.load() == first
    bench.close(other.session)
    assert bench.states()[str(first)] == "deleted"


def test_damage_in_time_makes_all_walk_back_to_the_older_generation() -> None:
    bench = Bench()
    first = bench.save(STEP)
    holder = bench.session()
    bench.tell(holder, Resolve(RUN, STEP))  # A pin: else the newer commit ends it.
    again = bench.save(STEP)
    one, other = readers(bench)
    one.begin()
    other.begin()
    assert one.finish() == []
    lose(bench, again)
    (overruled,) = [a for a in bench.to(one.session) if isinstance(a, LoadConfirmed)]
    assert str(again) in overruled.superseded
    one.begin()
    other.begin()
    assert one.found == other.found == first


def test_damage_behind_a_load_is_an_error_that_names_both() -> None:
    bench = Bench()
    first = bench.save(STEP)
    bench.tell(bench.session(), Resolve(RUN, STEP))
    again = bench.save(STEP)
    one, other = readers(bench)
    assert one.load() == again
    lose(bench, again)
    failed = other.failed()
    assert failed.code == "lost"
    assert names_both(failed, first, again), failed.message
