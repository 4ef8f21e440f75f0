"""A target lists all that lies on it, what is on the disk's way as well."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import BootId, ColumnId, Generation, ReservationId, RunName, TargetId
from ckpt.base.limits import SEAL_WAIT_US
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    HELD_COLUMN,
    Attest,
    Attested,
    ColumnsListed,
    DropColumn,
    HeldGeneration,
    HoldingsListed,
    HoldingsPage,
    ListColumns,
    ListHoldings,
    ReleaseReservation,
    decode_holdings,
    encode_holdings,
)
from ckpt.protocol.events import Session, SessionClosed, SessionOpened
from ckpt.protocol.proofs import holdings_mac, proof_key
from ckpt.protocol.target.core import Core
from ckpt.protocol.target.disk_events import (
    SyncFile,
)
from ckpt.protocol.target.listing import ORDERS_MAX, NameOrder, in_order
from ckpt.testing.disk import Fault
from tests.protocol.target_world import (
    CHECKPOINT,
    CLUSTER,
    COORDINATOR,
    READER,
    SECRET,
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
    world.tick(SEAL_WAIT_US - 1)
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


def test_who_asks_for_a_column_that_is_being_sealed_hears_whether_it_came() -> None:
    """A seal on the disk's way ends all the same when its space is given back: nobody would hear of
    that column.
    """
    world, column, other = _ready(), Column(), Column(column=2)
    for number, one in enumerate((column, other), start=1):
        reserve(world, one, number)
        write(world, one, request=20 + number, reservation=number)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=21)
    world.tell(COORDINATOR, ReleaseReservation(1, ReservationId(1)))
    for asked in ((column.id,), (other.id,), ()):
        world.tell(COORDINATOR, Attest(1, asked))
    answers = [one for one in world.messages(COORDINATOR) if isinstance(one, Attested)]
    assert answers == [Attested(()), Attested(())], "of what is not being sealed, at once"
    while world.held:
        world.step()
    (answer,) = [one for one in world.messages(COORDINATOR) if isinstance(one, Attested)]
    assert [proof.column for proof in answer.proofs] == [column.id]


def test_who_has_left_is_not_answered() -> None:
    world, _column = _asked_while_sealing()
    world.feed(SessionClosed(world.now_us, READER))
    while world.held:
        world.step()
    assert _pages(world) == []


def test_all_pages_of_a_list_go_on_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world, made = _ready(), []

    def counted(core: Core) -> NameOrder:
        made.append(core)
        return in_order(core)

    monkeypatch.setattr("ckpt.protocol.target.listing.in_order", counted)
    columns = [Column(rank=rank, payload_bytes=5000) for rank in range(7)]
    for number, column in enumerate(columns, start=1):
        store(world, column, request=20 + number, reservation=number)
    assert len(_listed(world, READER)) == 7
    assert len(made) == 1
    assert len(_listed(world, WRITER)) == 7
    assert len(made) == 2


def test_what_goes_between_two_pages_is_in_none_of_them() -> None:
    world = _ready()
    columns = [Column(rank=rank, payload_bytes=5000) for rank in range(4)]
    for number, column in enumerate(columns, start=1):
        store(world, column, request=20 + number, reservation=number)
    world.messages(READER)
    world.tell(READER, ListColumns(count_max=2))
    (first,) = _pages(world)
    gone = columns[3].id
    world.tell(COORDINATOR, DropColumn(1, gone))
    world.tell(READER, ListColumns(first.cursor, count_max=2))
    second = _pages(world)[-1]
    assert [each.column for each in second.columns] == [columns[2].id]
    assert second.cursor == ""


def test_more_lists_at_once_than_are_kept_are_whole_all_the_same() -> None:
    world = _ready()
    columns = [Column(rank=rank, payload_bytes=5000) for rank in range(3)]
    for number, column in enumerate(columns, start=1):
        store(world, column, request=20 + number, reservation=number)
    readers = [Session(100 + number) for number in range(ORDERS_MAX + 2)]
    cursors = []
    for reader in readers:
        world.feed(SessionOpened(world.now_us, reader, Role.READER, "r"))
        world.tell(reader, ListColumns(count_max=2))
        (page,) = (one for one in world.messages(reader) if isinstance(one, ColumnsListed))
        cursors.append(page.cursor)
    for reader, cursor in zip(readers, cursors, strict=True):
        world.tell(reader, ListColumns(cursor))
        page = world.messages(reader)[-1]
        assert isinstance(page, ColumnsListed)
        assert ([each.column for each in page.columns], page.cursor) == ([columns[2].id], "")


def _listed(world: TargetWorld, session: Session) -> list[ColumnId]:
    """By pages of three."""
    cursor, listed = "", []
    while True:
        world.tell(session, ListColumns(cursor, count_max=3))
        page = world.messages(session)[-1]
        assert isinstance(page, ColumnsListed)
        listed += [each.column for each in page.columns]
        cursor = page.cursor
        if not cursor:
            return listed


def _holdings(world: TargetWorld, cursor: str = "") -> tuple[HoldingsListed, HoldingsPage]:
    """One page, which this boot has signed."""
    mark = len(world.sent)
    world.tell(READER, ListHoldings(cursor))
    (send,) = world.sent[mark:]
    assert isinstance(send.message, HoldingsListed)
    key, page = proof_key(SECRET, TargetId("t1"), BootId(11)), bytes(send.bulk)
    assert send.message.mac == holdings_mac(key, CLUSTER, cursor, page)
    return send.message, decode_holdings(page)


def test_one_page_holds_what_many_files_are_of_generation_by_generation() -> None:
    world = _ready()
    columns = [Column(rank=rank, payload_bytes=5000) for rank in range(7)]
    for number, column in enumerate(columns, start=1):
        store(world, column, request=20 + number, reservation=number)
    put_document(world, DocumentKind.RECORD, RECORD)
    put_document(world, DocumentKind.INDEX, INDEX)
    listed, page = _holdings(world)
    assert (listed.boot, listed.cursor, page.runs) == (11, "", (CHECKPOINT.run,))
    (one,) = page.generations
    assert (one.run, one.step) == (0, CHECKPOINT.step)
    assert Generation(one.term, one.counter) == CHECKPOINT.generation
    assert sorted(HELD_COLUMN.iter_unpack(one.columns)) == [
        (each.id.payload.rank, each.id.column, xxh3_128(each.manifest)) for each in columns
    ]
    assert {kind for kind, _, _ in one.documents} == {DocumentKind.RECORD, DocumentKind.INDEX}


def test_pages_of_holdings_go_on_where_the_one_before_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ckpt.protocol.target.listing.HOLDINGS_BYTES", 2 * HELD_COLUMN.size)
    world = _ready()
    columns = [Column(rank=rank, payload_bytes=5000) for rank in range(7)]
    for number, column in enumerate(columns, start=1):
        store(world, column, request=20 + number, reservation=number)
    ranks, cursors = [], [""]
    while not ranks or cursors[-1]:
        listed, page = _holdings(world, cursors[-1])
        (one,) = page.generations
        ranks.append([rank for rank, _, _ in HELD_COLUMN.iter_unpack(one.columns)])
        cursors.append(listed.cursor)
    assert ranks == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_list_of_holdings_waits_for_what_is_being_sealed() -> None:
    world, column = _ready(), Column()
    reserve(world, column)
    write(world, column)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=20)
    world.tell(READER, ListHoldings())
    assert world.messages(READER) == []
    while world.held:
        world.step()
    (listed,) = (send for send in world.sent if isinstance(send.message, HoldingsListed))
    (one,) = decode_holdings(bytes(listed.bulk)).generations
    assert len(one.columns) == HELD_COLUMN.size


@pytest.mark.parametrize(
    "bulk",
    [
        b"", b"\xc1", encode_holdings(HoldingsPage((), (HeldGeneration(0, 1, 1, 1, b"", ()),))),
        encode_holdings(HoldingsPage((RunName("r"),), (HeldGeneration(-1, 1, 1, 1, b"", ()),))),
        encode_holdings(HoldingsPage((RunName("r"),), (HeldGeneration(0, 1, 1, 1, b"x", ()),))),
    ],
)  # fmt: skip
def test_what_is_no_page_is_refused(bulk: bytes) -> None:
    with pytest.raises(Refused, match="no list of holdings"):
        decode_holdings(bulk)
