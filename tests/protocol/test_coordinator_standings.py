"""How targets stand: what people may say of them, what speaks against it, and what follows."""

from __future__ import annotations

import dataclasses

import pytest

from ckpt.base.ids import CheckpointId, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import (
    ChangeTarget,
    DeleteStep,
    ReplaceTarget,
    TargetChanged,
    TargetReplaced,
)
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DropColumn
from ckpt.protocol.coordinator.catalog import ColumnsMoved, RowState, TargetSeen, TargetStanding
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US, TargetState
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_repairing import (
    AFTER_S,
    LOOK_S,
    NOTHING,
    Worker,
    holders,
    missing,
    rot,
)

GATHERED_S = GATHERING_US / SECOND_US


def change(bench: Bench, target: TargetId | str, standing: str, **more: bool) -> Message:
    """What an operator is answered."""
    question = ChangeTarget(TargetId(target), standing, **more)
    (answer,) = bench.tell(bench.session(Role.ADMIN), question)
    return answer


def done(answer: Message) -> TargetChanged:
    assert isinstance(answer, TargetChanged), answer
    return answer


def refused(answer: Message, *words: str) -> None:
    assert isinstance(answer, Failed)
    assert all(word in answer.message for word in words), answer.message


def places(bench: Bench, step: int) -> set[TargetId]:
    """Where the columns of another save go."""
    rank = RankFake(bench, world_size=1)
    rank.join()
    rank.open(step)
    rank.take_plan()
    assert rank.plan is not None
    return {place.target for place in rank.plan.places}


def kept(bench: Bench, id: CheckpointId) -> KeptCheckpoint:
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    return checkpoint


def make_again(bench: Bench) -> int:
    """One payload; so many columns counted."""
    worker = Worker(bench)
    if worker.lease() == NOTHING:
        return 0
    count = len(worker.leased.lost)
    worker.seal()
    worker.end()
    bench.tick(LOOK_S)
    return count


def drained(bench: Bench, target: FakeTarget) -> None:
    done(change(bench, target.id, "draining"))
    bench.tick(LOOK_S)
    while make_again(bench):
        bench.tick(LOOK_S)


# ----------------------------------------------------------------------- what follows


@pytest.mark.parametrize("standing", ["draining", "out"])
def test_nothing_new_goes_to_a_target_that_is_not_in(standing: str) -> None:
    bench = Bench(4)
    answer = done(change(bench, "t1", standing))
    assert (answer.was, answer.standing, answer.columns) == ("in", standing, 0)
    assert all("t1" not in places(bench, step) for step in (1, 2, 3))
    done(change(bench, "t1", "in"))
    assert any("t1" in places(bench, step) for step in (4, 5, 6, 7))


def test_what_a_draining_target_has_counts_until_it_is_elsewhere_and_goes_then() -> None:
    bench = Bench(5)
    id = bench.save(1)
    leaving = holders(bench, id)[1]
    answer = done(change(bench, leaving.id, "draining"))
    assert answer.columns == 1
    assert answer.bytes > 0
    bench.tick(LOOK_S)
    assert missing(bench, id) == 0
    mark = bench.mark()
    assert make_again(bench) == 1
    assert leaving not in holders(bench, id)
    assert missing(bench, id) == 0
    assert len(bench.asked(leaving.id, DropColumn, mark)) == 1
    assert not leaving.columns
    assert make_again(bench) == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_data_column_is_read_where_it_is_and_parity_is_made_of_the_others(number: int) -> None:
    bench = Bench(5)
    id = bench.save(1)
    done(change(bench, holders(bench, id)[number].id, "draining"))
    bench.tick(LOOK_S)
    worker = Worker(bench)
    (one,) = worker.lease().lost
    assert (one.column, one.alone) == (number, number < bench.policy.code.k)


def test_one_in_which_damage_was_found_is_made_of_the_others() -> None:
    bench = Bench(5)
    id = bench.save(1)
    target = holders(bench, id)[0]
    rot(target, next(iter(target.columns)))
    bench.tick(3)
    done(change(bench, target.id, "draining"))
    bench.tick(LOOK_S)
    (one,) = Worker(bench).lease().lost
    assert (one.column, one.alone) == (0, False)


def test_copies_of_documents_leave_it_too() -> None:
    bench = Bench(5)
    id = bench.save(1)
    leaving = bench.targets[kept(bench, id).index_targets[0]]
    bench.tick(GATHERED_S)
    drained(bench, leaving)
    for kind in (DocumentKind.INDEX, DocumentKind.RECORD):
        having = {t.id for t in bench.targets.values() if (kind, id) in t.documents}
        assert len(having - {leaving.id}) == kept(bench, id).document_copies
    assert done(change(bench, leaving.id, "draining")).documents == 0
    copied = bench.machine.repairs.documents.copied
    bench.tick(3 * LOOK_S)
    assert bench.machine.repairs.documents.copied == copied


def test_a_column_moves_from_no_draining_target_to_another_draining_one() -> None:
    bench = Bench(6)
    id = bench.save(1)
    first = holders(bench, id)[1]
    done(change(bench, first.id, "draining"))
    bench.tick(LOOK_S)
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    second = bench.targets[worker.places[0]]
    done(change(bench, second.id, "draining", force=True))
    mark = bench.mark()
    worker.end()
    bench.tick(1)
    assert bench.story(mark, ColumnsMoved) == []
    assert first in holders(bench, id)
    assert make_again(bench) == 1
    assert not {first.id, second.id} & {target.id for target in holders(bench, id)}
    assert not first.columns
    assert not second.columns


def test_what_is_missing_on_one_that_is_out_is_made_again_at_once() -> None:
    bench = Bench(6, "2+2")
    id = bench.save(1)
    gone = holders(bench, id)[1]
    bench.stop(gone.id)
    bench.tick(2 * LOOK_S + 20)
    assert make_again(bench) == 0
    done(change(bench, gone.id, "out"))
    bench.tick(LOOK_S)
    assert make_again(bench) == 1
    assert missing(bench, id) == 0


def test_one_that_is_out_and_away_is_no_alarm() -> None:
    bench = Bench(5)
    bench.stop("t4")
    names = [each["name"] for each in bench.ask("status")["checks"]]  # type: ignore[index]
    assert names == ["TARGET_DOWN"]
    done(change(bench, "t4", "out"))
    assert bench.ask("status")["checks"] == []  # type: ignore[index]


def test_how_it_stands_survives_a_restart() -> None:
    bench = Bench(4)
    done(change(bench, "t1", "draining"))
    bench.restart(*bench.targets)
    assert "t1" not in places(bench, 1)
    listed = bench.ask("status")["targets"]  # type: ignore[index]
    shown = {one["id"]: one["standing"] for one in listed}
    assert shown == {"t0": "in", "t1": "draining", "t2": "in", "t3": "in"}


def test_nobody_is_answered_before_it_is_durable() -> None:
    bench = Bench(4)
    bench.persist_at_once = False
    session, mark = bench.session(Role.ADMIN), bench.mark()
    bench.tell(session, ChangeTarget(TargetId("t1"), "draining"))
    assert bench.to(session, mark) == []
    assert bench.machine.members.targets[TargetId("t1")].standing is TargetStanding.IN
    bench.sync()
    assert len(bench.to(session, mark)) == 1
    assert bench.machine.members.targets[TargetId("t1")].standing is TargetStanding.DRAINING


def test_who_says_the_same_again_is_answered_when_it_is_durable_too() -> None:
    bench = Bench(4)
    bench.persist_at_once = False
    session, mark = bench.session(Role.ADMIN), bench.mark()
    for standing in ("draining", "draining", "in"):
        bench.tell(session, ChangeTarget(TargetId("t1"), standing))
    assert bench.to(session, mark) == []
    for _ in range(3):
        bench.sync(1)
    said = [done(answer) for answer in bench.to(session, mark)]
    assert [(one.was, one.standing) for one in said] == [
        ("in", "draining"), ("draining", "draining"), ("draining", "in"),
    ]  # fmt: skip
    assert bench.machine.members.targets[TargetId("t1")].standing is TargetStanding.IN


# ----------------------------------------------------------------------- what speaks against it


@pytest.mark.parametrize("standing", ["draining", "out"])
def test_of_two_that_are_said_at_once_the_second_knows_of_the_first(standing: str) -> None:
    """By two operators, say; the first is not durable yet."""
    bench = Bench(4)
    bench.persist_at_once = False
    session, mark = bench.session(Role.ADMIN), bench.mark()
    bench.tell(session, ChangeTarget(TargetId("t1"), standing))
    (answer,) = bench.tell(bench.session(Role.ADMIN), ChangeTarget(TargetId("t2"), standing))
    refused(answer, "without t2 2 targets are left in")
    bench.sync()
    done(*bench.to(session, mark))


def two_unmounted(bench: Bench) -> tuple[CheckpointId, list[FakeTarget]]:
    """A save, and two of its three holders, which have begun on empty directories."""
    for target in bench.targets.values():
        bench.stop(target.id)
        target.incarnation = b"i" * 15 + bytes([int(target.id[1:])])
        bench.start(target)
    id = bench.save(1)
    missing = holders(bench, id)[:2]
    for target in missing:
        bench.stop(target.id)
        target.incarnation = b"j" * 15 + bytes([int(target.id[1:])])
        target.reboot()
        bench.start(target)
    return id, missing


@pytest.mark.parametrize("is_forced", [False, True])
def test_no_directory_takes_the_place_of_what_is_needed_unasked(is_forced: bool) -> None:
    """Two disks of three were not mounted, and their targets began on empty directories."""
    bench = Bench(5)
    id, (first, second) = two_unmounted(bench)
    question = ReplaceTarget(first.id, force=is_forced)
    (answer,) = bench.tell(bench.session(Role.ADMIN), question)
    if is_forced:
        assert isinstance(answer, TargetReplaced)
        return
    refused(answer, f"what {first.id} had", f"too little is left of {id} while {second.id}")
    assert isinstance(answer, Failed)
    assert f"bring back d/{first.id} as it was" in answer.hint
    assert "--force" in answer.hint
    bench.tick(1)
    assert bench.machine.members.targets[first.id].state is TargetState.DOWN


@pytest.mark.parametrize("is_forced", [False, True])
def test_none_takes_it_before_it_is_known_what_lies_where(is_forced: bool) -> None:
    """A coordinator that has just begun knew nothing that would be lost, and agreed."""
    bench = Bench(5)
    id, (first, _) = two_unmounted(bench)
    bench.restart(*bench.targets)
    question = ReplaceTarget(first.id, force=is_forced)
    (answer,) = bench.tell(bench.session(Role.ADMIN), question)
    if is_forced:
        assert isinstance(answer, TargetReplaced)
        return
    refused(answer, f"what {first.id} had", f"where {id} lies is not known yet")
    assert isinstance(answer, Failed)
    assert answer.code == "unavailable"
    assert answer.retry_after_us
    assert f"bring back d/{first.id} as it was" in answer.hint
    assert "--force" in answer.hint
    assert bench.machine.members.replacing(first.id), "it asks still"
    bench.tick(GATHERED_S + 1)
    (answer,) = bench.tell(bench.session(Role.ADMIN), question)
    refused(answer, f"too little is left of {id}")


@pytest.mark.parametrize("standing", ["draining", "out", "removed", "in"])
def test_how_a_target_stands_is_changed_once_the_catalog_is_vouched_for(standing: str) -> None:
    bench = Bench(5)
    bench.stop("t4")
    bench.restart()
    session, mark = bench.session(Role.ADMIN), bench.mark()
    for id in ("t0", "t1", "t2", "t3"):
        bench.tell(session, ChangeTarget(TargetId("t4"), standing))
        assert bench.to(session, mark) == [], "it waits"
        bench.start(id)
    assert [done(answer).standing for answer in bench.to(session, mark)] == 4 * [standing]


def test_where_nothing_is_kept_a_directory_takes_a_place_at_once() -> None:
    """More than m of a new cluster's disks: nobody would vouch before they are there."""
    bench = Bench(3)
    for target in list(bench.targets.values())[:2]:
        for mark in (b"i", b"j"):
            bench.stop(target.id)
            target.incarnation = mark * 14 + target.id.encode()
            target.reboot()
            bench.start(target)
    bench.restart(*bench.targets)
    first = next(iter(bench.targets.values()))
    (answer,) = bench.tell(bench.session(Role.ADMIN), ReplaceTarget(first.id))
    assert isinstance(answer, TargetReplaced)


def test_where_nothing_is_made_again_nothing_leaves_a_target() -> None:
    bench = Bench(5)
    bench.policy = dataclasses.replace(bench.policy, rebuild_after_us=None)
    bench.restart(*bench.targets)
    id = bench.save(1)
    refused(change(bench, holders(bench, id)[0].id, "draining"), "repair = false")


@pytest.mark.parametrize("standing", ["draining", "out", "removed"])
def test_a_save_needs_a_place_for_each_of_its_columns(standing: str) -> None:
    bench = Bench(3)
    bench.stop("t2")
    refused(change(bench, "t2", standing), "2 targets are left in", "2 of the 3 columns")
    assert done(change(bench, "t2", standing, dry_run=True)).doubts
    assert bench.machine.members.targets[TargetId("t2")].standing is TargetStanding.IN
    done(change(bench, "t2", standing, force=True))


def test_what_is_to_move_needs_room() -> None:
    bench = Bench(5)
    id = bench.save(1)
    for target in bench.targets.values():
        target.bytes_free = 1
    bench.tick(3)
    refused(change(bench, holders(bench, id)[0].id, "draining"), "room for")


def test_a_target_that_serves_is_removed_by_nobody() -> None:
    answer = change(Bench(5), "t4", "removed", force=True)
    assert isinstance(answer, Failed)
    assert (answer.code, "is live" in answer.message) == ("busy", True)


def test_what_only_it_may_have_is_not_given_up_unasked() -> None:
    bench = Bench(5)
    id = bench.save(1)
    first, second, _ = holders(bench, id)
    bench.stop(first.id, second.id)
    refused(change(bench, first.id, "removed"), str(id))
    refused(change(bench, "t9", "removed"), "no target t9")
    refused(change(bench, first.id, "gone"), "gone")


# ----------------------------------------------------------------------- removed, for good


def test_a_removed_target_is_refused_for_good_by_its_name_and_its_directory() -> None:
    bench = Bench(5)
    target = bench.targets["t4"]
    target.incarnation = b"i" * 16
    bench.stop("t4")
    bench.start("t4")
    bench.stop("t4")
    done(change(bench, "t4", "removed"))
    for _ in range(2):
        bench.start(target)
        bench.tick(1)
        assert bench.states().get("t4") is None
        refused(change(bench, "t4", "in"), "removed")
        bench.restart("t0", "t1", "t2", "t3")
    assert done(change(bench, "t4", "removed")).was == "removed"


def test_no_directory_that_knocked_takes_the_place_of_a_removed_target() -> None:
    bench = Bench(5)
    target = bench.targets["t4"]
    for incarnation in (b"i" * 16, b"j" * 16):
        bench.stop("t4")
        target.incarnation = incarnation
        target.reboot()
        bench.start(target)
    assert bench.machine.members.replacing(target.id)
    done(change(bench, "t4", "removed"))
    (answer,) = bench.tell(bench.session(Role.ADMIN), ReplaceTarget(target.id))
    refused(answer, "removed")


def test_nobody_waits_for_a_removed_target_to_answer() -> None:
    bench = Bench(5)
    id = bench.save(1)
    gone = holders(bench, id)[1]
    bench.stop(gone.id)
    assert bench.machine.checkpoints.unreachable(kept(bench, id)) == [gone.id]
    done(change(bench, gone.id, "removed"))
    assert bench.machine.checkpoints.unreachable(kept(bench, id)) == []


def test_its_columns_are_made_again_at_once() -> None:
    bench = Bench(5)
    id = bench.save(1)
    gone = holders(bench, id)[1]
    bench.stop(gone.id)
    bench.tick(LOOK_S)
    done(change(bench, gone.id, "removed"))
    bench.tick(LOOK_S)
    assert make_again(bench) == 1
    assert missing(bench, id) == 0


def test_a_deletion_waits_for_it_no_more_and_no_tombstone_stays() -> None:
    bench = Bench(5)
    id = bench.save(1)
    gone = holders(bench, id)[1]
    bench.save(2)
    bench.stop(gone.id)
    bench.tell(bench.session(Role.ADMIN), DeleteStep(RUN, Step(1)))
    bench.tick(AFTER_S)
    assert kept(bench, id).state is RowState.TOMBSTONED
    assert any((DocumentKind.TOMBSTONE, id) in t.documents for t in bench.targets.values())
    done(change(bench, gone.id, "removed", force=True))
    bench.tick(1)
    assert bench.machine.checkpoints.get(id) is None
    here = [target for target in bench.targets.values() if target is not gone]
    assert not any((DocumentKind.TOMBSTONE, id) in target.documents for target in here)


def test_what_is_deleted_and_placed_nowhere_any_more_is_no_reason_against_it() -> None:
    """A start cannot read its index, which is dropped already, and only the lost one may have it:
    its deletion waits for nothing but the removal.
    """
    bench = Bench(5)
    id = bench.save(1)
    gone = having_index(bench, id)[0]
    bench.save(2)
    bench.stop(gone.id)
    bench.tell(bench.session(Role.ADMIN), DeleteStep(RUN, Step(1)))
    bench.tick(AFTER_S)
    bench.restart(*(one for one in bench.targets if one != gone.id))
    bench.tick(AFTER_S)
    assert kept(bench, id).placement is None
    done(change(bench, gone.id, "removed"))
    bench.tick(1)
    assert bench.machine.checkpoints.get(id) is None


def having_index(bench: Bench, id: CheckpointId) -> list[FakeTarget]:
    return [one for one in bench.targets.values() if (DocumentKind.INDEX, id) in one.documents]


def test_a_restart_waits_for_it_no_more() -> None:
    """Of 4 targets 3 have to vouch for the catalog, of 3 only 2."""
    bench = Bench(4)
    bench.save(1)
    bench.stop("t3")
    done(change(bench, "t3", "removed"))
    bench.restart("t0", "t1")
    assert done(change(bench, "t3", "removed")).was == "removed"


def test_the_catalog_keeps_that_it_was_removed() -> None:
    bench = Bench(5)
    bench.stop("t4")
    mark = bench.mark()
    done(change(bench, "t4", "removed"))
    (seen,) = bench.story(mark, TargetSeen)
    assert isinstance(seen, TargetSeen)
    assert (seen.target, seen.standing) == ("t4", TargetStanding.REMOVED)
