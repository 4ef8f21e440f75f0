"""A target lists all that lies on it, what is on the disk's way as well."""

from __future__ import annotations

from collections import deque

from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    ColumnsListed,
    ListColumns,
)
from ckpt.protocol.events import SessionClosed
from ckpt.protocol.target.disk_events import (
    SyncFile,
)
from ckpt.protocol.target.listing import WAIT_US
from ckpt.testing.disk import Fault
from tests.protocol.target_world import (
    COORDINATOR,
    READER,
    WRITER,
    Column,
    TargetWorld,
    put_document,
    reserve,
    store,
    write,
)

INDEX = bytes(range(256)) * 1200
"""Larger than what is stored twice."""
RECORD = b"the commit record" * 50


def _ready() -> TargetWorld:
    world = TargetWorld()
    world.messages(COORDINATOR)
    return world


def _pages(world: TargetWorld) -> list[ColumnsListed]:
    return [one for one in world.messages(READER) if isinstance(one, ColumnsListed)]


def _asked_while_sealing() -> tuple[TargetWorld, Column]:
    """The list is asked for, and the disk does nothing by itself."""
    world, column = _ready(), Column()
    reserve(world, column)
    write(world, column)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=20)
    world.tell(READER, ListColumns())
    return world, column


def test_pages_list_every_column_and_document_once() -> None:
    world = _ready()
    columns = [Column(rank=rank, payload_bytes=5000) for rank in range(7)]
    for number, column in enumerate(columns, start=1):
        store(world, column, request=20 + number, reservation=number)
    put_document(world, DocumentKind.RECORD, RECORD)
    cursor, listed, documents, pages = "", [], [], 0
    while True:
        world.messages(READER)
        world.tell(READER, ListColumns(cursor, count_max=3))
        (page,) = world.messages(READER)
        assert isinstance(page, ColumnsListed)
        listed += [each.column for each in page.columns]
        documents += list(page.documents)
        pages += 1
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(listed) == sorted(each.id for each in columns)
    assert len(documents) == 1
    assert pages == 3


def test_a_column_that_is_being_sealed_is_waited_for() -> None:
    world, column = _asked_while_sealing()
    assert _pages(world) == []
    while world.held:
        world.step()
    (page,) = _pages(world)
    assert [each.column for each in page.columns] == [column.id]


def test_a_document_that_is_being_stored_is_waited_for() -> None:
    world = _ready()
    world.held = deque()
    put_document(world, DocumentKind.RECORD, RECORD)
    while not any(isinstance(action, SyncFile) for action in world.held):
        world.step()
    world.tell(READER, ListColumns())
    assert _pages(world) == []
    while world.held:
        world.step()
    (page,) = _pages(world)
    assert [each.kind for each in page.documents] == [DocumentKind.RECORD]


def test_what_fails_on_its_way_is_waited_for_and_not_listed() -> None:
    world, _column = _asked_while_sealing()
    world.disk.faults.append(Fault("sync"))
    while world.held:
        world.step()
    (page,) = _pages(world)
    assert page.columns == ()


def test_a_disk_that_hangs_holds_the_list_up_for_a_bounded_time() -> None:
    world, column, other = _ready(), Column(), Column(column=2)
    store(world, other, reservation=2)
    reserve(world, column)
    write(world, column, request=21)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=21)
    world.tell(READER, ListColumns())
    world.tick(WAIT_US - 1)
    assert _pages(world) == []
    world.tick(1)
    (page,) = _pages(world)
    assert [each.column for each in page.columns] == [other.id]


def test_what_begins_its_seal_later_holds_up_nothing() -> None:
    world, column, other = _ready(), Column(), Column(column=2)
    for number, one in enumerate((column, other), start=1):
        reserve(world, one, number)
        write(world, one, request=20 + number, reservation=number)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=21)
    world.tell(READER, ListColumns())
    world.tell(WRITER, other.seal, other.manifest, request=22)
    world.held.pop()  # The later one's first step: its disk hangs.
    while world.held:
        world.step()
    (page,) = _pages(world)
    assert [each.column for each in page.columns] == [column.id]


def test_who_has_left_is_not_answered() -> None:
    world, _column = _asked_while_sealing()
    world.feed(SessionClosed(world.now_us, READER))
    while world.held:
        world.step()
    assert _pages(world) == []
