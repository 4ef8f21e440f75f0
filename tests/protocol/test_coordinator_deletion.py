"""How checkpoints go away: tombstone first, columns when nobody reads them, rows at the last."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    PayloadId,
    Rank,
    Step,
    TargetId,
)
from ckpt.format.documents.record import decode_tombstone
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    CommitInfo,
    PayloadGivenUp,
)
from ckpt.format.messages.targets import DropGeneration, ListHoldings, PutDocument
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.keeping import deletion
from ckpt.protocol.events import Send, Session
from tests.protocol.coordinating import RUN, Bench, RankFake

TOMBSTONE = DocumentKind.TOMBSTONE


def delete(step: int) -> DeleteStep:
    return DeleteStep(RUN, Step(step))


def holders(bench: Bench, id: CheckpointId) -> list[TargetId]:
    return [t.id for t in bench.targets.values() if t.holds(id)]


def buried_on(bench: Bench, id: CheckpointId) -> list[str]:
    return [t.id for t in bench.targets.values() if (TOMBSTONE, id) in t.documents]


def pin(bench: Bench) -> tuple[Session, int]:
    """A reader's session and its pin of the newest step."""
    session = bench.session()
    (answer,) = bench.tell(session, Resolve(RUN, None))
    assert isinstance(answer, Resolved)
    return session, answer.pin


def test_row_and_tombstones_are_durable_before_the_answer_and_columns_go_behind_it() -> None:
    bench = Bench()
    id = bench.save(1)
    mark = bench.mark()
    (answer,) = bench.tell(bench.session(), delete(1))
    assert answer == StepDeleted(10_000)
    story = bench.story(
        mark, catalog.CheckpointTombstoned, PutDocument, StepDeleted, DropGeneration,
        catalog.CheckpointDeleted,
    )  # fmt: skip
    assert [type(told) for told in story] == [
        catalog.CheckpointTombstoned, PutDocument, PutDocument, StepDeleted,
        *[DropGeneration] * 4, catalog.CheckpointDeleted, *[DropGeneration] * 2,
    ]  # fmt: skip
    drops = [told for told in story if isinstance(told, DropGeneration)]
    assert [drop.tombstone for drop in drops] == [False] * 4 + [True] * 2
    assert (holders(bench, id), buried_on(bench, id)) == ([], [])
    puts = [a for a in bench.log[mark:] if isinstance(a, Send)]
    document = next(bytes(a.bulk) for a in puts if isinstance(a.message, PutDocument))
    assert decode_tombstone(document).reason == "deleted on request"


def test_tombstones_stay_until_every_target_that_ever_was_here_holds_nothing_more() -> None:
    for restarted in (False, True):
        bench = Bench(8)
        id = bench.save(1)
        unnamed = next(t.id for t in bench.targets.values() if not t.holds(id))
        bench.stop(unnamed)
        bench.tell(bench.session(), delete(1))
        assert bench.states() == {str(id): "deleted"}
        assert len(buried_on(bench, id)) == 2, "who is away may hold a record"
        if restarted:
            bench.restart(*(one for one in bench.targets if one != unnamed))
            bench.tick(1)
        assert len(buried_on(bench, id)) == 2
        bench.start(unnamed)
        assert buried_on(bench, id) == []
        assert bench.states() == {str(id): "deleted"}


def test_a_target_that_did_not_confirm_its_drop_keeps_the_tombstones_in_place() -> None:
    bench = Bench()
    id = bench.save(1)
    silent = next(t for t in bench.targets.values() if not t.holds(id))
    silent.silent.add(DropGeneration)
    bench.tell(bench.session(), delete(1))
    assert bench.states() == {str(id): "deleted"}
    assert len(buried_on(bench, id)) == 2
    bench.let_answer(silent.id)
    assert buried_on(bench, id) == []


def test_a_tombstone_that_is_stored_when_all_else_is_gone_goes_too() -> None:
    bench = Bench()
    id = bench.save(1)
    late = next(t for t in bench.targets.values() if t.holds(id))
    late.silent.add(PutDocument)
    bench.tell(bench.session(), delete(1))
    bench.tick(2)
    assert bench.states() == {str(id): "deleted"}
    assert buried_on(bench, id) == []
    bench.let_answer(late.id)
    assert buried_on(bench, id) == []


def test_a_tombstone_that_could_not_be_removed_goes_when_its_target_comes_back() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.persist_at_once = False
    bench.tell(bench.session(), delete(1))
    bench.sync()
    assert len(buried_on(bench, id)) == 2, "the row does not say yet that it is deleted"
    holder = bench.targets[TargetId(buried_on(bench, id)[0])]
    holder.refuses[DropGeneration] = Failed("failed", "EIO")
    bench.sync()
    bench.persist_at_once = True
    assert buried_on(bench, id) == [holder.id]
    holder.refuses.clear()
    bench.stop(holder.id)
    holder.reboot()
    bench.start(holder)
    assert buried_on(bench, id) == []


def saved_and_left(bench: Bench) -> tuple[RankFake, CommitInfo]:
    """A rank that saved step 1, and what its answer was."""
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    rank.certify()
    bench.close(rank.session)
    return rank, rank.commits()[0].info


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stager_that_asks_after_the_deletion_hears_of_a_commit_that_survives_nothing_more(
    restarted: bool,
) -> None:
    bench = Bench(keep=1)
    rank, first = saved_and_left(bench)
    bench.save(2)
    assert bench.states()[str(first.checkpoint)] == "deleted"
    if restarted:
        bench.restart(*bench.targets)
    rank.reconnect()
    (told,) = rank.resume(1, first.checkpoint)
    assert told == AttemptCommitted(replace(first, targets_survivable=0, domains_survivable=0)), (
        "found by the simulator's seeds 2269 and 4136: it heard of an abort"
    )


def test_a_step_that_is_deleted_and_still_read_is_promised_to_survive_nothing() -> None:
    """Its columns are there, and go with the reader's pin."""
    bench = Bench()
    rank, first = saved_and_left(bench)
    pin(bench)
    bench.tell(bench.session(), delete(1))
    assert bench.states()[str(first.checkpoint)] == "tombstoned"
    rank.reconnect()
    (told,) = rank.resume(1, first.checkpoint)
    assert told == AttemptCommitted(replace(first, targets_survivable=0, domains_survivable=0)), (
        "found by the simulator's seeds 1350708 and 1357772: it was promised to survive"
    )


def test_what_nobody_knows_any_more_is_not_said_to_have_been_aborted_for_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "GONE_ROWS_MAX", 0)
    monkeypatch.setattr(deletion, "GONE_ROWS_BATCH", 1)
    monkeypatch.setattr("ckpt.protocol.coordinator.saving.ending.ENDED_KEPT", 0)
    bench = Bench(keep=1)
    id = bench.save(1)
    bench.save(2)
    bench.save(3)
    assert str(id) not in bench.states()
    (told,) = RankFake(bench).resume(1, id)
    assert isinstance(told, AttemptAborted)
    assert told.message == f"{id} is not known: it was aborted, or deleted long ago"


def test_nothing_is_told_or_dropped_before_the_row_is_durable() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.persist_at_once = False
    session = bench.session()
    assert bench.tell(session, delete(1)) == []
    assert (len(holders(bench, id)), buried_on(bench, id)) == (3, [])
    bench.sync()
    assert bench.to(session) == [StepDeleted(10_000)]


def test_a_deleted_step_is_not_found_nor_listed_and_the_step_before_it_is_the_newest() -> None:
    bench = Bench()
    bench.save(1)
    bench.save(2)
    session = bench.session()
    bench.tell(session, delete(2))
    for question in (delete(2), Resolve(RUN, Step(2))):
        (failed,) = bench.tell(session, question)
        assert isinstance(failed, Failed)
        assert failed.code == "not_found"
    (newest,) = bench.tell(session, Resolve(RUN, None))
    assert isinstance(newest, Resolved)
    assert newest.info.checkpoint.step == 1
    listed = bench.ask("steps", RUN)
    assert isinstance(listed, list)
    assert [view["step"] for view in listed] == [1]


def test_a_deletion_whose_answer_was_lost_is_done_when_it_is_asked_again() -> None:
    """As `ckpt rm` asks the next leader, whose targets had the tombstone before it came."""
    bench = Bench()
    bench.save(1)
    bench.save(2)
    bench.tell(bench.session(), delete(1))
    bench.restart(*bench.targets)
    bench.tick()
    session = bench.session()
    assert bench.tell(session, replace(delete(1), repeated=True)) == [StepDeleted(10_000)]
    (never,) = bench.tell(session, replace(delete(3), repeated=True))
    assert (type(never), "run@3" in getattr(never, "message", "")) == (Failed, True)
    assert bench.tell(session, replace(delete(2), repeated=True)) == [StepDeleted(10_000)]


def test_a_pin_holds_the_columns_of_a_deleted_step_until_it_is_released() -> None:
    for ending in ("released", "session closed"):
        bench = Bench()
        id = bench.save(1)
        session, number = pin(bench)
        (answer,) = bench.tell(bench.session(), delete(1))
        assert answer == StepDeleted(10_000), "the answer does not wait for readers"
        assert (len(holders(bench, id)), bench.states()) == (3, {str(id): "tombstoned"})
        if ending == "released":
            bench.tell(session, ReleasePin(number))
        else:
            bench.close(session)
        assert (holders(bench, id), bench.states()) == ([], {str(id): "deleted"})


def test_a_pin_that_is_released_before_the_tombstone_lies_on_targets_drops_nothing() -> None:
    bench = Bench()
    id = bench.save(1)
    session, number = pin(bench)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    bench.tell(bench.session(), delete(1))
    bench.tell(session, ReleasePin(number))
    assert len(holders(bench, id)) == 3
    for name in bench.targets:
        bench.let_answer(name)
    assert holders(bench, id) == []


def test_without_targets_a_deletion_waits_and_a_repeated_question_waits_for_the_same() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    first, second = bench.session(), bench.session()
    assert bench.tell(first, delete(1)) == []
    assert bench.tell(second, delete(1)) == []
    assert bench.states() == {str(id): "tombstoned"}
    bench.stop(*bench.targets)
    bench.tick(10)
    for name, target in bench.targets.items():
        target.silent.clear()
        bench.start(name)
    bench.tick()
    assert bench.to(first) == bench.to(second) == [StepDeleted(10_000)]
    assert bench.states() == {str(id): "deleted"}


def test_after_a_restart_tombstones_are_spread_again_before_anything_is_dropped() -> None:
    bench = Bench()
    id = bench.save(1)
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    bench.tell(bench.session(), delete(1))
    for target in bench.targets.values():
        target.silent.clear()
    bench.restart("t0")
    bench.tick(1)
    assert len(holders(bench, id)) == 3, "one target is not m + 1"
    mark = bench.mark()
    for name in ("t1", "t2", "t3"):
        bench.start(name)
    bench.tick()
    puts = bench.story(mark, PutDocument, DropGeneration)
    assert isinstance(puts[0], PutDocument)
    assert (holders(bench, id), buried_on(bench, id)) == ([], [])
    assert bench.states() == {str(id): "deleted"}


def test_a_row_that_everybody_dropped_before_a_crash_is_closed_after_it() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.tell(bench.session(), delete(1))
    bench.durable = [e for e in bench.durable if not isinstance(e, catalog.CheckpointDeleted)]
    assert bench.states() == {str(id): "tombstoned"}
    bench.restart(*bench.targets)
    bench.tick(1)
    assert bench.states() == {str(id): "deleted"}


def test_a_target_that_was_away_is_dropped_from_when_it_comes_back_and_closes_the_row() -> None:
    for restarted in (False, True):
        bench = Bench()
        id = bench.save(1)
        away = next(iter(holders(bench, id)))
        bench.stop(away)
        bench.tell(bench.session(), delete(1))
        assert (holders(bench, id), bench.states()) == ([away], {str(id): "tombstoned"})
        if restarted:
            bench.restart(*(set(bench.targets) - {away}))
            bench.tick(7)
        bench.targets[away].reboot()
        bench.start(away)
        bench.tick()
        assert (holders(bench, id), bench.states()) == ([], {str(id): "deleted"})


def test_a_target_that_is_still_being_listed_has_not_confirmed_anything() -> None:
    bench = Bench()
    id = bench.save(1)
    back = holders(bench, id)[0]
    bench.stop(back)
    bench.targets[back].silent.add(ListHoldings)
    bench.start(back)
    bench.targets[back].silent.add(DropGeneration)
    bench.tell(bench.session(), delete(1))
    assert bench.states() == {str(id): "tombstoned"}
    bench.let_answer(back)
    bench.tick()
    assert (holders(bench, id), bench.states()) == ([], {str(id): "deleted"})


def test_a_target_that_could_not_drop_is_told_again_when_it_comes_back() -> None:
    bench = Bench()
    id = bench.save(1)
    name = holders(bench, id)[0]
    target = bench.targets[name]
    target.refuses[DropGeneration] = Failed("failed", "its disk fails")
    bench.tell(bench.session(), delete(1))
    assert bench.states() == {str(id): "tombstoned"}
    target.refuses.clear()
    bench.stop(name)
    target.reboot()
    bench.start(name)
    assert (holders(bench, id), bench.states()) == ([], {str(id): "deleted"})


def test_a_target_that_could_not_drop_is_asked_again_while_it_stays() -> None:
    bench = Bench()
    id = bench.save(1)
    target = next(t for t in bench.targets.values() if t.holds(id))
    target.refuses[DropGeneration] = Failed("unavailable", "its term cannot be made durable")
    bench.tell(bench.session(), delete(1))
    bench.tick(10 * deletion.DROP_RETRY_US / 1e6)
    assert bench.states() == {str(id): "tombstoned"}
    target.refuses.clear()
    bench.tick(2 * deletion.DROP_RETRY_US / 1e6)
    assert bench.states() == {str(id): "deleted"}
    assert (holders(bench, id), buried_on(bench, id)) == ([], [])


def test_columns_of_an_aborted_save_are_dropped_also_from_targets_that_were_away() -> None:
    for restarted in (False, True):
        bench = Bench()
        rank = RankFake(bench)
        rank.open(1)
        rank.seal_all()
        id = rank.payload.checkpoint
        bench.stop("t0")
        bench.tell(rank.session, PayloadGivenUp(rank.payload, "aborted", "gone"))
        assert holders(bench, id) == ["t0"]
        if restarted:
            bench.restart("t1", "t2", "t3")
        bench.targets[next(iter(bench.targets))].reboot()
        bench.start("t0")
        assert holders(bench, id) == []


def test_columns_of_a_generation_that_nobody_knows_are_left_alone() -> None:
    bench = Bench()
    id = bench.save(1)
    bench.durable = [e for e in bench.durable if getattr(e, "checkpoint", None) != id]
    bench.restart(*bench.targets)
    bench.tick(10)
    assert len(holders(bench, id)) == 3


# --------------------------------------------------------------------------- rows


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 3 rows of gone generations, 2 more before they are forgotten."""
    monkeypatch.setattr(deletion, "GONE_ROWS_MAX", 3)
    monkeypatch.setattr(deletion, "GONE_ROWS_BATCH", 2)


@pytest.mark.usefixtures("few_rows")
def test_the_oldest_rows_of_gone_generations_are_forgotten_durably() -> None:
    bench = Bench(keep=1)
    for step in range(5):
        bench.save(step)
    assert len(bench.states()) == 5
    mark = bench.mark()
    bench.save(5)
    told = bench.story(mark, catalog.RowForgotten)
    forgotten = [str(row.checkpoint) for row in told if isinstance(row, catalog.RowForgotten)]
    assert forgotten == ["run@0#1.1", "run@1#1.2"]
    assert list(bench.states()) == ["run@2#1.3", "run@3#1.4", "run@4#1.5", "run@5#1.6"]
    bench.restart(*bench.targets)
    assert len(bench.machine.deleter.gone) == 3


@pytest.mark.usefixtures("few_rows")
def test_the_newest_row_of_a_run_stays_for_it_says_which_launch_has_begun() -> None:
    bench = Bench(keep=1)
    old = RankFake(bench, run="fenced", key="old")
    new = RankFake(bench, run="fenced", key="new")
    new.open(1)
    bench.tell(new.session, PayloadGivenUp(new.payload, "aborted", "gone"))
    for step in range(9):
        bench.save(step)
    assert "fenced@1#1.1" in bench.states()
    bench.restart(*bench.targets)
    old.reconnect()
    (failed,) = old.open(2)
    assert isinstance(failed, Failed)
    assert failed.code == "fenced"


@pytest.mark.usefixtures("few_rows")
def test_a_row_that_waits_for_its_targets_is_never_forgotten() -> None:
    bench = Bench(5, keep=1)
    first = bench.save(0)
    away = holders(bench, first)[0]
    bench.stop(away)
    for step in range(1, 9):
        bench.save(step)
    assert bench.states()[str(first)] == "tombstoned"
    bench.targets[away].reboot()
    bench.start(away)
    assert holders(bench, first) == []


def test_a_late_column_of_a_committed_save_is_dropped_when_its_target_comes_back() -> None:
    bench = Bench()
    id = bench.save(1)
    spare = next(iter(set(bench.targets) - set(holders(bench, id))))
    bench.stop(spare)
    target = bench.targets[spare]
    target.boot = BootId(77)
    column = ColumnId(PayloadId(id, Rank(0)), ColumnNumber(0))
    target.columns[column] = target.proof(column, "2+1", 10_000)
    bench.start(spare)
    assert target.columns == {}
    assert bench.states() == {str(id): "committed"}
