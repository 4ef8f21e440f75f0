"""Space before bytes: who is asked, what stands, and what goes back."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt.base.ids import ColumnNumber, ReservationId, TargetId
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.layout import Layout
from ckpt.format.messages.asking import ChangeTarget
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.saving import (
    AttemptAborted,
    PayloadGivenUp,
    PayloadPlanned,
    RequestSpares,
    SparesNamed,
)
from ckpt.format.messages.targets import ReleaseReservation, RenewLease, Reserve
from ckpt.protocol.coordinator.saving.ending import STAND_AT_ONCE
from ckpt.protocol.coordinator.saving.space.kept_space import VIEW_TARGETS_MIN
from ckpt.protocol.target.disk_events import DiskFailed
from ckpt.protocol.target.space import disk_failure
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import Bench, RankFake, every, team

FULL = Failed("no_space", "full")


def target(bench: Bench, id: str) -> FakeTarget:
    return bench.targets[TargetId(id)]


def held(bench: Bench) -> list[str]:
    """Targets by reservation."""
    return [t.id for t in bench.targets.values() for _ in t.reservations]


def test_a_target_that_refuses_is_replaced_and_not_asked_twice() -> None:
    bench = Bench(5)
    target(bench, "t1").refuses[Reserve] = Failed("unavailable", "its disk fails")
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    named = [place.target for place in (*rank.plan.places, *rank.plan.spares)]
    assert sorted(named) == ["t0", "t2", "t3", "t4"]
    assert len(bench.asked("t1", Reserve)) == 1


def test_a_silent_target_is_passed_over_and_what_it_reserves_later_goes_back() -> None:
    bench = Bench(5)
    silent = target(bench, "t1")
    silent.silent.add(Reserve)
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(2)
    rank.take_plan()
    assert "t1" not in {place.target for place in rank.places().values()}
    mark = bench.mark()
    bench.let_answer("t1")
    assert len(bench.asked("t1", ReleaseReservation, mark)) == 1
    assert silent.reservations == set()


def test_too_few_in_time_are_asked_again_with_more_patience() -> None:
    bench = Bench(4)
    slow = ("t0", "t1", "t2")
    for id in slow:
        target(bench, id).silent.add(Reserve)
    rank = RankFake(bench)
    assert rank.open(1) == []
    bench.tick(1)
    assert [len(bench.asked(id, Reserve)) for id in slow] == [2, 2, 2]
    bench.tick(1)
    for id in slow:
        bench.let_answer(id)
    rank.take_plan()
    assert {place.target for place in rank.places().values()} <= {"t0", "t1", "t2", "t3"}
    assert all(len(target(bench, id).reservations) == 1 for id in (*slow, "t3"))


def test_targets_that_stay_silent_end_the_save_after_a_bounded_time() -> None:
    bench = Bench(3)
    for one in bench.targets.values():
        one.silent.add(Reserve)
    rank = RankFake(bench)
    rank.open(1)
    # All are as silent as their peers: for a minute that may be slow disks.
    for _ in range(73):
        bench.tick(1)
    assert rank.aborts() == []
    bench.tick(1)
    (aborted,) = rank.aborts()
    assert aborted.code == "unavailable"
    assert "3 targets are live and 0 gave space" in aborted.message


def test_too_few_since_the_others_are_drained_says_so_and_what_brings_them_back() -> None:
    bench = Bench(4)
    for id in ("t1", "t3"):
        bench.tell(bench.session(Role.ADMIN), ChangeTarget(TargetId(id), "draining", force=True))
    rank = RankFake(bench)
    rank.open(1)
    bench.tick(20)
    (aborted,) = rank.aborts()
    assert aborted.code == "unavailable"
    assert "4 targets are live and 2 gave space, 3 are needed for 2+1" in aborted.message
    assert "drained or out: t1, t3" in aborted.message
    assert "ckpt target undrain ID" in aborted.hint
    status: Any = bench.ask("status")
    (few,) = [one for one in status["checks"] if one["name"] == "TOO_FEW_TARGETS"]
    assert few["message"].endswith("; drained or out: t1, t3")
    assert "ckpt target undrain" in few["remedy"]


def test_a_spare_takes_the_place_of_a_column_that_nobody_else_can_take() -> None:
    bench = Bench(4)
    target(bench, "t0").refuses[Reserve] = FULL
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    assert sorted(place.target for place in rank.plan.places) == ["t1", "t2", "t3"]
    assert rank.plan.spares == ()


def test_a_column_without_a_target_is_absent_as_long_as_the_floor_stands() -> None:
    bench = Bench(5, "3+2")
    target(bench, "t0").refuses[Reserve] = FULL
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    assert (len(rank.plan.places), len(rank.plan.absent)) == (4, 1)


@pytest.mark.parametrize("said_by", ["refusal", "free bytes"])
def test_without_space_standing_space_goes_first_then_the_save_fails_with_a_retry_after(
    said_by: str,
) -> None:
    bench = Bench(3)
    bench.save(1, run="other")
    assert held(bench) == ["t0", "t1", "t2"], "it stands for the next save"
    for one in bench.targets.values():
        if said_by == "refusal":
            one.refuses[Reserve] = FULL
        else:
            one.bytes_free = 0
    bench.tick(1)
    rank = RankFake(bench, payload_bytes=1_000_000)
    (aborted,) = rank.open(1)
    assert isinstance(aborted, AttemptAborted)
    assert aborted.code == "no_space"
    assert "t0, t1, t2" in aborted.message
    assert aborted.retry_after_us == 5_000_000
    assert held(bench) == []


def test_a_limit_that_no_count_of_a_target_shows_is_named_with_what_to_do() -> None:
    bench = Bench(3)
    for one in bench.targets.values():
        one.refuses[Reserve] = disk_failure("reserve space", DiskFailed(1, 2, "EDQUOT", "exceeded"))
    rank = RankFake(bench, payload_bytes=1_000_000)
    (aborted,) = rank.open(1)
    assert isinstance(aborted, AttemptAborted)
    assert aborted.code == "no_space"
    assert "t0, t1, t2: cannot reserve space: EDQUOT: exceeded" in aborted.message
    assert "quota" in aborted.hint


def test_space_that_only_stood_by_serves_a_save_that_needs_it() -> None:
    bench = Bench(3)
    bench.save(1, run="other")
    for one in bench.targets.values():
        one.refuses[Reserve] = FULL
    released: list[str] = []
    rank = RankFake(bench)

    def make_room(one: FakeTarget) -> None:
        released.append(one.id)
        one.refuses.clear()

    for one in bench.targets.values():
        one.on_release = make_room
    rank.open(1)
    assert rank.plan is not None
    assert sorted(released) == ["t0", "t1", "t2"]


def test_space_that_stood_by_counts_as_free_before_its_targets_say_so() -> None:
    bench = Bench(3)
    bench.save(1, run="other")
    for one in bench.targets.values():
        one.bytes_free = 0
    bench.tick(1)
    rank = RankFake(bench)
    assert isinstance(rank.open(1)[0], PayloadPlanned)


def test_the_next_save_of_the_same_shape_asks_nothing() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    rank.certify()
    standing = held(bench)
    assert len(standing) == 4
    mark = bench.mark()
    rank.open(2)
    assert bench.sent(Reserve, mark) == []
    assert held(bench) == standing


def test_standing_space_that_nobody_comes_for_goes_back_in_the_end() -> None:
    bench = Bench()
    bench.save(1)
    bench.tick(599)
    assert len(held(bench)) == 4
    bench.tick(2)
    assert held(bench) == []


def test_standing_space_on_a_target_that_left_is_planned_anew() -> None:
    bench = Bench(5)
    bench.save(1)
    bench.stop("t0")
    rank = RankFake(bench, process="next")
    rank.open(2)
    assert rank.plan is not None
    assert "t0" not in {place.target for place in (*rank.plan.places, *rank.plan.spares)}


def test_an_aborted_save_gives_all_its_space_back() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    bench.tell(rank.session, PayloadGivenUp(rank.payload, "aborted", "gone"))
    assert held(bench) == []


def test_reservations_of_an_earlier_term_go_back_when_streams_had_time_to_end() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    bench.restart(*bench.targets)
    bench.tick(59)
    assert len(held(bench)) == 4
    bench.tick(2)
    assert held(bench) == []


def test_what_a_target_holds_of_this_term_and_nobody_knows_goes_back_at_once() -> None:
    bench = Bench()
    bench.stop("t0")
    target(bench, "t0").reservations.add(ReservationId(1 << 32 | 999))
    bench.start("t0")
    assert target(bench, "t0").reservations == set()


def test_more_spares_come_from_domains_that_hold_no_other_column() -> None:
    bench = Bench(8, hosts=4)
    rank = RankFake(bench)
    rank.open(1)
    places = rank.places()
    hosts = {bench.targets[place.target].domain.split("/")[2] for place in places.values()}
    lost = places[min(places)]
    asked = RequestSpares(rank.payload, min(places), (lost.target,))
    (named,) = bench.tell(rank.session, asked)
    assert isinstance(named, SparesNamed)
    (spare,) = named.spares
    others = {bench.targets[p.target].domain.split("/")[2] for j, p in places.items() if j}
    assert bench.targets[spare.target].domain.split("/")[2] not in others
    assert len(hosts) == 3


def test_without_another_target_there_are_no_spares() -> None:
    bench = Bench(3)
    rank = RankFake(bench)
    rank.open(1)
    (named,) = bench.tell(
        rank.session, RequestSpares(rank.payload, min(rank.places()), (TargetId("t0"),))
    )
    assert named == SparesNamed(rank.payload, ())


def test_a_spare_that_comes_when_its_save_has_ended_goes_back() -> None:
    bench = Bench(6)
    rank = RankFake(bench)
    rank.open(1)
    assert rank.plan is not None
    named = {place.target for place in (*rank.plan.places, *rank.plan.spares)}
    others = [id for id in bench.targets if id not in named]
    for id in others:
        target(bench, id).silent.add(Reserve)
    bench.tell(rank.session, RequestSpares(rank.payload, ColumnNumber(0), ()))
    bench.tell(rank.session, PayloadGivenUp(rank.payload, "failed", "its bytes broke"))
    for id in others:
        bench.let_answer(id)
    assert held(bench) == []


def test_targets_with_capacities_of_their_own_on_one_device_are_full_each_by_itself() -> None:
    bench = Bench(4, max_per_domain=9, targets_live=False)
    for one in bench.targets.values():
        one.domain = "p/r/h0/d0"
        bench.start(one)
        assert one.session is not None
        renew = RenewLease(one.id, one.boot, 30_000, 0, {}, 1 << 30)
        one.bytes_free = 30_000  # Room for one column, and the device has plenty.
        bench.tell(one.session, renew)
    rank = RankFake(bench)
    (planned,) = rank.open(1)
    assert isinstance(planned, PayloadPlanned), planned
    assert len(planned.places) == 3


def test_space_of_an_earlier_term_goes_back_once_however_often_its_target_comes() -> None:
    bench = Bench(5)
    RankFake(bench).open(1)
    holder = next(t for t in bench.targets.values() if t.reservations)
    bench.restart(*bench.targets)
    mark, count = bench.mark(), len(holder.reservations)
    for _ in range(3):
        bench.stop(holder.id)
        bench.start(holder.id)
    bench.tick(61)
    assert holder.reservations == set()
    assert len(bench.asked(holder.id, ReleaseReservation, mark)) == count


def test_space_of_an_earlier_term_is_left_to_a_save_that_comes_back() -> None:
    """What goes back ends its stream, and nothing says whose each is."""
    bench = Bench(5)
    rank = RankFake(bench)
    rank.open(1)
    holders = {place.target for place in rank.places().values()}
    bench.restart(*bench.targets)
    rank.reconnect()
    rank.resume(1, rank.payload.checkpoint)
    bench.tick(120)
    assert holders <= set(held(bench))
    rank.seal_all()
    rank.certify()
    assert len(rank.commits()) == 1
    bench.tick(1)
    standing = {t.id for t in bench.targets.values() for r in t.reservations if r >> 32 < 2}
    assert standing == set()


def test_space_of_an_earlier_term_does_not_wait_for_ever_for_a_save_of_then() -> None:
    bench = Bench(5)
    rank = RankFake(bench)
    rank.open(1)
    bench.restart(*bench.targets)
    rank.reconnect()
    rank.resume(1, rank.payload.checkpoint)
    bench.tick(599)
    assert held(bench) != []
    bench.tick(1)
    assert held(bench) == []


def test_a_crowd_s_next_saves_get_their_space_some_at_a_time() -> None:
    """And all of them before long: the next burst asks no target."""
    bench = Bench(8)
    ranks = team(bench, 3 * STAND_AT_ONCE + 5)
    every(ranks, lambda rank: rank.open(1))
    every(ranks, RankFake.seal_all)
    every(ranks, RankFake.certify)
    mark = bench.mark()
    every(ranks, lambda rank: rank.open(2))
    assert bench.sent(Reserve, mark) == []
    assert all(rank.plan is not None and not rank.plan.absent for rank in ranks)


def test_of_many_targets_a_look_serves_a_burst_and_what_leaves_is_seen() -> None:
    """Loads are even all the same, and nothing is planned on who has left."""
    bench = Bench(VIEW_TARGETS_MIN + 1)
    ranks = team(bench, 130)
    every(ranks[:65], lambda rank: rank.open(1))
    bench.stop("t7")
    every(ranks[65:], lambda rank: rank.open(1))
    later = {place.target for rank in ranks[65:] for place in rank.places().values()}
    assert later == {*bench.targets} - {TargetId("t7")}
    loads = [one.load_bytes for one in bench.machine.members.live()]
    layout = Layout.plan(bench.policy.code, ranks[0].payload_bytes)
    assert max(loads) - min(loads) <= 2 * file_bytes(layout, manifest_bytes_bound(layout))


@pytest.mark.parametrize(("hosts", "words"), [(1, "in 1 host"), (2, "in 2 hosts")])
def test_too_few_domains_are_named_before_a_save_and_when_it_fails(hosts: int, words: str) -> None:
    """All came with another domain at once, such as one rack's by mistake."""
    bench = Bench(5, hosts=hosts)
    text = f"{words}, with at most 1 column of a payload in each"
    status: Any = bench.ask("status")
    (few,) = [one for one in status["checks"] if one["name"] == "TOO_FEW_TARGETS"]
    assert few["message"] == f"5 targets are live and well {text}, a save needs 3 for 2+1"
    assert few["remedy"].startswith("add targets in other hosts, or start those")
    rank = RankFake(bench)
    rank.open(1)
    bench.tick(20)
    (aborted,) = rank.aborts()
    assert f"5 targets are live {text}, and {hosts} gave space" in aborted.message
    assert "--domain" in aborted.hint


def test_enough_domains_are_no_fault() -> None:
    status: Any = Bench(5, hosts=3).ask("status")
    assert status["checks"] == []
