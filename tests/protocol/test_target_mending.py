"""A column that its target has found damaged takes the right bytes under its own name."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from msgspec import structs

from ckpt.base.ids import LaunchNumber
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import RangeData, ReadRanges
from ckpt.format.messages.targets import Attest, Attested, DropColumn, DropGeneration, Dropped
from ckpt.format.messages.writing import BeginColumn, ColumnAccepted, ColumnSealed
from ckpt.protocol.runs.wire_runs import to_wire
from ckpt.protocol.target.core import column_name
from ckpt.protocol.target.disk_events import RenameFile, SyncDirectory, SyncFile, WriteAt
from ckpt.testing.disk import Fault, Keep
from tests.protocol.scrubbing import LIMITS, S, again, file_of, passed, state
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    READER,
    WRITER,
    Column,
    TargetWorld,
    cut_up,
    reserve,
    store,
)

HARMED = FRAGMENTS_OFFSET + 70_000
REQUEST = 70
RESERVATION = 7


def begin(column: Column) -> BeginColumn:
    return structs.replace(column.begin(RESERVATION), again=True)


def damaged() -> tuple[TargetWorld, Column]:
    """One that its target knows to be damaged, and space for another file of it."""
    world, column = TargetWorld(limits=LIMITS), Column()
    store(world, column)
    world.disk.rot(file_of(column), HARMED, 3)
    assert passed(world, 2).report.rot_count == 1
    reserve(world, column, RESERVATION)
    for session in (COORDINATOR, WRITER):
        world.messages(session)
    return world, column


def write(world: TargetWorld, column: Column, message: BeginColumn | None = None) -> None:
    """All of it but the manifest."""
    world.tell(WRITER, message or begin(column), request=REQUEST)
    for stripe in range(column.layout.stripe_count):
        world.tell(WRITER, *column.fragment(stripe), request=REQUEST)


def seal(world: TargetWorld, column: Column) -> None:
    world.tell(WRITER, column.seal, column.manifest, request=REQUEST)


def answers(world: TargetWorld) -> list[ColumnSealed | Failed]:
    return [one for one in world.messages(WRITER) if isinstance(one, ColumnSealed | Failed)]


def content(world: TargetWorld, column: Column) -> bytes:
    """As it is durable."""
    return world.disk.durable(file_of(column)) or b""


def attested(world: TargetWorld, column: Column) -> Attested:
    world.tell(COORDINATOR, Attest(1, (column.id,)))
    answer = world.messages(COORDINATOR)[-1]
    assert isinstance(answer, Attested)
    return answer


def whole_file() -> bytes:
    """What is right."""
    world, column = TargetWorld(), Column()
    store(world, column)
    return content(world, column)


def test_it_is_written_aside_synced_and_renamed_over_the_damaged_one() -> None:
    world, column = damaged()
    assert attested(world, column).damaged == (column.id,)
    used = world.machine.bytes_used
    write(world, column)
    assert content(world, column) != whole_file()
    world.performed.clear()
    seal(world, column)
    steps = [one for one in world.performed if not isinstance(one, WriteAt)]
    assert [type(one) for one in steps[:3]] == [SyncFile, RenameFile, SyncDirectory]
    (sealed,) = answers(world)
    assert isinstance(sealed, ColumnSealed)
    assert content(world, column) == whole_file()
    assert attested(world, column) == Attested((sealed.proof,))
    assert state(world).report.rot_count == 0
    assert world.machine.bytes_used == used
    assert world.disk.list_directory("staging") == []
    assert passed(world, 2).report.rot_count == 0


def test_a_process_after_it_knows_of_no_damage() -> None:
    world, column = damaged()
    write(world, column)
    seal(world, column)
    world.tick(us=S // 10)
    later = again(world)
    assert state(later).report.rot_count == 0


def test_a_sound_one_is_not_written_again() -> None:
    world, column = TargetWorld(limits=LIMITS), Column()
    store(world, column)
    (first,) = answers(world)
    reserve(world, column, RESERVATION)
    world.tell(WRITER, begin(column), request=REQUEST)
    assert answers(world) == [first]


def test_a_save_that_begins_it_once_more_hears_that_it_is_here() -> None:
    """Damaged or not: repair alone writes over it."""
    world, column = damaged()
    world.tell(WRITER, column.begin(RESERVATION), request=REQUEST)
    (answer,) = world.messages(WRITER)
    assert isinstance(answer, ColumnSealed)


def test_other_bytes_do_not_take_its_place() -> None:
    world, column = damaged()
    before = content(world, column)
    write(world, column, structs.replace(begin(column), launch=LaunchNumber(4)))
    seal(world, column)
    (failed,) = answers(world)
    assert isinstance(failed, Failed)
    assert failed.code == "refused"
    assert content(world, column) == before
    assert attested(world, column).damaged == (column.id,)


def disk_steps() -> int:
    """Steps of the disk from the last fragment to the answer."""
    world, column = damaged()
    write(world, column)
    world.performed.clear()
    seal(world, column)
    return len(world.performed)


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_at_any_step_leaves_the_damaged_copy_or_the_right_one(keep: Keep) -> None:
    right = whole_file()
    kept = []
    for step in range(disk_steps() + 1):
        world, column = damaged()
        harmed = content(world, column)
        write(world, column)
        world.held = deque()
        seal(world, column)
        for _ in range(step):
            world.step()
        is_told = bool(answers(world))
        world.disk.crash(keep)
        later = TargetWorld(world.disk, boot=12, limits=LIMITS, now_us=world.now_us + S)
        found = content(later, column)
        assert found in (harmed, right)
        assert later.machine.column_count == 1
        if is_told:
            assert found == right
        kept.append(found == right)
    assert kept == sorted(kept), "once right it stays"
    assert (kept[0], kept[-1]) == (False, True)


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
def test_a_disk_that_refuses_leaves_it_known_and_it_is_mended_later(operation: str) -> None:
    world, column = damaged()
    write(world, column)
    world.disk.faults.append(Fault(operation))
    seal(world, column)
    (failed,) = answers(world)
    assert isinstance(failed, Failed)
    assert attested(world, column).damaged == (column.id,)
    assert world.disk.list_directory("columns") == [column_name(column.id)]
    assert world.disk.list_directory("staging") == []
    reserve(world, column, RESERVATION + 1)
    write(world, column, structs.replace(begin(column), reservation=RESERVATION + 1))
    seal(world, column)
    assert isinstance(answers(world)[-1], ColumnSealed)
    assert content(world, column) == whole_file()


def test_what_a_crash_may_undo_is_damaged_until_it_is_mended_for_good() -> None:
    """Its bytes read well: the new file has the name, as long as no power is lost."""
    world, column = damaged()
    write(world, column)
    world.disk.faults.append(Fault("sync_directory"))
    seal(world, column)
    assert bytes(world.disk.read_at(file_of(column), 0, 1 << 20)) == whole_file()
    assert content(world, column) != whole_file()
    assert passed(world, 2).report.rot_count == 1
    assert attested(world, column).damaged == (column.id,)
    reserve(world, column, RESERVATION + 1)
    write(world, column, structs.replace(begin(column), reservation=RESERVATION + 1))
    seal(world, column)
    assert content(world, column) == whole_file()
    assert passed(world, 2).report.rot_count == 0


@pytest.mark.parametrize("drop", [DropColumn(1, Column().id), DropGeneration(1, CHECKPOINT)])
def test_deletion_wins_at_any_step(drop: DropColumn | DropGeneration) -> None:
    """Said after any step of the disk; and a crash later does not bring it back."""
    for step in range(disk_steps() + 1):
        world, column = damaged()
        write(world, column)
        world.held = deque()
        seal(world, column)
        for _ in range(step):
            world.step()
        world.tell(COORDINATOR, drop)
        while world.held:
            world.step()
        assert [type(one) for one in world.messages(COORDINATOR)] == [Dropped]
        assert world.machine.column_count == 0
        assert world.disk.durable_names("columns") == []
        world.disk.crash(Keep.ALL)
        assert TargetWorld(world.disk, boot=12).machine.column_count == 0


def test_a_drop_while_it_is_written_ends_it() -> None:
    world, column = damaged()
    write(world, column)
    world.tell(COORDINATOR, DropColumn(1, column.id))
    seal(world, column)
    (failed,) = answers(world)
    assert isinstance(failed, Failed)
    assert failed.code == "aborted"
    assert world.machine.column_count == 0


def test_nothing_begins_where_it_is_about_to_go() -> None:
    world, column = damaged()
    world.held = deque()
    world.tell(COORDINATOR, DropColumn(1, column.id))
    world.tell(WRITER, begin(column), request=REQUEST)
    (failed,) = answers(world)
    assert isinstance(failed, Failed)
    assert failed.code == "busy"


def test_who_reads_meanwhile_gets_the_bytes_of_either_file() -> None:
    """All but the damaged block is the same in both."""
    steps = disk_steps()
    size = Column().layout.column_bytes
    for asked, delivered in itertools.product(range(steps + 1), repeat=2):
        world, column = damaged()
        write(world, column)
        world.held = deque()
        seal(world, column)
        for _ in range(asked):
            world.step()
        question = ReadRanges(column.id, to_wire([(0, size)]))
        world.tell(READER, question, request=80)
        for _ in range(min(delivered, len(world.held))):
            world.step()
        while world.held:
            world.step(len(world.held) - 1)
        data = [one for one in world.sent if isinstance(one.message, RangeData)]
        assert data
        for one in data:
            assert isinstance(one.message, RangeData)
            for start, found in cut_up(one.message, one.bulk).items():
                assert found == column.data[start : start + len(found)]


def test_a_stream_that_is_given_up_leaves_it_as_it_was() -> None:
    world, column = damaged()
    before = content(world, column)
    world.tell(WRITER, begin(column), request=REQUEST)
    assert any(isinstance(one, ColumnAccepted) for one in world.messages(WRITER))
    world.tell(WRITER, *column.fragment(0), request=REQUEST)
    world.disk.crash(Keep.ALL)
    later = TargetWorld(world.disk, boot=12, limits=LIMITS, now_us=world.now_us + S)
    assert content(later, column) == before
    assert later.disk.list_directory("staging") == []
