"""A save that refers to bytes of an earlier commit: that home stays for it, and is counted in."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, Home, PayloadId, Rank
from ckpt.base.limits import HOMES_MAX
from ckpt.format.documents.record import decode_record
from ckpt.format.index.pages import Location
from ckpt.format.index.reader import decode_index
from ckpt.format.messages.asking import StepDeleted
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import DamageJudged, ReleasePin, ReportDamage, Resolve, Resolved
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import HomesRefused, PayloadGivenUp, PayloadPlanned
from ckpt.format.messages.targets import DropGeneration, PutDocument
from ckpt.format.table import Meaning, Piece, TensorEntry
from tests.protocol.coordinating import RUN, Bench, RankFake, own_entry
from tests.protocol.test_coordinator_deletion import delete, holders
from tests.protocol.test_coordinator_draining import WorkerFake, steps
from tests.protocol.test_coordinator_evicting import bench_with_room, drain_all
from tests.protocol.test_coordinator_judging import harm, holder

HELD_BYTES = 9_900
"""Of the one tensor that `Bench.save` writes."""


def referring_entry(home: CheckpointId) -> TensorEntry:
    """The tensor of `Bench.save`, and where it was written."""
    piece = Piece(0, 0, HELD_BYTES).at(home.generation)
    return TensorEntry("a", Meaning.OWN, "|u1", (HELD_BYTES,), (0,), (HELD_BYTES,), (piece,))


def referring(bench: Bench, *homes: CheckpointId) -> RankFake:
    """A rank whose tensor lies in the first of these."""
    rank = RankFake(bench, key="k", process=f"h/refers/{bench.mark()}", payload_bytes=4096)
    rank.homes = tuple(sorted(map(Home.of, homes)))
    rank.entries = (referring_entry(homes[0]),)
    return rank


def save_referring(bench: Bench, step: int, *homes: CheckpointId) -> CheckpointId:
    rank = referring(bench, *homes)
    rank.open(step)
    rank.seal_all()
    rank.certify()
    assert rank.commits(), rank.heard
    bench.close(rank.session)
    return rank.commits()[-1].info.checkpoint


def resolved(bench: Bench) -> Resolved:
    session = bench.session()
    (answer,) = bench.tell(session, Resolve(RUN, None))
    assert isinstance(answer, Resolved), answer
    bench.close(session)
    return answer


def only_there(bench: Bench, home: CheckpointId, other: CheckpointId) -> list[str]:
    """Targets with a column of the home and none of the other."""
    held = {
        id: {t.id for t in bench.targets.values() for c in t.columns if c.payload.checkpoint == id}
        for id in (home, other)
    }
    return sorted(held[home] - held[other])


def test_a_coordinator_says_that_it_understands_references() -> None:
    (joined,) = RankFake(Bench()).heard
    assert isinstance(joined, LaunchJoined)
    assert joined.references


def test_record_index_and_readers_know_the_home() -> None:
    bench = Bench(5)
    first = bench.save(1)
    id = save_referring(bench, 2, first)
    found = resolved(bench)
    assert found.info.checkpoint == id
    assert found.info.homes == (Home.of(first),)
    assert (found.info.payload_bytes, found.info.referenced_bytes) == (4096, HELD_BYTES)
    (record,) = found.homes
    assert decode_record(record).info.checkpoint == first
    assert {where.target for where in found.targets} >= set(holders(bench, first))
    documents = [t.documents.get((DocumentKind.INDEX, id)) for t in bench.targets.values()]
    index = decode_index(next(one for one in documents if one))
    (box,) = index.tensors[0].boxes
    assert box.locations == (Location(Rank(0), 0, 0, HELD_BYTES).at(first.generation),)


def test_a_home_that_is_named_but_not_used_is_let_go() -> None:
    bench = Bench(keep=1)
    used = bench.save(1)
    unused = save_referring(bench, 2, used)
    rank = referring(bench, used, unused)
    rank.open(3)
    rank.seal_all()
    rank.certify()
    assert rank.commits()[0].info.homes == (Home.of(used),)
    assert holders(bench, used) != []
    assert holders(bench, unused) == []


def test_a_home_that_lost_a_column_is_refused() -> None:
    bench = Bench(5)
    first = bench.save(1)
    bench.stop(holder(bench, first, 0).id)
    (answer,) = referring(bench, first).open(2)
    assert isinstance(answer, HomesRefused)
    assert "has lost columns" in answer.reason


def lose_a_copy_of_its_index(bench: Bench, id: CheckpointId) -> None:
    """A target that has no column of it gets an empty disk."""
    columns = {
        t.id for t in bench.targets.values() for c in t.columns if c.payload.checkpoint == id
    }
    index = (DocumentKind.INDEX, id)
    found = (t for t in bench.targets.values() if index in t.documents and t.id not in columns)
    target = next(found)
    bench.stop(target.id)
    target.documents.clear()
    target.reboot()
    bench.start(target)


def test_a_home_that_lost_a_copy_of_its_index_is_refused() -> None:
    bench = Bench(12, "2+2")
    first = bench.save(1)
    bench.restart(*bench.targets)
    rank = referring(bench, first)
    assert isinstance(rank.open(2)[0], PayloadPlanned)
    bench.close(rank.session)
    lose_a_copy_of_its_index(bench, first)
    (answer,) = referring(bench, first).open(3)
    assert isinstance(answer, HomesRefused)
    assert "has lost copies of its index" in answer.reason


def test_no_more_is_promised_than_the_home_s_index_outlives() -> None:
    bench = Bench(12, "2+2")
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    lose_a_copy_of_its_index(bench, first)
    rank.certify()
    info = rank.commits()[0].info
    assert (info.targets_survivable, info.domains_survivable) == (1, 1)


def test_all_ranks_together_may_refer_to_so_many_homes() -> None:
    bench = Bench(5)
    saved = [bench.save(step, world_size=2) for step in range(1, HOMES_MAX + 2)]
    ranks = [RankFake(bench, r, 2, process=f"h/late/{r}", payload_bytes=4096) for r in (0, 1)]
    ranks[0].homes = tuple(map(Home.of, saved[:-1]))
    ranks[0].open(10)
    assert ranks[0].plan is not None
    ranks[1].homes = (Home.of(saved[-1]),)
    (answer,) = ranks[1].open(10)
    assert isinstance(answer, HomesRefused)
    ranks[1].homes = (Home.of(saved[0]),)
    ranks[1].open(10)
    assert ranks[1].plan is not None
    assert ranks[1].payload.checkpoint == ranks[0].payload.checkpoint


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_home_stays_on_its_targets_until_nobody_refers_to_it(restarted: bool) -> None:
    bench = Bench()
    first = bench.save(1)
    second = save_referring(bench, 2, first)
    (answer,) = bench.tell(bench.session(), delete(1))
    assert answer == StepDeleted(0, 10_000)
    assert bench.states() == {str(first): "tombstoned", str(second): "committed"}
    if restarted:
        bench.restart(*bench.targets)
        bench.tick(5)
    assert len(holders(bench, first)) >= 3
    assert resolved(bench).info.checkpoint == second
    assert steps(bench) == [2]
    bench.tell(bench.session(), delete(2))
    assert bench.states() == {str(first): "deleted", str(second): "deleted"}
    assert holders(bench, first) == holders(bench, second) == []


def test_retention_counts_steps_and_keeps_their_homes() -> None:
    bench = Bench(keep=1)
    first = bench.save(1)
    for step in (2, 3, 4):
        newest = save_referring(bench, step, first)
        assert steps(bench) == [step]
        assert holders(bench, first) != []
    bench.save(5)
    assert holders(bench, first) == holders(bench, newest) == []
    assert steps(bench) == [5]


def test_what_a_reader_holds_keeps_its_home() -> None:
    bench = Bench()
    first = bench.save(1)
    second = save_referring(bench, 2, first)
    session = bench.session()
    (answer,) = bench.tell(session, Resolve(RUN, None))
    assert isinstance(answer, Resolved)
    for step in (1, 2):
        bench.tell(bench.session(), delete(step))
    assert holders(bench, first) != []
    bench.tell(session, ReleasePin(answer.pin))
    assert holders(bench, first) == holders(bench, second) == []


def test_an_attempt_holds_its_homes_and_lets_go_when_it_is_aborted() -> None:
    bench = Bench()
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    bench.tell(bench.session(), delete(1))
    assert holders(bench, first) != []
    rank.leave()
    bench.tell(rank.session, PayloadGivenUp(rank.payload, "failed", "its disk broke"))
    assert rank.aborts()
    assert holders(bench, first) == []


def test_an_attempt_whose_home_went_with_a_restart_is_aborted() -> None:
    bench = Bench()
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    bench.tell(bench.session(), delete(1))
    bench.restart(*bench.targets)
    bench.tick(1)
    assert holders(bench, first) == [], "nobody had said that it is needed"
    rank.reconnect()
    rank.resume(2, rank.payload.checkpoint)
    (aborted,) = rank.aborts()
    assert "was deleted meanwhile" in aborted.message


@pytest.mark.parametrize("away", [False, True])
def test_what_is_being_dropped_cannot_be_held_any_more(away: bool) -> None:
    """Behind a restart: a target has not dropped it yet, or is away and keeps its row."""
    bench = Bench()
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    bench.tell(bench.session(), delete(1))
    last = holders(bench, first)[0]
    for target in bench.targets.values():
        target.silent.add(DropGeneration)
    bench.restart(*(id for id in bench.targets if not (away and id == last)))
    bench.tick(30)
    rank.reconnect()
    rank.resume(2, rank.payload.checkpoint)
    rank.certify()
    assert not rank.commits()
    assert "was deleted meanwhile" in rank.aborts()[0].message
    if away:
        bench.start(last)
    for id in bench.targets:
        bench.let_answer(id)
    assert holders(bench, first) == holders(bench, rank.payload.checkpoint) == []


def test_a_late_repetition_that_opens_other_bytes_ends_the_attempt() -> None:
    bench = Bench(5)
    first = bench.save(1)
    away = holder(bench, first, 0).id
    bench.stop(away)
    rank = referring(bench, first)
    (refused,) = rank.open(2)
    assert isinstance(refused, HomesRefused)
    bench.start(away)
    bench.tell(rank.session, rank.question(2))  # The same question, which was long on its way.
    rank.homes, rank.payload_bytes = (), 10_000
    rank.ask(rank.question(2))
    (aborted,) = rank.aborts()
    assert "opened twice" in aborted.message
    rank.open(2)
    rank.entries = (own_entry(HELD_BYTES),)
    rank.seal_all()
    rank.certify()
    assert rank.commits()[0].info.homes == ()


def test_an_attempt_goes_on_after_a_restart_when_its_home_is_there() -> None:
    bench = Bench()
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    bench.restart(*bench.targets)
    bench.tick(1)
    rank.reconnect()
    rank.resume(2, rank.payload.checkpoint)
    bench.tell(bench.session(), delete(1))
    rank.certify()
    assert rank.commits()[0].info.homes == (Home.of(first),)
    assert holders(bench, first) != []


def test_no_more_is_promised_than_the_home_can_keep() -> None:
    bench = Bench(5, "1+2")
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    only_home = only_there(bench, first, rank.payload.checkpoint)[0]
    bench.stop(only_home)
    rank.certify()
    assert rank.commits()[0].info.targets_survivable == 1
    bench.start(only_home)
    view = bench.ask("show", RUN, 2)
    assert isinstance(view, dict)
    assert view["generations"][0]["targets_survivable"] == 2


def test_the_record_says_what_the_home_could_lose_at_the_commit() -> None:
    """It is all that a rebuilt catalog, or a reader of the documents alone, has."""
    bench = Bench(6, "1+2")
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    bench.stop(only_there(bench, first, rank.payload.checkpoint)[0])
    rank.certify()
    id = rank.commits()[0].info.checkpoint
    records = [t.documents.get((DocumentKind.RECORD, id)) for t in bench.targets.values()]
    told = [decode_record(record).info for record in records if record]
    assert {(info.targets_survivable, info.domains_survivable) for info in told} == {(1, 1)}
    assert {info.columns_missing for info in told} == {0}, "its own columns are all there"


def test_what_refers_to_a_home_that_is_gone_can_be_read_by_nobody() -> None:
    bench = Bench(4)
    first = bench.save(1)
    second = save_referring(bench, 2, first)
    checkpoints = bench.machine.checkpoints
    home, user = checkpoints.get(first), checkpoints.get(second)
    assert home is not None
    assert user is not None
    assert checkpoints.redundancy(user).targets == 1
    checkpoints.forget(home)
    assert checkpoints.redundancy(user).targets == -1
    assert not checkpoints.readable(user)


def test_what_a_reader_and_ls_are_told_is_the_least_of_the_checkpoint_and_its_homes() -> None:
    """P1: nobody is promised more than the home can keep, nor less than is missing there."""
    bench = Bench(12, "2+2", hosts=12)
    first = bench.save(1)
    id = save_referring(bench, 2, first)
    whole = resolved(bench).info
    assert (whole.targets_survivable, whole.columns_missing) == (2, 0)
    assert whole.domains_survivable == 2
    lost = only_there(bench, first, id)
    index_on = {t.id for t in bench.targets.values() if (DocumentKind.INDEX, id) in t.documents}
    bench.stop(next(one for one in lost if one not in index_on))
    now = resolved(bench).info
    assert now.checkpoint == id
    assert (now.targets_survivable, now.domains_survivable, now.columns_missing) == (1, 1, 1)
    view = bench.ask("show", RUN, 2)
    assert isinstance(view, dict)
    shown = view["generations"][0]
    assert (shown["targets_survivable"], shown["domains_survivable"]) == (1, 1)


def test_a_home_below_its_floor_is_waited_for_and_then_ends_the_attempt() -> None:
    bench = Bench(6)
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    bench.stop(only_there(bench, first, rank.payload.checkpoint)[0])
    rank.certify()
    assert not rank.commits()
    bench.tick(5)
    assert not rank.aborts()
    bench.tick(10)
    assert "which it refers to, can lose 0 targets" in rank.aborts()[0].message


def test_a_home_that_goes_below_its_floor_while_the_index_is_stored_is_waited_for() -> None:
    bench = Bench(6)
    first = bench.save(1)
    rank = referring(bench, first)
    rank.open(2)
    rank.seal_all()
    for target in bench.targets.values():
        target.silent.add(PutDocument)
    rank.certify()
    lost = only_there(bench, first, rank.payload.checkpoint)[0]
    bench.stop(lost)
    for id in sorted(set(bench.targets) - {lost}):
        bench.let_answer(id)
    assert not rank.commits()
    bench.start(lost)
    bench.let_answer(lost)
    bench.tick(1)
    assert rank.commits()


def test_it_cannot_be_read_while_its_home_cannot() -> None:
    bench = Bench(6)
    first = bench.save(1)
    second = save_referring(bench, 2, first)
    lost = only_there(bench, first, second)
    bench.stop(*lost[:2])
    session = bench.session()
    bench.tell(session, Resolve(RUN, delete(2).step, timeout_us=1_000_000))
    bench.tick(2)
    failed = bench.to(session)[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "unavailable"
    assert lost[0] in failed.message


def test_damage_of_a_home_is_damage_of_what_is_read() -> None:
    bench = Bench()
    first = bench.save(1)
    second, third = save_referring(bench, 2, first), save_referring(bench, 3, first)
    for column in (0, 1):
        harm(bench, first, column, (0, 100))
    message = ReportDamage(PayloadId(first, Rank(0)), "rotten", reading=third)
    (judged,) = bench.tell(bench.session(), message)
    assert judged == DamageJudged(True, judged.reason)  # type: ignore[union-attr]
    assert bench.states() == {
        str(first): "damaged", str(second): "committed", str(third): "damaged",
    }  # fmt: skip
    (judged,) = bench.tell(bench.session(), replace(message, reading=second))
    assert judged.proved  # type: ignore[union-attr]
    assert bench.states()[str(second)] == "damaged"


def test_damage_of_a_deleted_home_is_proved_all_the_same() -> None:
    bench = Bench()
    first = bench.save(1)
    second = save_referring(bench, 2, first)
    bench.tell(bench.session(), delete(1))
    message = ReportDamage(PayloadId(first, Rank(0)), "rotten", reading=second)
    (judged,) = bench.tell(bench.session(), message)
    assert not judged.proved  # type: ignore[union-attr]
    for column in (0, 1):
        harm(bench, first, column, (0, 100))
    (judged,) = bench.tell(bench.session(), message)
    assert judged.proved  # type: ignore[union-attr]
    assert bench.states() == {str(first): "tombstoned", str(second): "damaged"}


def test_a_report_about_another_checkpoint_s_bytes_proves_nothing() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    for column in (0, 1):
        harm(bench, first, column, (0, 100))
    message = ReportDamage(PayloadId(first, Rank(0)), "rotten", reading=second)
    (judged,) = bench.tell(bench.session(), message)
    assert not judged.proved  # type: ignore[union-attr]
    assert set(bench.states().values()) == {"committed"}


def test_columns_of_a_home_that_came_back_empty_are_looked_for_unasked() -> None:
    bench = Bench(6)
    first = bench.save(1)
    second = save_referring(bench, 2, first)
    for column in (0, 1):
        wanted = ColumnId(PayloadId(first, Rank(0)), ColumnNumber(column))
        target = next(t for t in bench.targets.values() if wanted in t.columns)
        bench.stop(target.id)
        del target.columns[wanted]
        bench.start(target)
    bench.tell(bench.session(), Resolve(RUN, delete(2).step))
    assert bench.states()[str(second)] == "damaged"


def test_the_home_of_what_stays_is_not_evicted() -> None:
    bench = bench_with_room()
    worker = WorkerFake(bench)
    first = bench.save(1)
    for step in range(2, 8):
        save_referring(bench, step, first)
    drain_all(worker)
    bench.tick(5)
    assert 1 in steps(bench)
    assert steps(bench) != [1, 2, 3, 4, 5, 6, 7]
    assert bench.asked("t0", DropGeneration) == [
        drop for drop in bench.asked("t0", DropGeneration) if drop.checkpoint != first
    ]
