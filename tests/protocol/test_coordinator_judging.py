"""Damage is proved only when all holders have answered and some stripe is past repair."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, Step
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import DamageJudged, ReportDamage, Resolve, Resolved
from ckpt.format.messages.reading import ByteRange, VerifyColumn
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.keeping.judging import most_bad
from ckpt.protocol.events import Session
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, Bench


def report(bench: Bench, id: CheckpointId, session: Session | None = None) -> list[Message]:
    message = ReportDamage(PayloadId(id, Rank(0)), "it does not decode")
    return bench.tell(session or bench.session(), message)


def judged(answers: list[Message]) -> DamageJudged:
    (answer,) = answers
    assert isinstance(answer, DamageJudged)
    return answer


def holder(bench: Bench, id: CheckpointId, column: int) -> FakeTarget:
    """Of a column of rank 0."""
    wanted = ColumnId(PayloadId(id, Rank(0)), ColumnNumber(column))
    return next(t for t in bench.targets.values() if wanted in t.columns)


def harm(bench: Bench, id: CheckpointId, column: int, *ranges: tuple[int, int]) -> None:
    target = holder(bench, id, column)
    wanted = ColumnId(PayloadId(id, Rank(0)), ColumnNumber(column))
    target.damaged[wanted] = tuple(ByteRange(*each) for each in ranges)


def test_more_than_m_columns_damaged_at_one_place_are_proved_durably_before_it_is_told() -> None:
    bench = Bench()
    id = bench.save(1)
    harm(bench, id, 0, (0, 100))
    harm(bench, id, 1, (99, 200))
    mark = bench.mark()
    answer = judged(report(bench, id))
    assert answer.proved
    assert "2 damaged columns at one place, 2+1 mends 1" in answer.reason
    story = bench.story(mark, VerifyColumn, catalog.CheckpointDamaged, DamageJudged)
    assert [type(told) for told in story] == [
        *[VerifyColumn] * 3, catalog.CheckpointDamaged, DamageJudged,
    ]  # fmt: skip
    assert bench.states() == {str(id): "damaged"}


def test_nobody_walks_back_before_the_proof_is_durable() -> None:
    bench = Bench()
    bench.save(1)
    id = bench.save(2)
    for column in range(3):
        harm(bench, id, column, (0, 100))
    bench.persist_at_once = False
    session = bench.session()
    assert report(bench, id, session) == []
    (newest,) = bench.tell(bench.session(), Resolve(RUN, None))
    assert isinstance(newest, Resolved)
    assert newest.info.checkpoint == id
    bench.sync()
    assert judged(bench.to(session)).proved
    (newest,) = bench.tell(bench.session(), Resolve(RUN, None))
    assert isinstance(newest, Resolved)
    assert newest.info.checkpoint.step == 1


def test_damage_at_different_places_can_be_mended_and_proves_nothing() -> None:
    bench = Bench()
    id = bench.save(1)
    harm(bench, id, 0, (0, 100))
    harm(bench, id, 1, (100, 200))
    answer = judged(report(bench, id))
    assert (answer.proved, answer.reason) == (False, "at most 1 column is damaged at one place")
    assert bench.states() == {str(id): "committed"}


def test_columns_that_are_not_there_are_damaged_everywhere() -> None:
    bench = Bench()
    id = bench.save(1)
    holder(bench, id, 0).columns.clear()
    assert not judged(report(bench, id)).proved
    harm(bench, id, 2, (5, 6))
    assert judged(report(bench, id)).proved


def test_a_holder_that_is_away_leaves_everything_unproved() -> None:
    bench = Bench()
    id = bench.save(1)
    harm(bench, id, 0, (0, 100))
    harm(bench, id, 1, (0, 100))
    away = holder(bench, id, 2).id
    bench.stop(away)
    answer = judged(report(bench, id))
    assert (answer.proved, answer.reason) == (False, f"target {away} does not answer")
    bench.start(away)
    assert judged(report(bench, id)).proved


def test_a_holder_that_leaves_while_it_reads_or_fails_leaves_everything_unproved() -> None:
    for how in ("leaves", "fails"):
        bench = Bench()
        id = bench.save(1)
        for column in range(2):
            harm(bench, id, column, (0, 100))
        last = holder(bench, id, 2)
        session = bench.session()
        if how == "leaves":
            last.silent.add(VerifyColumn)
            assert report(bench, id, session) == []
            bench.stop(last.id)
        else:
            last.refuses[VerifyColumn] = Failed("unavailable", "its disk fails")
            report(bench, id, session)
        assert not judged(bench.to(session)).proved
        assert bench.states() == {str(id): "committed"}


def test_one_examination_answers_all_who_ask_meanwhile() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in bench.targets.values():
        target.silent.add(VerifyColumn)
    first, second = bench.session(), bench.session()
    mark = bench.mark()
    report(bench, id, first)
    report(bench, id, second)
    assert len(bench.sent(VerifyColumn, mark)) == 3
    for name in bench.targets:
        bench.let_answer(name)
    assert bench.to(first) == bench.to(second)
    assert not judged(bench.to(first)).proved


def test_what_is_known_to_be_lost_or_gone_is_answered_at_once() -> None:
    bench = Bench()
    id = bench.save(1)
    for column in range(2):
        harm(bench, id, column, (0, 100))
    report(bench, id)
    mark = bench.mark()
    assert judged(report(bench, id)).proved
    bench.tell(bench.session(), DeleteStep(RUN, Step(1)))
    assert "no longer there" in judged(report(bench, id)).reason
    assert bench.sent(VerifyColumn, mark) == []


def test_a_checkpoint_that_is_deleted_during_the_examination_never_becomes_a_damaged_one() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in bench.targets.values():
        target.silent.add(VerifyColumn)
    session = bench.session()
    report(bench, id, session)
    bench.tell(bench.session(), DeleteStep(RUN, Step(1)))
    for name in bench.targets:
        bench.let_answer(name)
    assert "no longer there" in judged(bench.to(session)).reason
    assert bench.states() == {str(id): "deleted"}
    bench.restart(*bench.targets)
    assert bench.states() == {str(id): "deleted"}


def restart_without(bench: Bench, id: CheckpointId, *columns: int) -> None:
    """Holders start again and no longer have these columns."""
    for column in columns:
        target = holder(bench, id, column)
        del target.columns[ColumnId(PayloadId(id, Rank(0)), ColumnNumber(column))]
        bench.stop(target.id)
        target.reboot()
        bench.start(target)


def test_columns_that_their_holders_come_back_without_are_judged_when_somebody_resolves() -> None:
    bench = Bench()
    old, new = bench.save(1), bench.save(2)
    restart_without(bench, new, 0, 1)
    reader = bench.session()
    mark = bench.mark()
    bench.tell(reader, Resolve(RUN, None))
    (answer,) = bench.to(reader, mark)
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint == old
    assert str(new) in answer.skipped[0]
    assert bench.states()[str(new)] == "damaged"


def test_one_holder_that_is_away_leaves_missing_columns_unjudged_until_it_is_back() -> None:
    bench = Bench()
    bench.save(1)
    new = bench.save(2)
    away = holder(bench, new, 2).id
    bench.stop(away)
    restart_without(bench, new, 0, 1)
    reader = bench.session()
    mark = bench.mark()
    assert bench.tell(reader, Resolve(RUN, None)) == []
    bench.tick(5)
    assert bench.sent(VerifyColumn, mark) == []
    bench.start(away)
    (answer,) = bench.to(reader, mark)
    assert isinstance(answer, Resolved)
    assert answer.info.checkpoint.step == 1


def test_a_catalog_made_again_proves_no_loss_while_any_target_is_away() -> None:
    """What had moved was known to the old catalog alone: it is found again as targets list."""
    bench = Bench(4)
    id = bench.save(1)
    away = next(t.id for t in bench.targets.values() if not t.columns)
    bench.rebuilt_term = bench.term
    bench.restart(*(one for one in bench.targets if one != away))
    restart_without(bench, id, 0, 1)
    unproved = judged(report(bench, id))
    assert not unproved.proved
    assert "away" in unproved.reason
    assert bench.tell(bench.session(), Resolve(RUN, None)) == []
    assert bench.states() == {str(id): "committed"}
    bench.start(away)
    assert judged(report(bench, id)).proved


def test_what_was_saved_since_a_catalog_was_made_again_is_where_its_index_says() -> None:
    bench = Bench(4)
    bench.rebuilt_term = bench.term
    bench.restart(*bench.targets)
    id = bench.save(1)
    away = next(t.id for t in bench.targets.values() if not t.columns)
    bench.stop(away)
    restart_without(bench, id, 0, 1)
    assert judged(report(bench, id)).proved


def test_a_suspicion_that_proves_nothing_is_examined_once_for_each_boot() -> None:
    bench = Bench()
    bench.save(1)
    new = bench.save(2)
    column = ColumnId(PayloadId(new, Rank(0)), ColumnNumber(0))
    kept = holder(bench, new, 0), holder(bench, new, 0).columns[column]
    restart_without(bench, new, 0, 1)
    kept[0].columns[column] = kept[1]  # It finds the file after all.
    mark = bench.mark()
    for _ in range(3):
        bench.tell(bench.session(), Resolve(RUN, None))
        bench.tick(1)
    assert len(bench.sent(VerifyColumn, mark)) == 3
    assert bench.states()[str(new)] == "committed"


@st.composite
def columns(draw: st.DrawFn) -> list[tuple[ByteRange, ...]]:
    """Damage as targets state it: ascending and apart, and sometimes empty ranges."""
    made = []
    for _ in range(draw(st.integers(0, 6))):
        edges = sorted(draw(st.sets(st.integers(0, 40), max_size=8)))
        pairs = zip(edges[::2], edges[1::2], strict=False)
        empty = draw(st.lists(st.integers(0, 40).map(lambda at: ByteRange(at, at)), max_size=2))
        made.append((*(ByteRange(*pair) for pair in pairs), *empty))
    return made


@given(columns())
def test_most_bad_is_the_depth_that_counting_byte_by_byte_finds(
    damage: list[tuple[ByteRange, ...]],
) -> None:
    depth = Counter(byte for ranges in damage for r in ranges for byte in range(r.start, r.end))
    assert most_bad(damage) == max(depth.values(), default=0)


@given(columns())
def test_most_bad_does_not_care_for_the_order_of_columns(
    damage: list[tuple[ByteRange, ...]],
) -> None:
    assert most_bad(damage) == most_bad(damage[::-1]) <= len(damage)
