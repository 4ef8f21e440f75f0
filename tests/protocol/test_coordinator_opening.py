"""From a staged payload to its plan: durable before told, alike when asked again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import PayloadId, Rank
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import TrainerLeft
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    PayloadGivenUp,
    PayloadPlanned,
)
from ckpt.format.messages.targets import DropGeneration
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.events import Received, Send
from tests.protocol.coordinating import SECOND_US, Bench, RankFake, every, team


def test_the_generation_is_durable_before_the_plan_leaves() -> None:
    bench = Bench()
    rank = RankFake(bench)
    bench.persist_at_once = False
    mark = bench.mark()
    assert rank.open(1) == []
    (ticket,) = bench.tickets
    (opened, _) = ticket.entries
    assert isinstance(opened, catalog.AttemptOpened)
    bench.sync()
    rank.take_plan()
    assert bench.story(mark, catalog.AttemptOpened, PayloadPlanned) == [opened, rank.plan]
    assert rank.payload == PayloadId(opened.checkpoint, Rank(0))


def test_a_plan_names_a_reserved_place_for_each_column_and_a_spare() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    assert (rank.plan.code, rank.plan.absent) == ("2+1", ())
    places = [*rank.plan.places, *rank.plan.spares]
    assert sorted(place.target for place in places) == ["t0", "t1", "t2", "t3"]
    for place in places:
        assert bench.targets[place.target].reservations == {place.reservation}
        assert place.boot == bench.targets[place.target].boot


def test_the_same_save_asked_again_gets_the_same_plan_and_changes_nothing() -> None:
    bench = Bench()
    rank = RankFake(bench)
    (plan,) = rank.open(1)
    rank.reconnect()
    mark = bench.mark()
    assert rank.ask(rank.question(1)) == [plan]
    (action,) = bench.log[mark:]
    assert isinstance(action, Send)


def test_the_nth_save_of_a_step_by_one_rank_meets_the_nth_of_every_other() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    generations = []
    for rank in (first, first, second, second):
        rank.open(1)
        generations.append(str(rank.payload.checkpoint.generation))
    assert generations == ["1.1", "1.2", "1.1", "1.2"]


def test_a_save_that_was_aborted_before_a_rank_came_ends_that_ranks_save_too() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    given_up = PayloadGivenUp(first.payload, "aborted", "its arena is gone")
    bench.tell(first.session, given_up)
    (aborted,) = second.open(1)
    assert isinstance(aborted, AttemptAborted)
    assert "rank 0: its arena is gone" in aborted.message


def test_a_rank_that_joined_after_an_abort_does_not_meet_it() -> None:
    bench = Bench()
    first = RankFake(bench, 0, 2)
    first.open(1)
    bench.tell(first.session, PayloadGivenUp(first.payload, "aborted", "gone"))
    bench.tick(1)
    second = RankFake(bench, 1, 2)
    assert isinstance(second.open(1)[0], PayloadPlanned)


def test_a_rank_that_goes_on_to_a_later_step_ends_what_lacks_it_and_is_named() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    second.open(2)
    (aborted,) = first.aborts()
    assert aborted.checkpoint.step == 1
    assert "rank 1 went on to step 2" in aborted.message
    assert bench.states() == {"run@1#1.1": "aborted", "run@2#1.2": "open"}


def test_a_trainer_that_left_before_it_staged_ends_what_lacks_it_and_is_named() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    stranger = TrainerLeft(second.run, second.launch, second.rank, "another process")
    bench.tell(second.session, stranger)
    assert first.aborts() == []
    second.leave()
    (aborted,) = first.aborts()
    assert "trainer of rank 1" in aborted.message


def test_a_trainer_that_left_before_a_peer_opened_the_step_is_waited_for_a_little() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    second.join()
    second.leave()
    bench.tick(60)
    first.open(1)
    bench.tick(14)
    assert first.aborts() == [], "it may be started again"
    bench.tick(2)
    (aborted,) = first.aborts()
    assert "trainer of rank 1" in aborted.message
    assert "none was started in its place" in aborted.message


def test_a_trainer_that_left_and_was_started_again_is_there() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    second.join()
    second.leave()
    first.open(1)
    again = RankFake(bench, 1, 2, process=f"{second.process}+")
    again.join()
    bench.tick(60)
    assert first.aborts() == []
    again.open(1)
    every([first, again], lambda rank: rank.seal_all())
    every([first, again], lambda rank: rank.certify())
    assert first.commits()


def test_a_process_that_opened_another_store_has_not_left() -> None:
    """As stagers of the version before say it, for which a closed store is a trainer that left."""
    bench = Bench()
    first, second = team(bench, 2)
    second.join()
    second.leave()
    RankFake(bench, 1, 2, process=second.process).join()
    first.open(1)
    bench.tick(60)
    assert first.aborts() == []


def test_a_trainer_that_left_after_it_staged_ends_nothing() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    second.open(1)
    second.leave()
    first.open(1)
    assert bench.states() == {"run@1#1.1": "open"}


def test_an_abort_is_durable_before_it_is_told_and_told_before_columns_go() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    bench.persist_at_once = False
    mark = bench.mark()
    second.open(2)
    assert bench.sent(AttemptAborted, mark) == []
    bench.sync()
    kinds = (catalog.RowAborted, AttemptAborted, DropGeneration)
    story = bench.story(mark, *kinds)
    assert [type(told) for told in story] == [*kinds, *[DropGeneration] * 3]


def test_an_abort_while_the_generation_is_not_durable_yet_follows_it() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    bench.persist_at_once = False
    first.open(1)
    second.open(2)
    bench.sync()
    bench.sync()
    assert bench.states() == {"run@1#1.1": "aborted", "run@2#1.2": "open"}
    assert first.heard[-1] == first.aborts()[-1]


def test_a_stager_that_stays_away_ends_the_attempt_and_is_named() -> None:
    bench = Bench()
    first, second = team(bench, 2)
    first.open(1)
    second.open(1)
    bench.close(second.session)
    bench.tick(14)
    assert first.aborts() == []
    bench.tick(2)
    assert "stager of rank 1" in first.aborts()[0].message


def test_a_stager_that_comes_back_in_time_goes_on() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    bench.close(rank.session)
    bench.tick(14)
    rank.reconnect()
    rank.ask(rank.question(1))
    bench.tick(30)
    rank.seal_all()
    rank.certify()
    assert len(rank.commits()) == 1


def test_an_open_attempt_goes_on_after_a_restart_with_the_plan_that_its_stager_has() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    bench.restart(*bench.targets)
    bench.tick(5)
    rank.reconnect()
    (plan,) = rank.resume(1, rank.payload.checkpoint)
    assert rank.plan is not None
    assert plan == PayloadPlanned(rank.payload, "2+1", rank.plan.cell_bytes, (), ())
    rank.certify()
    (commit,) = rank.commits()
    assert commit.info.checkpoint == rank.payload.checkpoint
    assert commit.info.commit_us == 5 * SECOND_US, "counted from the restart, not from time zero"


def test_an_attempt_that_nobody_comes_back_for_ends_a_minute_after_the_restart() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    bench.restart(*bench.targets)
    bench.tick(59)
    assert bench.states() == {"run@1#1.1": "open"}
    bench.tick(2)
    assert bench.states() == {"run@1#1.1": "aborted"}


def test_resuming_what_has_ended_tells_how_it_ended() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    rank.certify()
    committed = rank.payload.checkpoint
    rank.open(2)
    aborted = rank.payload.checkpoint
    bench.tell(rank.session, PayloadGivenUp(rank.payload, "aborted", "gone"))
    for restarted in (False, True):
        if restarted:
            bench.restart(*bench.targets)
            rank.reconnect()
        assert isinstance(rank.resume(1, committed)[0], AttemptCommitted)
        assert isinstance(rank.resume(2, aborted)[0], AttemptAborted)


def test_who_never_got_its_plan_hears_of_the_end_as_the_answer_to_its_question() -> None:
    """It knows no checkpoint yet: what is said unasked would say nothing to it."""
    bench = Bench()
    rank = RankFake(bench)
    question = rank.question(1)
    bench.tell(rank.session, question)
    bench.close(rank.session)
    bench.tick(16)
    assert bench.states() == {"run@1#1.1": "aborted"}
    rank.reconnect()
    for number in (71, 72):
        mark = bench.mark()
        bench.feed(Received(bench.now_us, rank.session, number, question))
        sent = [each for each in bench.log[mark:] if isinstance(each, Send)]
        told = [each.request for each in sent if isinstance(each.message, AttemptAborted)]
        assert told == [number]


def test_another_process_cannot_take_a_payload_over() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    bench.close(rank.session)
    thief = RankFake(bench, process="thief")
    (failed,) = thief.resume(1, rank.payload.checkpoint)
    assert isinstance(failed, Failed)
    assert "another process" in failed.message


def test_a_payload_waits_for_its_plan_while_the_targets_gather_after_a_start() -> None:
    bench = Bench(3)
    bench.restart("t0", "t1")
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(2)
    bench.start("t2")
    bench.tick()
    rank.take_plan()
    assert rank.plan is not None


def test_a_payload_without_a_plan_waits_a_minute_for_targets_of_the_catalog() -> None:
    """Where power was lost they start more slowly than the coordinator, one after the other."""
    bench = Bench(3)
    bench.restart("t0", "t1")
    rank = RankFake(bench)
    bench.tick(20)
    assert rank.open(1) == []
    bench.tick(30)
    bench.start("t2")
    bench.tick()
    rank.take_plan()
    assert rank.plan is not None


def test_without_enough_targets_the_save_fails_and_says_how_many_are_needed() -> None:
    bench = Bench(2)
    bench.tick(10)
    rank = RankFake(bench)
    (aborted,) = rank.open(1)
    assert isinstance(aborted, AttemptAborted)
    assert aborted.code == "unavailable"
    assert "2 targets are live" in aborted.message
    assert "3 are needed" in aborted.message


@pytest.mark.parametrize("payload_bytes", [-1, (1 << 44) + 1])
def test_an_impossible_payload_is_refused(payload_bytes: int) -> None:
    bench = Bench()
    (failed,) = RankFake(bench, payload_bytes=payload_bytes).open(1)
    assert isinstance(failed, Failed)
    assert bench.states() == {}


@pytest.mark.parametrize("late", ["open", "certify"])
def test_what_an_older_connection_said_comes_late_and_takes_no_save_from_the_newer_one(
    late: str,
) -> None:
    """A stager that was cut off dials again; what it had sent before still arrives, and then the
    end of that connection. Its save was certified over the newer one: there it waits to hear.
    """
    bench = Bench()
    ranks = team(bench, 2)
    every(ranks, lambda rank: rank.open(1))
    every(ranks, RankFake.seal_all)
    first, second = ranks
    older = first.session
    first.reconnect()
    first.ask(first.question(1))
    first.certify()
    if late == "open":
        bench.tell(older, first.question(1))
    else:
        table = first.table()
        bench.tell(older, replace(first.certificate(), table_bytes=len(table)), table)
    bench.close(older)
    second.certify()
    assert len(second.commits()) == 1
    assert first.commits() == second.commits()
