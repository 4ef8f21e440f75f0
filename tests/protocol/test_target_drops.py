"""What a target removes: a drop that is answered is durable, and takes nothing that came later."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.limits import DEVICE_FAILURES_MAX
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    PutDocument,
)
from ckpt.format.messages.writing import ColumnSealed
from ckpt.protocol.events import SessionClosed
from ckpt.protocol.target.core import column_name
from ckpt.testing.disk import FakeDisk, Fault, Keep
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    WRITER,
    Column,
    TargetWorld,
    put_document,
    reserve,
    store,
    write,
)

INDEX = bytes(range(256)) * 1200


def _answers(world: TargetWorld) -> list[object]:
    return list(world.messages(COORDINATOR))


def _ready(disk: FakeDisk | None = None, boot: int = 11) -> TargetWorld:
    world = TargetWorld(disk, boot=boot)
    world.messages(COORDINATOR)
    return world


def test_a_drop_ends_streams_of_its_generation_and_they_may_not_begin_again() -> None:
    world, column = _ready(), Column()
    reserve(world, column)
    write(world, column, stripes=[0])
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    world.tell(WRITER, column.begin(), request=21)
    codes = [each.code for each in world.messages(WRITER) if isinstance(each, Failed)]
    assert codes == ["aborted", "aborted"]


def test_a_drop_waits_for_a_seal_that_is_on_its_way() -> None:
    world, column = _ready(), Column()
    reserve(world, column)
    write(world, column)
    world.messages(COORDINATOR)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=20)
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    while world.held:
        assert not any(isinstance(each, Dropped) for each in _answers(world))
        world.step()
    assert any(isinstance(each, ColumnSealed) for each in world.messages(WRITER))
    (dropped,) = _answers(world)
    assert isinstance(dropped, Dropped)
    assert world.disk.list_directory("columns") == []


@pytest.mark.parametrize("again", ["generation", "column"])
@pytest.mark.parametrize("fault", ["", "sync_directory"])
def test_a_drop_waits_for_an_earlier_one_that_is_on_its_way(again: str, fault: str) -> None:
    """It was said to be gone while a crash could bring it back (by number, seed 16)."""
    world, column = _ready(), Column()
    store(world, column)
    world.messages(COORDINATOR)
    world.held = deque()
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    world.step()
    message = DropGeneration(1, CHECKPOINT) if again == "generation" else DropColumn(1, column.id)
    world.tell(COORDINATOR, message, request=10)
    if fault:
        world.disk.faults.append(Fault(fault))
    said = _answers(world)
    while world.held:
        assert not any(isinstance(each, Dropped) for each in said)
        world.step()
        said += _answers(world)
    assert [type(each) for each in said] == [Failed if fault else Dropped, Dropped]
    assert world.disk.durable_names("columns") == []
    assert world.machine.bytes_used == 0


@pytest.mark.parametrize("kind", [DocumentKind.INDEX, DocumentKind.LABELS])
@pytest.mark.parametrize("fault", ["", "sync"])
def test_a_drop_waits_for_a_document_that_is_on_its_way(kind: DocumentKind, fault: str) -> None:
    """It came all the same, was found by nobody, and stayed (seed 1856)."""
    world = _ready()
    world.held = deque()
    put_document(world, kind, INDEX)
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    if fault:
        world.disk.faults.append(Fault(fault))
    said = _answers(world)
    while world.held:
        assert not any(isinstance(each, Dropped) for each in said)
        world.step()
        said += _answers(world)
    assert [type(each) for each in said] == [Failed if fault else DocumentStored, Dropped]
    assert world.disk.list_directory("documents") == []
    assert world.machine.bytes_used == 0


def test_a_drop_ends_a_document_whose_parts_have_not_all_come() -> None:
    world = _ready()
    whole = xxh3_128(INDEX)
    part = PutDocument(1, DocumentKind.INDEX, CHECKPOINT, len(INDEX), 0, whole)
    world.tell(COORDINATOR, part, INDEX[:4096])
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    (dropped,) = _answers(world)
    assert isinstance(dropped, Dropped)
    assert world.disk.list_directory("staging") == []
    assert world.machine.bytes_used == 0


@pytest.mark.parametrize("kind", [DocumentKind.INDEX, DocumentKind.RECORD, DocumentKind.LABELS])
def test_a_document_that_comes_after_its_drop_is_not_stored(kind: DocumentKind) -> None:
    world = _ready()
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    put_document(world, kind, INDEX)
    dropped, refused = _answers(world)
    assert isinstance(dropped, Dropped)
    assert isinstance(refused, Failed)
    assert refused.code == "aborted"
    assert world.disk.list_directory("documents") == world.disk.list_directory("staging") == []


def test_a_tombstone_that_comes_after_its_drop_is_stored() -> None:
    world = _ready()
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    put_document(world, DocumentKind.TOMBSTONE, b"gone")
    assert isinstance(_answers(world)[1], DocumentStored)


def test_one_column_is_dropped_and_may_be_written_again() -> None:
    world, column = _ready(), Column()
    store(world, column)
    world.tell(COORDINATOR, DropColumn(1, column.id))
    world.tell(COORDINATOR, DropColumn(1, column.id))
    answers = [each for each in _answers(world) if isinstance(each, Dropped)]
    assert [each.bytes_freed > 0 for each in answers] == [True, False]
    world.messages(WRITER)
    store(world, column, request=22, reservation=2)
    assert any(isinstance(each, ColumnSealed) for each in world.messages(WRITER))


def test_a_drop_of_one_column_waits_for_no_other_ones_seal() -> None:
    """It took away what was sealed, and proved, while it waited."""
    world, column, other = _ready(), Column(), Column(column=0)
    store(world, column)
    reserve(world, other, reservation=2)
    write(world, other, request=31, reservation=2)
    world.messages(COORDINATOR)
    world.held = deque()
    world.tell(WRITER, other.seal, other.manifest, request=31)
    seal = list(world.held)
    assert seal
    world.tell(COORDINATOR, DropColumn(1, column.id))
    while any(each not in seal for each in world.held):
        world.step(next(n for n, each in enumerate(world.held) if each not in seal))
    assert any(isinstance(each, Dropped) for each in _answers(world))
    assert list(world.held) == seal


def test_nothing_is_begun_in_the_place_of_what_is_about_to_be_dropped() -> None:
    """The drop waits for an earlier one; what is sealed meanwhile would go with it."""
    world, column, other = _ready(), Column(), Column(column=0)
    store(world, column)
    store(world, other, request=21, reservation=2)
    world.messages(COORDINATOR)
    world.messages(WRITER)
    world.held = deque()
    world.tell(COORDINATOR, DropColumn(1, other.id))
    world.tell(COORDINATOR, DropColumn(1, column.id), request=10)
    world.tell(WRITER, column.begin(3), request=33)
    (refused,) = world.messages(WRITER)
    assert isinstance(refused, Failed)
    assert refused.code == "busy"
    while world.held:
        world.step()
    assert [type(each) for each in _answers(world)] == [Dropped, Dropped]
    world.held = None
    store(world, column, request=34, reservation=3)
    assert any(isinstance(each, ColumnSealed) for each in world.messages(WRITER))


def test_a_drop_that_nobody_waits_for_any_more_keeps_no_column_out() -> None:
    world, column, other = _ready(), Column(), Column(column=0)
    store(world, column)
    store(world, other, request=21, reservation=2)
    world.held = deque()
    world.tell(COORDINATOR, DropColumn(1, other.id))
    world.tell(COORDINATOR, DropColumn(1, column.id), request=10)
    world.feed(SessionClosed(world.now_us, COORDINATOR))
    while world.held:
        world.step()
    world.messages(WRITER)
    world.tell(WRITER, column.begin(3), request=33)
    assert any(isinstance(each, ColumnSealed) for each in world.messages(WRITER)), "it is there"


def test_a_failed_drop_says_so_and_a_repeated_one_succeeds() -> None:
    world, column = _ready(), Column()
    store(world, column)
    world.messages(COORDINATOR)
    (name,) = world.disk.list_directory("columns")
    file_bytes = world.disk.file_bytes(f"columns/{name}")
    world.disk.faults.append(Fault("sync_directory"))
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    assert world.machine.column_count == 1, "whether it is gone is not known"
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    failed, dropped = _answers(world)
    assert isinstance(failed, Failed)
    assert dropped == Dropped(bytes_freed=file_bytes)
    assert world.machine.column_count == 0


def test_a_file_that_cannot_be_removed_is_named_once() -> None:
    """As one that was made immutable. The drop is asked for every 2 s."""
    world, column = _ready(), Column()
    store(world, column)
    (name,) = world.disk.list_directory("columns")
    world.disk.faults.append(Fault("remove", "EPERM", file=name, count=3))
    for _ in range(3):
        world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    told = [dict(one.fields) for one in world.reports if one.text == "not removed"]
    assert told == [{"file": f"columns/{name}", "error": "EPERM"}]
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    assert world.machine.column_count == 0


def test_an_immutable_column_keeps_its_own_space_and_nothing_else() -> None:
    """The device is well, the generation's other columns go, and its documents stay as long as it
    does.
    """
    world = _ready()
    columns = [Column(rank=rank) for rank in range(3)]
    for number, column in enumerate(columns, 1):
        store(world, column, request=number, reservation=number)
    put_document(world, DocumentKind.INDEX, INDEX)
    kept = column_name(columns[1].id)
    world.disk.faults.append(Fault("remove", "EPERM", file=kept, count=DEVICE_FAILURES_MAX + 1))
    for _ in range(DEVICE_FAILURES_MAX + 1):
        world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    assert world.disk.list_directory("columns") == [kept]
    assert world.machine.column_count == 1, "only this one is known"
    assert len(world.disk.list_directory("documents")) == 1
    assert not world.machine.device.is_failing
    assert world.machine.device.errors == {"create": DEVICE_FAILURES_MAX + 1}
    world.disk.crash(Keep.NOTHING)
    assert world.disk.list_directory("columns") == [kept], "what went is gone for good"

    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    (*_, dropped) = _answers(world)
    assert isinstance(dropped, Dropped)
    assert world.disk.list_directory("columns") == world.disk.list_directory("documents") == []


def test_a_device_that_removes_nothing_is_asked_once_for_each_drop() -> None:
    world = _ready()
    for number in range(1, 4):
        store(world, Column(rank=number), request=number, reservation=number)
    world.disk.faults.append(Fault("remove", "EROFS", count=DEVICE_FAILURES_MAX))
    for count in range(1, DEVICE_FAILURES_MAX + 1):
        world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
        assert world.machine.device.errors == {"create": count}
    assert world.machine.device.is_failing
    assert world.machine.column_count == 3
