"""A target that was live a moment ago is waited for, one that was not is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.saving import AttemptAborted, RequestSpares, SparesNamed
from ckpt.format.messages.targets import Attested, ListHoldings, MapKept, Reserve
from ckpt.protocol.coordinator.cluster.reserving import STILL_US
from ckpt.protocol.coordinator.saving.space.allotment import PATIENCE_US
from ckpt.protocol.events import StoodStill, Ticked
from tests.protocol.coordinating import SECOND_US, Bench, RankFake

LEASE_S = 3
POWER_UP_S = 60


def gathered(count: int) -> Bench:
    """Past the time in which a new coordinator waits for whom it knows."""
    bench = Bench(count)
    bench.tick(POWER_UP_S)
    return bench


def fall_silent(bench: Bench, *ids: str) -> None:
    """Their leases run out on sessions that stand."""
    for id in ids:
        bench.targets[TargetId(id)].session = None  # The bench renews no more for it.
    bench.tick(LEASE_S + 1)


def test_a_save_waits_for_targets_that_are_late_and_takes_them_when_they_come_back() -> None:
    bench = gathered(4)
    fall_silent(bench, "t0", "t1")
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(1)
    bench.start("t0")
    bench.tick()
    rank.take_plan()
    assert rank.plan is not None
    assert len(rank.plan.places) == 3


def test_late_targets_that_do_not_come_back_are_named_within_a_lease() -> None:
    bench = gathered(4)
    fall_silent(bench, "t0", "t1")
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(LEASE_S)
    (abort,) = rank.aborts()
    assert abort.code == "unavailable"
    assert "2 targets are live" in abort.message
    assert "3 are needed" in abort.message
    assert "silent: t0 for 6 s, t1 for 6 s" in abort.message


def test_dead_targets_are_not_waited_for() -> None:
    bench = gathered(4)
    bench.stop("t0", "t1")
    bench.tick(LEASE_S)
    (abort,) = RankFake(bench).open(1)
    assert isinstance(abort, AttemptAborted)
    assert "silent" not in abort.message


def test_targets_whose_connections_broke_are_waited_for_and_taken_when_they_dial_again() -> None:
    """All of a host's may break at once."""
    bench = gathered(4)
    bench.stop("t0", "t1")
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(1)
    bench.start("t0")
    bench.tick()
    rank.take_plan()
    assert rank.plan is not None
    assert len(rank.plan.places) == 3


def test_a_save_that_waits_for_targets_whose_sessions_ended_is_told_within_their_lease() -> None:
    bench = gathered(4)
    bench.stop("t0", "t1")
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(LEASE_S)
    (abort,) = rank.aborts()
    assert "2 targets are live" in abort.message


def test_late_targets_that_would_not_be_enough_are_not_waited_for() -> None:
    bench = gathered(4)
    bench.stop("t0", "t1")
    fall_silent(bench, "t2")
    (abort,) = RankFake(bench).open(1)
    assert isinstance(abort, AttemptAborted)
    assert "1 target is live" in abort.message
    assert "silent: t2" in abort.message


def test_a_target_that_was_silent_for_longer_than_two_leases_is_dead() -> None:
    bench = gathered(4)
    fall_silent(bench, "t0", "t1")
    bench.tick(LEASE_S)
    assert isinstance(RankFake(bench).open(1)[0], AttemptAborted)


def test_targets_that_come_and_go_are_not_waited_for_without_a_bound() -> None:
    bench = gathered(3)
    fall_silent(bench, "t0")
    rank = RankFake(bench)
    rank.open(1)
    for _ in range(3):
        bench.tick(1)
        target = bench.targets[TargetId("t0")]
        target.silent.add(ListHoldings)  # It is back, and never says what it holds.
        bench.start(target)
        fall_silent(bench, "t0")
    assert rank.aborts()


# --------------------------------------------------------------------------- more places


def spares_for(rank: RankFake, column: int, *failed: str) -> list[Message]:
    names = tuple(TargetId(id) for id in failed)
    question = RequestSpares(rank.payload, ColumnNumber(column), names)
    return rank.bench.tell(rank.session, question)


def short_of(bench: Bench, absent: str) -> RankFake:
    """A plan at the floor: one target was silent when it was asked for space."""
    bench.targets[TargetId(absent)].silent.add(Reserve)
    rank = RankFake(bench)
    rank.open(1)
    bench.tick(20)
    rank.take_plan()
    assert rank.plan is not None
    return rank


def test_a_column_that_puts_its_payload_below_the_floor_asks_silent_targets_again() -> None:
    bench = gathered(4)
    rank = short_of(bench, "t3")
    assert rank.plan is not None
    lost = rank.plan.places[0].target
    assert spares_for(rank, 0, lost) == []
    bench.tick(1)
    mark = bench.mark()
    bench.let_answer("t3")
    bench.tick(2)
    (named,) = bench.sent(SparesNamed, mark)
    assert [place.target for place in named.spares] == ["t3"]


def test_it_is_told_within_a_lease_and_a_question_that_there_is_no_place() -> None:
    bench = gathered(4)
    rank = short_of(bench, "t3")
    assert rank.plan is not None
    mark = bench.mark()
    spares_for(rank, 0, rank.plan.places[0].target)
    bench.tick(LEASE_S + 2)
    assert bench.sent(SparesNamed, mark) == [SparesNamed(rank.payload, ())]


def test_a_column_that_the_payload_can_do_without_is_answered_at_once() -> None:
    """Nobody waits for a hung target while the others are enough (P4)."""
    bench = Bench(6, "3+2")
    bench.tick(10)
    fall_silent(bench, "t5")
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    assert len(rank.plan.places) == 5
    failed = rank.plan.places[0].target
    assert spares_for(rank, 0, failed) == [SparesNamed(rank.payload, ())]


def test_targets_that_come_while_others_are_asked_for_space_are_asked_too() -> None:
    """As behind a coordinator's restart: too few were listed when places were chosen."""
    bench = gathered(4)
    bench.stop("t0", "t1")
    for id in ("t2", "t3"):
        bench.targets[TargetId(id)].silent.add(Reserve)
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.start("t0")
    for id in ("t2", "t3"):
        bench.let_answer(id)
    rank.take_plan()
    assert rank.plan is not None
    assert {place.target for place in rank.plan.places} == {"t0", "t2", "t3"}


# --------------------------------------------------------------------------- standstill


def stood_still(bench: Bench, seconds: int) -> None:
    """The coordinator's next sign of life."""
    bench.now_us += seconds * SECOND_US
    bench.feed(StoodStill(bench.now_us, seconds * SECOND_US))
    bench.feed(Ticked(bench.now_us))


def live(bench: Bench) -> set[str]:
    return {str(target.id) for target in bench.machine.members.live()}


def test_a_coordinator_that_stood_still_holds_its_own_silence_against_nobody() -> None:
    bench = gathered(4)
    stood_still(bench, 40)
    assert live(bench) == {"t0", "t1", "t2", "t3"}


def test_targets_that_stay_silent_behind_it_are_down_after_a_lease() -> None:
    bench = gathered(4)
    stood_still(bench, 40)
    fall_silent(bench, "t0", "t1")
    assert live(bench) == {"t2", "t3"}


def test_a_target_has_the_time_to_answer_that_it_had_before() -> None:
    bench = gathered(4)
    bench.targets[TargetId("t0")].silent = {Reserve}
    rank = RankFake(bench)
    assert rank.open(1) == []
    mark = bench.mark()
    stood_still(bench, 40)
    assert bench.to(rank.session, mark) == []
    bench.let_answer("t0")
    rank.take_plan()
    assert rank.plan is not None


# --------------------------------------------------------------------------- behind a restart


def restarted(count: int) -> RankFake:
    """A payload has three places; the coordinator starts again, and all but what was at column 1
    and what is unused come back to it.
    """
    bench = gathered(count)
    rank = RankFake(bench)
    rank.open(1)
    rank.take_plan()
    assert rank.plan is not None
    first, _, last = (place.target for place in rank.plan.places)
    bench.restart(first, last)
    rank.reconnect()
    rank.ask(replace(rank.question(1), resume=rank.payload.checkpoint))
    return rank


def lost_at(rank: RankFake) -> str:
    assert rank.plan is not None
    return rank.plan.places[1].target


def unused_by(rank: RankFake) -> str:
    assert rank.plan is not None
    (unused,) = set(rank.bench.targets) - {place.target for place in rank.plan.places}
    return unused


def ask_for_column_1(rank: RankFake) -> int:
    """It failed where it was; the others have their places still."""
    assert rank.plan is not None
    first, lost, last = (place.target for place in rank.plan.places)
    held = ((ColumnNumber(0), first), (ColumnNumber(2), last))
    mark = rank.bench.mark()
    rank.bench.tell(
        rank.session, RequestSpares(rank.payload, ColumnNumber(1), (lost,), held, False)
    )
    return mark


def named_since(rank: RankFake, mark: int) -> list[TargetId] | None:
    """None while the stager waits for an answer."""
    named = rank.bench.sent(SparesNamed, mark)
    return [place.target for each in named for place in each.spares] if named else None


def test_a_new_place_is_none_where_another_column_of_the_payload_is() -> None:
    rank = restarted(4)
    rank.bench.start(unused_by(rank))
    rank.bench.tick(1)
    assert named_since(rank, ask_for_column_1(rank)) == [unused_by(rank)]


def test_a_new_place_waits_for_targets_that_come_behind_the_coordinator() -> None:
    """All lost their power: every column lost its place, and few targets are back as yet."""
    rank = restarted(4)
    mark = ask_for_column_1(rank)
    rank.bench.tick(1)
    assert named_since(rank, mark) is None
    rank.bench.start(unused_by(rank))
    rank.bench.tick(1)
    assert named_since(rank, mark) == [unused_by(rank)]


def test_a_target_that_failed_a_column_and_started_again_may_have_it_again() -> None:
    rank = restarted(3)
    mark = ask_for_column_1(rank)
    rank.bench.tick(1)
    assert named_since(rank, mark) is None
    rank.bench.start(lost_at(rank))
    rank.bench.tick(1)
    assert named_since(rank, mark) == [lost_at(rank)]


def test_who_does_not_come_behind_the_coordinator_is_waited_for_a_minute() -> None:
    """Where power was lost, machines start one after the other; the save fails without them."""
    rank = restarted(3)
    mark = ask_for_column_1(rank)
    rank.bench.tick(POWER_UP_S - 3)
    assert named_since(rank, mark) is None
    rank.bench.tick(4)
    assert named_since(rank, mark) == []


def test_a_target_that_starts_half_a_minute_behind_the_coordinator_finishes_the_save() -> None:
    rank = restarted(3)
    mark = ask_for_column_1(rank)
    rank.bench.tick(30)
    rank.bench.start(lost_at(rank))
    rank.bench.tick(1)
    assert named_since(rank, mark) == [lost_at(rank)]


def test_a_column_that_the_payload_can_do_without_waits_two_leases_behind_a_start() -> None:
    bench = Bench(5, "3+2")
    rank = RankFake(bench)
    rank.open(1)
    rank.take_plan()
    assert rank.plan is not None
    lost, *others = (place.target for place in rank.plan.places)
    bench.restart(*others)
    rank.reconnect()
    rank.ask(replace(rank.question(1), resume=rank.payload.checkpoint))
    held = tuple((ColumnNumber(j), target) for j, target in enumerate(others, start=1))
    mark = bench.mark()
    bench.tell(rank.session, RequestSpares(rank.payload, ColumnNumber(0), (lost,), held, False))
    bench.tick(LEASE_S)
    assert named_since(rank, mark) is None
    bench.tick(LEASE_S + 1)
    assert named_since(rank, mark) == []


def test_a_target_that_has_answered_what_it_was_asked_does_not_hang() -> None:
    bench = Bench(3)
    bench.save(1)
    bench.tick(3)
    targets = bench.machine.members.targets.values()
    assert [target.reserving.hangs(bench.now_us) for target in targets] == [False] * 3


@pytest.mark.parametrize("answer", [MapKept(), Attested(())])
def test_an_answer_that_comes_when_nobody_waits_any_more_costs_no_session(answer: Message) -> None:
    """As of a disk that takes half a minute for a small file, or two seconds for the term."""
    bench = Bench(3)
    slow = bench.targets[TargetId("t0")]
    session = slow.session
    assert session is not None
    bench.tell(session, answer)
    assert slow.session == session


def test_reservations_that_are_late_everywhere_are_waited_for() -> None:
    """All disks have as much to do: one is no later than the others."""
    bench = gathered(4)
    for target in bench.targets.values():
        target.silent.add(Reserve)
    rank = RankFake(bench)
    rank.open(1)
    asked = {id: len(bench.asked(id, Reserve)) for id in bench.targets}
    bench.tick(20)
    for id in bench.targets:
        ids = {each.reservation for each in bench.asked(id, Reserve)}
        assert len(ids) == asked[id], "the same one, asked again"
        bench.let_answer(id)
    rank.take_plan()
    assert rank.plan is not None
    assert len(rank.plan.places) == 3


def test_disks_that_all_hang_are_given_up() -> None:
    bench = gathered(4)
    for target in bench.targets.values():
        target.silent.add(Reserve)
    rank = RankFake(bench)
    rank.open(1)
    bench.tick(2 * STILL_US / SECOND_US)
    (abort,) = rank.aborts()
    assert "4 targets are live and 0 gave space" in abort.message


def test_a_target_that_is_silent_while_others_reserve_at_once_is_passed_over() -> None:
    bench = gathered(4)
    bench.targets[TargetId("t0")].silent.add(Reserve)
    rank = RankFake(bench)
    rank.open(1)
    bench.tick(PATIENCE_US / SECOND_US + 0.1)
    rank.take_plan()
    assert rank.plan is not None
    assert TargetId("t0") not in {place.target for place in rank.plan.places}
