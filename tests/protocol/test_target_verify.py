"""Every byte of a column's file and of the documents beside it is compared, and what differs is
named by its region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.base.limits import BLOCK_BYTES, PAGE_BYTES
from ckpt.base.units import KiB
from ckpt.format.column import FRAGMENTS_OFFSET, file_bytes, manifest_bytes_bound, trailer_bytes
from ckpt.format.documents.file import document_name
from ckpt.format.messages.hello import CancelRequest, Failed
from ckpt.format.messages.reading import (
    ByteRange,
    ColumnVerified,
    Damage,
    DocumentKind,
    ReadDocument,
    VerifyColumn,
)
from ckpt.format.messages.targets import DropGeneration
from ckpt.protocol.target.core import TargetLimits, column_name
from ckpt.protocol.target.disk_events import ReadAt
from ckpt.testing.disk import Fault
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    READER,
    Column,
    TargetWorld,
    put_document,
    store,
)

COLUMN = Column(payload_bytes=700_000, cell_bytes=192 * KiB, column=0)
FILE = f"columns/{column_name(COLUMN.id)}"
DATA = len(COLUMN.data)
TRAILER = trailer_bytes(COLUMN.layout, manifest_bytes_bound(COLUMN.layout))
SIZE = file_bytes(COLUMN.layout, manifest_bytes_bound(COLUMN.layout))
TABLE = 4 * COLUMN.layout.block_count
BODY = TABLE + len(COLUMN.manifest)
RECORD = b"the record of it"
SMALL = TargetLimits(read_piece_bytes=16 * KiB)
"""Less than a block in one read, so that all else is read in several."""


def stored(limits: TargetLimits | None = None) -> TargetWorld:
    """A column, with a record, an index of several pages, and labels beside it."""
    world = TargetWorld(limits=limits)
    store(world, COLUMN)
    put_document(world, DocumentKind.RECORD, RECORD)
    put_document(world, DocumentKind.INDEX, b"i" * 70_000)
    put_document(world, DocumentKind.LABELS, b"labels")
    world.messages(READER)
    return world


def verified(world: TargetWorld, *, documents: bool = True) -> ColumnVerified:
    world.tell(READER, VerifyColumn(COLUMN.id, documents))
    (answer,) = world.messages(READER)
    assert isinstance(answer, ColumnVerified)
    return answer


def test_what_is_as_it_was_written_is_whole() -> None:
    expected = ColumnVerified(COLUMN.id, False, DATA, (), (), documents=3)
    assert verified(stored()) == expected
    assert verified(stored(SMALL)) == expected
    assert verified(stored(), documents=False).documents == 0


TRAILERS = FRAGMENTS_OFFSET + DATA
REGIONS = {
    "header 1": (0, 100, PAGE_BYTES),
    "block table 1": (TRAILERS, 0, BODY + 4),
    "manifest 1": (TRAILERS, TABLE + 5, BODY),
    "padding 1": (TRAILERS, TRAILER - 1, TRAILER),
    "block table 2": (TRAILERS + TRAILER, 0, BODY + 4),
    "manifest 2": (TRAILERS + TRAILER, TABLE + 5, BODY),
    "padding 2": (TRAILERS + TRAILER, TRAILER - 1, TRAILER),
    "header 2": (SIZE - PAGE_BYTES, PAGE_BYTES - 1, PAGE_BYTES),
}
"""Region -> where its part of the file begins, the byte of it that rots, and where damage ends."""


@pytest.mark.parametrize("limits", [None, SMALL], ids=["whole", "in-windows"])
@pytest.mark.parametrize("region", REGIONS)
def test_a_flipped_bit_beside_the_cells_is_named(region: str, limits: TargetLimits | None) -> None:
    world = stored(limits)
    start, at, end = REGIONS[region]
    world.disk.rot(FILE, start + at)
    found = verified(world)
    assert found.damaged == ()
    (damage,) = found.beside
    assert (damage.kind, damage.region, damage.end) == ("column", region, start + end)
    assert damage.start <= start + at < damage.end


def test_every_byte_of_the_file_counts() -> None:
    """Of a small one each; a flipped bit anywhere is found."""
    small = Column(payload_bytes=5_000, cell_bytes=4096)
    world = TargetWorld()
    store(world, small)
    file = f"columns/{column_name(small.id)}"
    for at in range(0, world.disk.file_bytes(file), 7):
        world.disk.rot(file, at, bit=at % 8)
        world.tell(READER, VerifyColumn(small.id))
        (answer,) = world.messages(READER)
        assert isinstance(answer, ColumnVerified)
        assert answer.damaged or answer.beside, f"byte {at}"
        world.disk.rot(file, at, bit=at % 8)


DOCUMENTS: dict[str, tuple[DocumentKind, Callable[[int], int], str]] = {
    "first header of the record": (DocumentKind.RECORD, lambda _: 9, "header 1"),
    "first copy of the record": (DocumentKind.RECORD, lambda _: PAGE_BYTES, "copy 1"),
    "zeros after it": (DocumentKind.RECORD, lambda _: PAGE_BYTES + 100, "padding 1"),
    "second copy of the record": (DocumentKind.RECORD, lambda _: 2 * PAGE_BYTES, "copy 2"),
    "zeros after that": (DocumentKind.RECORD, lambda _: 3 * PAGE_BYTES - 1, "padding 2"),
    "last header of the record": (DocumentKind.RECORD, lambda size: size - 1, "header 2"),
    "the index": (DocumentKind.INDEX, lambda _: PAGE_BYTES + 69_999, "copy 1"),
    "zeros after the index": (DocumentKind.INDEX, lambda _: PAGE_BYTES + 70_001, "padding 1"),
    "the labels": (DocumentKind.LABELS, lambda _: 2 * PAGE_BYTES + 3, "copy 2"),
}


@pytest.mark.parametrize("limits", [None, SMALL], ids=["whole", "in-windows"])
@pytest.mark.parametrize("where", DOCUMENTS)
def test_a_flipped_bit_of_a_document_is_named(where: str, limits: TargetLimits | None) -> None:
    kind, place, region = DOCUMENTS[where]
    world = stored(limits)
    file = f"documents/{document_name(kind.value, CHECKPOINT)}"
    world.disk.rot(file, place(world.disk.file_bytes(file)))
    found = verified(world)
    assert [(one.kind, one.region) for one in found.beside] == [(kind.value, region)]
    assert found.damaged == ()
    assert verified(world, documents=False).beside == ()


def test_what_the_disk_cannot_read_is_damaged_where_it_cannot() -> None:
    world = stored()
    unread: list[int] = []

    def fail(action: object) -> None:
        if isinstance(action, ReadAt):
            covers = action.offset <= FRAGMENTS_OFFSET + BLOCK_BYTES < action.offset + action.length
            if covers:
                unread.append(action.length)
                world.disk.faults.append(Fault("read"))

    world.before = fail
    found = verified(world)
    assert found.damaged == (ByteRange(BLOCK_BYTES, 192 * KiB),)
    assert found.beside == ()
    assert unread[-1] == 64 * KiB, "the block itself"


def test_a_page_of_a_trailer_that_cannot_be_read_is_named_alone() -> None:
    world = stored()

    def fail(action: object) -> None:
        if isinstance(action, ReadAt) and action.offset <= TRAILERS < action.offset + action.length:
            world.disk.faults.append(Fault("read"))

    world.before = fail
    found = verified(world)
    assert found.beside == (
        Damage("column", "block table 1", TRAILERS, TRAILERS + PAGE_BYTES, "EIO"),
    )


def test_a_valid_page_of_another_column_is_no_header_of_this_one() -> None:
    world, other = stored(), Column(column=1)
    store(world, other, reservation=2, request=21)
    world.disk.misplace(FILE, 0, f"columns/{column_name(other.id)}", 0)
    (damage,) = verified(world).beside
    assert (damage.region, damage.why) == ("header 1", "of another file")


def test_all_of_it_is_read_at_rest() -> None:
    world = stored()
    world.performed.clear()
    verified(world)
    reads = [each for each in world.performed if isinstance(each, ReadAt)]
    assert all(each.at_rest for each in reads)
    ranges = sorted((each.offset, each.length) for each in reads if each.file == FILE)
    ends = [0, *(offset + length for offset, length in ranges)]
    assert [offset for offset, _ in ranges] == ends[:-1]
    assert ends[-1] == SIZE


def test_a_file_that_is_gone_without_a_drop_is_damaged_and_a_dropped_one_is_missing() -> None:
    world = stored()
    world.disk.remove_file(FILE)
    found = verified(world)
    assert found.damaged == (ByteRange(0, DATA),)
    assert found.beside == (Damage("column", "file", 0, SIZE, "it is not there"),)

    world = stored()
    world.held = deque()
    world.tell(READER, VerifyColumn(COLUMN.id))
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    world.step(index=1)
    world.step(index=0)
    while world.held:
        world.step()
    assert ColumnVerified(COLUMN.id, True, 0) in world.messages(READER)


def test_labels_that_are_replaced_while_they_are_read_are_not_damaged() -> None:
    """After each step of their replacement: the old ones, neither, or the new ones."""
    for steps in range(8):
        world = stored()
        world.held = deque()
        put_document(world, DocumentKind.LABELS, b"other labels, and longer")
        for _ in range(steps):
            if world.held:
                world.step()
        waiting, world.held = world.held, None
        found = verified(world)
        assert found.beside == (), f"after step {steps}"
        world.held = waiting
        while world.held:
            world.step()
        world.held = None
        assert verified(world).documents == 3


@pytest.mark.parametrize("errno_name", ["ENOMEM", "EACCES", "EPERM"])
def test_a_read_that_fails_for_want_of_memory_or_of_rights_proves_nothing(errno_name: str) -> None:
    """After a `chown` of files all targets called them damaged, and their checkpoint was lost."""
    world = stored()
    world.disk.faults.append(Fault("read", errno_name))
    world.tell(READER, VerifyColumn(COLUMN.id))
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "unavailable"
    assert answer.message == f"{FILE} cannot be read now: {errno_name}"
    assert world.machine.counters["blocks_damaged"] == 0


@pytest.mark.parametrize(("errno_name", "is_missing"), [("EACCES", False), ("EIO", True)])
def test_of_a_column_that_a_start_may_not_read_nobody_says_that_it_is_missing(
    errno_name: str, is_missing: bool
) -> None:
    """Two targets that said so of a 2+1 checkpoint proved its loss, for good."""
    world = stored()
    world.disk.faults.append(Fault("read", errno_name, file=FILE, count=2))
    again = TargetWorld(world.disk, boot=12)
    again.tell(READER, VerifyColumn(COLUMN.id))
    (answer,) = again.messages(READER)
    if is_missing:
        assert isinstance(answer, ColumnVerified)
        assert answer.missing
    else:
        unread = Failed("unavailable", f"{FILE} cannot be read now: {errno_name}")
        assert answer == unread
    store(again, COLUMN, reservation=7)
    assert verified(again).column_bytes == DATA


@pytest.mark.parametrize("errno_name", ["EACCES", "EMFILE"])
@pytest.mark.parametrize("kind", [DocumentKind.RECORD, DocumentKind.INDEX])
def test_a_document_that_may_not_be_read_now_is_not_called_damaged(
    kind: DocumentKind, errno_name: str
) -> None:
    """Where all holders of an index called it damaged, its checkpoint was lost for good."""
    world = stored()
    world.disk.faults.append(Fault("read", errno_name, count=2))
    world.tell(READER, ReadDocument(kind, CHECKPOINT))
    (answer,) = world.messages(READER)
    name = f"documents/{document_name(kind.value, CHECKPOINT)}"
    assert answer == Failed("unavailable", f"{name} cannot be read now: {errno_name}")
    assert world.machine.counters["blocks_damaged"] == 0


def test_documents_are_read_where_the_column_is_not() -> None:
    world = stored()
    absent = ColumnId(PayloadId(CHECKPOINT, Rank(9)), ColumnNumber(0))
    world.disk.rot(f"documents/{document_name('record', CHECKPOINT)}", PAGE_BYTES)
    world.tell(READER, VerifyColumn(absent, documents=True))
    (answer,) = world.messages(READER)
    assert isinstance(answer, ColumnVerified)
    assert (answer.missing, answer.documents) == (True, 3)
    assert [one.region for one in answer.beside] == ["copy 1"]


def test_who_gives_up_is_not_answered_and_the_next_one_is() -> None:
    world = stored()
    world.held = deque()
    world.tell(READER, VerifyColumn(COLUMN.id), request=5)
    world.tell(READER, CancelRequest(), request=5)
    while world.held:
        world.step()
    world.held = None
    assert world.messages(READER) == []
    assert verified(world).damaged == ()


def test_another_generation_s_documents_are_not_read() -> None:
    world = stored()
    other = CheckpointId(CHECKPOINT.run, CHECKPOINT.step, type(CHECKPOINT.generation)(1, 9))
    put_document(world, DocumentKind.RECORD, b"another", checkpoint=other)
    assert verified(world).documents == 3
