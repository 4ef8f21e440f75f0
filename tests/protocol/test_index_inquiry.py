"""An index is lost when all that should hold a copy have answered and no whole one is left."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CheckpointId, PayloadId, Rank
from ckpt.format.index.pages import HEADER_BYTES
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import DamageJudged, ReportDamage, Resolve, Resolved
from ckpt.format.messages.reading import DocumentKind, ReadDocument
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.keeping import index_inquiry
from ckpt.protocol.events import Session
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, Bench

INDEX = DocumentKind.INDEX


def report(bench: Bench, id: CheckpointId, session: Session | None = None) -> list[Message]:
    message = ReportDamage(PayloadId(id, Rank(7)), "no copy is whole", index=True)
    return bench.tell(session or bench.session(), message)


def judged(answers: list[Message]) -> DamageJudged:
    (answer,) = answers
    assert isinstance(answer, DamageJudged)
    return answer


def holders(bench: Bench, id: CheckpointId) -> list[FakeTarget]:
    found = [t for t in bench.targets.values() if (INDEX, id) in t.documents]
    assert len(found) >= 2, "m + 1"
    return found


def flip(target: FakeTarget, id: CheckpointId, *places: int) -> None:
    document = bytearray(target.documents[INDEX, id])
    for place in places:
        document[place] ^= 1
    target.documents[INDEX, id] = bytes(document)


def behead(target: FakeTarget, id: CheckpointId) -> None:
    """Neither copy of the header is whole here."""
    flip(target, id, 21, HEADER_BYTES + 21)


def test_an_index_that_no_target_has_is_lost_durably_before_it_is_told() -> None:
    bench = Bench()
    bench.save(1)
    id = bench.save(2)
    for target in holders(bench, id):
        del target.documents[INDEX, id]
    mark = bench.mark()
    answer = judged(report(bench, id))
    assert answer.proved
    assert "run@2#1.2 has no index any more: target t0 has no copy" in answer.reason
    story = bench.story(mark, catalog.CheckpointDamaged, DamageJudged)
    assert [type(told) for told in story] == [catalog.CheckpointDamaged, DamageJudged]
    (newest,) = bench.tell(bench.session(), Resolve(RUN, None))
    assert isinstance(newest, Resolved)
    assert newest.info.checkpoint.step == 1
    assert newest.skipped == (f"{id}: it {answer.reason.removeprefix(f'{id} ')}",)
    assert judged(report(bench, id)) == answer, "asked again, it is known"


def test_one_whole_copy_is_enough() -> None:
    bench = Bench()
    id = bench.save(1)
    first, *others = holders(bench, id)
    flip(first, id, 0, len(first.documents[INDEX, id]) // 2)
    for target in others[:-1]:
        del target.documents[INDEX, id]
    answer = judged(report(bench, id))
    assert not answer.proved
    assert f"is whole on target {others[-1].id}" in answer.reason
    assert bench.states() == {str(id): "committed"}


def test_copies_that_mend_each_other_are_an_index() -> None:
    bench = Bench()
    id = bench.save(1)
    for target, place in zip(holders(bench, id), (20, 5000), strict=False):
        size = len(target.documents[INDEX, id])
        flip(target, id, min(place, size - 1))
    answer = judged(report(bench, id))
    assert not answer.proved
    assert "mend each other" in answer.reason


def test_copies_that_are_all_damaged_past_repair_are_none() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in holders(bench, id):
        target.documents[INDEX, id] = bytes(len(target.documents[INDEX, id]))
    assert judged(report(bench, id)).proved
    assert bench.states() == {str(id): "damaged"}


@pytest.mark.parametrize("why", ["down", "silent", "refuses"])
def test_a_target_that_does_not_answer_leaves_it_unproved(why: str) -> None:
    bench = Bench()
    id = bench.save(1)
    first, *others = holders(bench, id)
    for target in others:
        del target.documents[INDEX, id]
    session = bench.session()
    if why == "down":
        bench.stop(first.id)
    elif why == "silent":
        first.silent.add(ReadDocument)
    else:
        first.refuses[ReadDocument] = Failed("unavailable", "the disk is busy")
    answers = report(bench, id, session)
    if why == "silent":
        assert answers == []
        bench.stop(first.id)
        answers = bench.to(session)
    answer = judged(answers)
    assert not answer.proved
    assert first.id in answer.reason
    assert bench.states() == {str(id): "committed"}


def test_all_who_report_at_once_hear_one_verdict() -> None:
    bench = Bench()
    id = bench.save(1)
    first, *others = holders(bench, id)
    for target in (first, *others):
        del target.documents[INDEX, id]
    first.silent.add(ReadDocument)
    sessions = [bench.session(), bench.session()]
    for session in sessions:
        assert report(bench, id, session) == []
    mark = bench.mark()
    first.silent.clear()
    bench.let_answer(first.id)
    assert all(judged(bench.to(session)).proved for session in sessions)
    asked = [t.id for t in bench.targets.values() if bench.asked(t.id, ReadDocument, mark)]
    assert sorted(asked) == sorted(t.id for t in others)


def test_a_copy_that_comes_in_parts_is_put_together() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in bench.targets.values():
        target.part_bytes = 1000
    answer = judged(report(bench, id))
    assert not answer.proved
    assert "is whole on target" in answer.reason


@pytest.mark.parametrize("part_bytes", [100, 4096, 1 << 20])
def test_copies_larger_than_a_question_are_judged_part_by_part(
    monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(index_inquiry, "PART_BYTES", part_bytes)
    bench = Bench()
    bench.save(1)
    id = bench.save(2)
    size = len(holders(bench, id)[0].documents[INDEX, id])
    for number, target in enumerate(holders(bench, id)):
        flip(target, id, (20, size - 1)[number % 2])
    mark = bench.mark()
    answer = judged(report(bench, id))
    assert not answer.proved
    assert "mend each other" in answer.reason
    asked = [
        question for target in bench.targets for question in bench.asked(target, ReadDocument, mark)
    ]
    assert asked
    assert all((q.end or size) - q.start <= part_bytes for q in asked)
    for target in holders(bench, id):
        behead(target, id)
    assert judged(report(bench, id)).proved, "no copy of either header is left"
    assert bench.states()[str(id)] == "damaged"


def test_a_target_that_goes_while_copies_are_compared_leaves_it_unproved() -> None:
    bench = Bench()
    id = bench.save(1)
    first, *_, last = holders(bench, id)
    for target in holders(bench, id):
        behead(target, id)
    last.silent.add(ReadDocument)
    session = bench.session()
    assert report(bench, id, session) == []
    first.silent.add(ReadDocument)
    bench.let_answer(last.id)
    assert bench.to(session) == [], "each was looked at, now they are compared"
    bench.stop(first.id)
    answer = judged(bench.to(session))
    assert not answer.proved
    assert first.id in answer.reason
    assert bench.states() == {str(id): "committed"}


def test_what_a_disk_cannot_read_damages_a_copy_and_nothing_more() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in holders(bench, id):
        target.refuses[ReadDocument] = Failed("corrupt", "cannot be read at 0")
    answer = judged(report(bench, id))
    assert answer.proved
    assert "is damaged" in answer.reason


def test_an_index_of_a_deleted_step_is_no_longer_there_and_never_damaged() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.tell(bench.session(), DeleteStep(RUN, id.step))
    assert judged(report(bench, id)).reason.endswith("is no longer there")
