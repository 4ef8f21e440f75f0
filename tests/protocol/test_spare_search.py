"""Where a column goes that lost its place, when no other target is left."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.format.messages.saving import PayloadGivenUp, Place, RequestSpares, SparesNamed
from ckpt.format.messages.targets import ListHoldings, ReleaseReservation
from ckpt.protocol.coordinator.saving.space.spare_search import RETURN_GAP_US, RETURNS_MAX
from tests.protocol.coordinating import SECOND_US, Bench, RankFake
from tests.protocol.test_late_targets import LEASE_S, fall_silent, gathered

GAP_S = RETURN_GAP_US / SECOND_US


def full(bench: Bench) -> RankFake:
    """Every target has a column, so that there is no other place."""
    rank = RankFake(bench)
    rank.open(1)
    rank.take_plan()
    assert rank.plan is not None
    assert len(rank.plan.places) == len(bench.targets)
    return rank


def ask(rank: RankFake, column: int, *, stays: bool = False, homeless: int = 1) -> list[Place]:
    """Its connection broke, as those of the first so many columns."""
    assert rank.plan is not None
    places = rank.plan.places
    held = tuple((ColumnNumber(j), places[j].target) for j in range(homeless, len(places)))
    failed = (places[column].target,)
    question = RequestSpares(rank.payload, ColumnNumber(column), failed, held, stays)
    mark = rank.bench.mark()
    rank.bench.tell(rank.session, question)
    return [place for each in rank.bench.sent(SparesNamed, mark) for place in each.spares]


def test_it_goes_back_at_once_to_the_live_target_where_its_connection_broke() -> None:
    bench = gathered(3)
    rank = full(bench)
    assert rank.plan is not None
    before = rank.plan.places[0]
    mark = bench.mark()
    (place,) = ask(rank, 0)
    assert (place.target, place.boot) == (before.target, before.boot)
    assert place.reservation != before.reservation
    (released,) = bench.sent(ReleaseReservation, mark)
    assert released.reservation == before.reservation


def test_a_spare_where_the_connection_broke_goes_back_once_and_is_named_again() -> None:
    bench = gathered(4)
    rank = RankFake(bench)
    rank.open(1)
    rank.take_plan()
    assert rank.plan is not None
    (spare,) = rank.plan.spares
    held = tuple((ColumnNumber(j), rank.plan.places[j].target) for j in (1, 2))
    mark = bench.mark()
    bench.tell(
        rank.session, RequestSpares(rank.payload, ColumnNumber(0), (spare.target,), held, False)
    )
    (named,) = bench.sent(SparesNamed, mark)
    assert [place.target for place in named.spares] == [spare.target]
    assert named.spares[0].reservation != spare.reservation
    given_back = [released.reservation for released in bench.sent(ReleaseReservation, mark)]
    assert given_back == [spare.reservation], "where the column was before is not asked about"
    bench.tell(rank.session, PayloadGivenUp(rank.payload, "io", "no place is left"))
    given_back = [released.reservation for released in bench.sent(ReleaseReservation, mark)]
    assert given_back.count(spare.reservation) == 1


def test_one_that_has_its_place_still_is_named_no_second_one_there() -> None:
    assert ask(full(gathered(3)), 0, stays=True) == []


def test_it_does_not_go_back_to_a_target_that_is_down() -> None:
    bench = gathered(3)
    rank = full(bench)
    assert rank.plan is not None
    bench.stop(rank.plan.places[0].target)
    mark = bench.mark()
    ask(rank, 0)
    bench.tick(LEASE_S + 1)
    assert [named.spares for named in bench.sent(SparesNamed, mark)] == [()]


def test_below_the_floor_it_waits_for_a_target_whose_sessions_all_broke() -> None:
    bench = gathered(3)
    rank = full(bench)
    assert rank.plan is not None
    target = bench.targets[rank.plan.places[0].target]
    assert target.session is not None
    bench.close(target.session)
    target.session = None
    mark = bench.mark()
    assert ask(rank, 0) == []
    assert bench.sent(SparesNamed, mark) == []
    bench.start(target)
    bench.tick(1)
    (named,) = bench.sent(SparesNamed, mark)
    assert [place.target for place in named.spares] == [target.id]


def test_below_the_floor_it_waits_for_a_target_that_is_asked_what_it_holds() -> None:
    """It has dialled again, and counts as soon as it has listed its columns."""
    bench = gathered(3)
    rank = full(bench)
    assert rank.plan is not None
    target = bench.targets[rank.plan.places[0].target]
    target.silent.add(ListHoldings)
    bench.start(target)
    assert target.unanswered
    mark = bench.mark()
    assert ask(rank, 0) == []
    assert bench.sent(SparesNamed, mark) == []
    bench.let_answer(target.id)
    bench.tick(1)
    (named,) = bench.sent(SparesNamed, mark)
    assert [place.target for place in named.spares] == [target.id]


def test_below_the_floor_it_waits_for_a_target_that_is_late() -> None:
    bench = gathered(3)
    rank = full(bench)
    assert rank.plan is not None
    target = rank.plan.places[0].target
    fall_silent(bench, target)
    mark = bench.mark()
    assert ask(rank, 0) == []
    assert bench.sent(SparesNamed, mark) == []
    bench.start(target)
    bench.tick(1)
    (named,) = bench.sent(SparesNamed, mark)
    assert [place.target for place in named.spares] == [target]


def test_with_enough_other_places_it_goes_back_once_only() -> None:
    bench = Bench(4, "2+2")
    bench.tick(10)
    rank = full(bench)
    assert len(ask(rank, 0)) == 1
    assert ask(rank, 0) == []


def test_below_the_floor_it_goes_back_again_and_again_with_a_gap_but_not_for_ever() -> None:
    """All connections of the host broke, and break again."""
    bench = gathered(3)
    rank = full(bench)
    assert all(len(ask(rank, column, homeless=3)) == 1 for column in range(3))
    for _ in range(RETURNS_MAX - 1):
        mark = bench.mark()
        assert all(ask(rank, column, homeless=3) == [] for column in range(3))
        bench.tick(GAP_S)
        named = bench.sent(SparesNamed, mark)
        assert sorted(each.spares[0].target for each in named) == ["t0", "t1", "t2"]
    mark = bench.mark()
    assert all(ask(rank, column, homeless=3) == [] for column in range(3))
    bench.tick(10)
    assert [each.spares for each in bench.sent(SparesNamed, mark)] == [()] * 3


def test_it_goes_nowhere_where_another_column_of_the_payload_is() -> None:
    rank = full(gathered(3))
    assert rank.plan is not None
    place = rank.plan.places[0].target
    held = ((ColumnNumber(1), place),)
    question = RequestSpares(rank.payload, ColumnNumber(0), (TargetId(place),), held, stays=False)
    mark = rank.bench.mark()
    rank.bench.tell(rank.session, question)
    (named,) = rank.bench.sent(SparesNamed, mark)
    assert named.spares == ()


def test_where_a_column_was_that_found_nowhere_to_go_another_may_go() -> None:
    bench = Bench(4, "2+2")
    bench.tick(10)
    rank = full(bench)
    assert len(ask(rank, 0)) == 1
    assert ask(rank, 0) == []
    assert meet(rank, 1, failed=(0, 1), held={2: 2, 3: 3}) == [target_of(rank, 0)]


def test_a_column_goes_back_to_where_it_moved_though_another_was_there_before() -> None:
    bench = Bench(4, "2+2")
    bench.tick(10)
    rank = full(bench)
    assert meet(rank, 2, failed=(2,), held={0: 1, 3: 3}) == [target_of(rank, 2)]
    assert meet(rank, 0, failed=(1,), held={2: 2, 3: 3}) == [target_of(rank, 1)]


def target_of(rank: RankFake, column: int) -> TargetId:
    """Where the plan put it."""
    assert rank.plan is not None
    return rank.plan.places[column].target


def meet(
    rank: RankFake, column: int, failed: tuple[int, ...], held: Mapping[int, int]
) -> list[TargetId]:
    """The places that are named for it; `failed` and `held` say targets by the column that the
    plan put there.
    """
    question = RequestSpares(
        rank.payload, ColumnNumber(column), tuple(target_of(rank, each) for each in failed),
        tuple((ColumnNumber(j), target_of(rank, each)) for j, each in held.items()), stays=False,
    )  # fmt: skip
    mark = rank.bench.mark()
    rank.bench.tell(rank.session, question)
    return [place.target for each in rank.bench.sent(SparesNamed, mark) for place in each.spares]
