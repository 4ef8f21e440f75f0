"""Documents, drops, listings and terms on a target, and what a start does with what it finds."""

from __future__ import annotations

from collections import deque

import pytest
from msgspec import structs

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId, Generation, Step
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.file import (
    DocumentHeader,
    decode_document_header,
    document_name,
    encode_document_header,
)
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.format.messages.targets import (
    Attest,
    Attested,
    ColumnsListed,
    DocumentStored,
    DropGeneration,
    Dropped,
    ListColumns,
    PutDocument,
)
from ckpt.protocol.events import Received, Send, SessionClosed
from ckpt.protocol.target.core import PROOF_BYTES_MAX, TargetLimits
from ckpt.protocol.target.disk_events import (
    DiskAction,
    RenameFile,
    SessionDrained,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from ckpt.testing.disk import FakeDisk, Fault, Keep
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    READER,
    WRITER,
    Column,
    PowerCut,
    TargetWorld,
    put_document,
    store,
)

INDEX = bytes(range(256)) * 1200
"""Larger than what is stored twice."""
RECORD = b"the commit record" * 50


def document(
    world: TargetWorld, kind: DocumentKind, start: int = 0, end: int | None = None
) -> bytes:
    world.sent.clear()
    world.tell(READER, ReadDocument(kind, CHECKPOINT, start, end))
    parts = [each for each in world.sent if isinstance(each.message, DocumentData)]
    return b"".join(bytes(each.bulk) for each in parts)


def _answers(world: TargetWorld) -> list[object]:
    return list(world.messages(COORDINATOR))


def _ready(disk: FakeDisk | None = None, boot: int = 11) -> TargetWorld:
    world = TargetWorld(disk, boot=boot)
    world.messages(COORDINATOR)
    return world


# --------------------------------------------------------------------------- documents


@pytest.mark.parametrize("kind", list(DocumentKind))
@pytest.mark.parametrize("data", [b"", b"x", RECORD, INDEX])
@pytest.mark.parametrize("part", [1 << 20, 1000])
def test_a_document_is_stored_answered_once_and_read_back(
    kind: DocumentKind, data: bytes, part: int
) -> None:
    world = _ready()
    put_document(world, kind, data, part=part)
    assert _answers(world) == [DocumentStored(kind, CHECKPOINT)]
    assert document(world, kind) == data
    assert document(world, kind, 5, 9) == data[5:9] or not data[5:9]
    again = _ready(world.disk, boot=12)
    assert document(again, kind) == data


def test_a_document_is_durable_before_it_is_answered() -> None:
    world = _ready()
    sent_at: list[int] = []
    world.before = lambda _action: sent_at.append(len(world.sent))
    world.performed.clear()
    put_document(world, DocumentKind.RECORD, RECORD)
    kinds: list[type[DiskAction]] = [type(action) for action in world.performed]
    assert kinds == [WriteAt] * 4 + [SyncFile, RenameFile, SyncDirectory]
    assert set(sent_at) == {0}


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("data", [RECORD, INDEX])
def test_a_crash_at_any_action_leaves_the_document_whole_or_absent(keep: Keep, data: bytes) -> None:
    for point in range(20):
        world = _ready(FakeDisk(seed=point))
        count = 0

        def cut(_action: DiskAction, point: int = point) -> None:
            nonlocal count
            if count == point:
                raise PowerCut
            count += 1

        world.before = cut
        finished = True
        try:
            put_document(world, DocumentKind.INDEX, data)
        except PowerCut:
            finished = False
        stored = _answers(world) == [DocumentStored(DocumentKind.INDEX, CHECKPOINT)]
        world.disk.crash(keep)
        found = document(_ready(world.disk, boot=12), DocumentKind.INDEX)
        assert found in ((data,) if stored else (b"", data))
        if finished:
            return
    raise AssertionError("the put never ended")


def test_a_document_that_does_not_match_its_digest_is_refused() -> None:
    world = _ready()
    put_document(world, DocumentKind.INDEX, INDEX, digest=b"\0" * 16)
    (answer,) = _answers(world)
    assert isinstance(answer, Failed)
    assert answer.code == "corrupt"
    assert world.disk.list_directory("documents") == []
    assert world.disk.list_directory("staging") == []


@pytest.mark.parametrize("kind", list(DocumentKind))
def test_one_that_is_put_again_takes_the_place_of_a_damaged_one(kind: DocumentKind) -> None:
    """And is there, or the damaged one, when the power goes."""
    world = _ready()
    put_document(world, kind, RECORD)
    file = f"documents/{document_name(kind.value, CHECKPOINT)}"
    right = world.disk.durable(file)
    for offset in (0, 4096 + 10, 8192 + 10):
        world.disk.rot(file, offset)
    put_document(world, kind, RECORD)
    assert world.disk.durable(file) != right, "the same stands, says who puts it once more"
    put_document(world, kind, RECORD, again=True)
    assert _answers(world) == [DocumentStored(kind, CHECKPOINT)] * 3
    assert world.disk.durable(file) == right
    assert (document(world, kind), world.disk.list_directory("staging")) == (RECORD, [])
    used = world.machine.bytes_used
    assert _ready(world.disk, boot=12).machine.bytes_used == used


def test_another_record_takes_no_place_though_it_is_put_again() -> None:
    world = _ready()
    put_document(world, DocumentKind.RECORD, RECORD)
    put_document(world, DocumentKind.RECORD, RECORD + b"!", again=True)
    assert [type(answer) for answer in _answers(world)] == [DocumentStored, Failed]
    assert document(world, DocumentKind.RECORD) == RECORD


def test_a_repeated_document_is_answered_again_and_another_record_is_refused() -> None:
    world = _ready()
    put_document(world, DocumentKind.RECORD, RECORD)
    put_document(world, DocumentKind.RECORD, RECORD)
    put_document(world, DocumentKind.RECORD, RECORD + b"!")
    first, second, third = _answers(world)
    assert first == second == DocumentStored(DocumentKind.RECORD, CHECKPOINT)
    assert isinstance(third, Failed)
    assert third.code == "refused"
    assert document(world, DocumentKind.RECORD) == RECORD


@pytest.mark.parametrize("data", [RECORD, INDEX])
def test_every_bulk_of_a_document_that_was_kept_is_released_once(data: bytes) -> None:
    """Each is a piece of the pool that all sessions receive into."""
    world = _ready()
    put_document(world, DocumentKind.INDEX, data, part=1000)
    assert world.released == world.kept
    assert bool(world.kept) == (data is INDEX)


def test_a_document_without_space_is_refused_once() -> None:
    world = _ready(FakeDisk(bytes_total=40 * 4096))
    put_document(world, DocumentKind.INDEX, INDEX)
    (failed,) = _answers(world)
    assert isinstance(failed, Failed)
    assert failed.code == "no_space"


@pytest.mark.parametrize("kind", [DocumentKind.INDEX, DocumentKind.LABELS])
def test_another_one_of_the_same_generation_replaces_the_first(kind: DocumentKind) -> None:
    world = _ready()
    put_document(world, kind, INDEX)
    put_document(world, kind, INDEX[::-1])
    assert document(world, kind) == INDEX[::-1]


def test_one_whose_place_another_takes_before_it_is_stored_is_answered_too() -> None:
    """Its sender may have enough copies and put the next one, and still waits for this one."""
    world, answered = _ready(), []
    for request, data in ((60, RECORD), (61, RECORD[::-1])):
        message = PutDocument(
            1, DocumentKind.LABELS, CHECKPOINT, len(data), 0, xxh3_128(data)
        )  # fmt: skip
        put = Received(world.now_us, COORDINATOR, request, message, data)
        answered += [each for each in world.machine.handle(put) if isinstance(each, Send)]
    (failed,) = answered
    assert failed.request == 60
    assert isinstance(failed.message, Failed)
    assert failed.message.code == "aborted"


def _until_synced(world: TargetWorld) -> None:
    """The newest that was put is about to be."""
    assert world.held is not None
    while not isinstance(world.held[-1], SyncFile):
        world.step(-1)


def _until_done(world: TargetWorld, newest_first: bool) -> None:
    while world.held:
        world.step(-1 if newest_first else 0)
    world.held = None


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("data", [RECORD, INDEX])
@pytest.mark.parametrize("kind", [DocumentKind.INDEX, DocumentKind.LABELS])
def test_the_one_that_was_put_last_stands_whatever_the_disk_did_first(
    kind: DocumentKind, data: bytes, earlier: bool, newest_first: bool
) -> None:
    """A device was slow: the first was renamed over the second, which had been answered.

    earlier: the last one had stood before, and was answered while another was on its way there.
    """
    world = _ready()
    if earlier:
        put_document(world, kind, data[::-1])
    world.held = deque()
    put_document(world, kind, data)
    _until_synced(world)
    put_document(world, kind, data[::-1])
    _until_done(world, newest_first)
    assert _answers(world) == [DocumentStored(kind, CHECKPOINT)] * (2 + earlier)
    assert document(world, kind) == data[::-1]
    again = _ready(world.disk, boot=12)
    assert document(again, kind) == data[::-1]
    assert again.machine.bytes_used == world.machine.bytes_used


def test_of_two_records_on_their_way_the_first_stands() -> None:
    """Two coordinators, say: the second was answered, and took the place of the first."""
    world = _ready()
    world.held = deque()
    for data in (RECORD, RECORD, RECORD + b"!"):
        put_document(world, DocumentKind.RECORD, data)
        _until_synced(world)
    _until_done(world, newest_first=True)
    first, second, third = _answers(world)
    assert first == second == DocumentStored(DocumentKind.RECORD, CHECKPOINT)
    assert isinstance(third, Failed)
    assert third.code == "refused"
    assert document(world, DocumentKind.RECORD) == RECORD
    again = _ready(world.disk, boot=12)
    assert again.machine.bytes_used == world.machine.bytes_used


def test_questions_for_small_documents_are_read_within_the_window_of_their_session() -> None:
    world = _ready()
    put_document(world, DocumentKind.RECORD, RECORD)
    limits = TargetLimits(
        read_piece_bytes=len(RECORD), read_window_bytes=2 * len(RECORD), read_pool_bytes=1 << 20
    )
    world = TargetWorld(world.disk, boot=12, limits=limits)
    world.held, world.auto_drain = deque(), False
    for request in range(20, 25):
        world.tell(READER, ReadDocument(DocumentKind.RECORD, CHECKPOINT), request=request)
    answered: list[int] = []
    while len(answered) < 5:
        assert 0 < len(world.held) <= 2
        world.step()
        answered += [each.request for each in world.sent if each.session == READER]
        world.messages(READER)
        world.feed(SessionDrained(world.now_us, READER))
    assert answered == list(range(20, 25))


def test_the_second_copy_of_a_record_answers_for_a_damaged_first() -> None:
    world = _ready()
    put_document(world, DocumentKind.RECORD, RECORD)
    name = document_name("record", CHECKPOINT)
    world.disk.rot(f"documents/{name}", 4096 + 3)
    assert document(world, DocumentKind.RECORD) == RECORD
    world.disk.rot(f"documents/{name}", 8192 + 3)
    world.tell(READER, ReadDocument(DocumentKind.RECORD, CHECKPOINT))
    answer = world.messages(READER)[-1]
    assert isinstance(answer, Failed)
    assert answer.code == "corrupt"


def test_a_document_whose_first_header_is_damaged_is_found_by_its_last() -> None:
    world = _ready()
    put_document(world, DocumentKind.INDEX, INDEX)
    name = document_name("index", CHECKPOINT)
    world.disk.rot(f"documents/{name}", 20)
    assert document(_ready(world.disk, boot=12), DocumentKind.INDEX) == INDEX


def test_a_large_document_that_cannot_be_read_fails_once_and_the_next_question_is_answered() -> (
    None
):
    world = _ready()
    put_document(world, DocumentKind.INDEX, INDEX)
    world.disk.faults.append(Fault("read"))
    world.tell(READER, ReadDocument(DocumentKind.INDEX, CHECKPOINT))
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "corrupt"
    assert document(world, DocumentKind.INDEX) == INDEX


def test_a_document_that_has_lost_its_end_is_damaged() -> None:
    """The disk gives fewer bytes than it was asked for, and no error: they are not the document."""
    world = _ready()
    put_document(world, DocumentKind.INDEX, INDEX)
    world.disk.truncate_file(f"documents/{document_name('index', CHECKPOINT)}", 4096 + 1000)
    world.tell(READER, ReadDocument(DocumentKind.INDEX, CHECKPOINT))
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "corrupt"
    assert world.machine.counters["blocks_damaged"] == 1


@pytest.mark.parametrize("parts", [2, 5])
def test_of_a_document_of_which_a_part_cannot_be_read_no_other_part_is_sent(parts: int) -> None:
    """Neither what is under way, also where that is the rest of it, nor what comes after."""
    world, piece = _ready(), 4096
    put_document(world, DocumentKind.INDEX, INDEX)
    limits = TargetLimits(
        read_piece_bytes=piece, read_window_bytes=2 * piece, read_pool_bytes=1 << 20
    )
    world = TargetWorld(world.disk, boot=12, limits=limits)
    world.held = deque()
    world.disk.faults.append(Fault("read"))
    world.tell(READER, ReadDocument(DocumentKind.INDEX, CHECKPOINT, 0, parts * piece))
    for _ in range(2):
        world.step()
    assert not world.held
    (answer,) = world.messages(READER)
    assert isinstance(answer, Failed)
    assert answer.code == "corrupt"


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
def test_a_disk_failure_refuses_the_document(operation: str) -> None:
    world = _ready()
    world.disk.faults.append(Fault(operation))
    put_document(world, DocumentKind.INDEX, INDEX)
    (answer,) = _answers(world)
    assert isinstance(answer, Failed)
    assert world.disk.list_directory("staging") == []
    put_document(world, DocumentKind.INDEX, INDEX)
    assert _answers(world) == [DocumentStored(DocumentKind.INDEX, CHECKPOINT)]


def test_parts_of_a_lost_session_leave_nothing_behind() -> None:
    world = _ready()
    message = PutDocument(1, DocumentKind.INDEX, CHECKPOINT, len(INDEX), 0, xxh3_128(INDEX))
    world.tell(COORDINATOR, message, INDEX[:1000])
    world.feed(SessionClosed(world.now_us, COORDINATOR))
    assert world.disk.list_directory("staging") == []


def test_a_document_header_survives_its_page_and_refuses_a_flipped_bit() -> None:
    header = DocumentHeader("c", "index", CHECKPOINT, 70_000, b"d" * 16)
    page = encode_document_header(header)
    assert decode_document_header(page) == header
    for offset in (0, 4, 8, 30, 4095):
        bad = bytearray(page)
        bad[offset] ^= 4
        with pytest.raises(Corrupt):
            decode_document_header(bytes(bad))


# --------------------------------------------------------------------------- drops and listings


def test_a_dropped_generation_is_gone_durably_but_for_its_tombstone() -> None:
    world = _ready()
    column, other = Column(), Column(checkpoint=structs.replace(CHECKPOINT, step=Step(8)))
    store(world, column, reservation=1)
    store(world, other, request=21, reservation=2)
    for kind in DocumentKind:
        put_document(world, kind, RECORD)
    world.messages(COORDINATOR)
    used = world.machine.bytes_used
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    (dropped,) = _answers(world)
    assert isinstance(dropped, Dropped)
    assert dropped.bytes_freed == used - world.machine.bytes_used
    for kind in (DocumentKind.INDEX, DocumentKind.RECORD, DocumentKind.LABELS):
        world.tell(READER, ReadDocument(kind, CHECKPOINT))
    codes = [one.code for one in world.messages(READER) if isinstance(one, Failed)]
    assert codes == ["not_found"] * 3
    world.disk.crash(Keep.NOTHING)
    again = _ready(world.disk, boot=12)
    again.tell(READER, ListColumns())
    (page,) = again.messages(READER)
    assert isinstance(page, ColumnsListed)
    assert [each.column for each in page.columns] == [other.id]
    assert [each.kind for each in page.documents] == [DocumentKind.TOMBSTONE]
    again.messages(COORDINATOR)
    again.tell(COORDINATOR, DropGeneration(1, CHECKPOINT, tombstone=True))
    again.disk.crash(Keep.NOTHING)
    last = _ready(again.disk, boot=13)
    last.tell(READER, ListColumns())
    (page,) = last.messages(READER)
    assert isinstance(page, ColumnsListed)
    assert [each.column for each in page.columns] == [other.id]
    assert page.documents == ()


def test_only_what_is_sealed_is_attested() -> None:
    world, column, other = _ready(), Column(), Column(column=2)
    store(world, column)
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, Attest(1, (other.id, column.id)))
    (attested,) = _answers(world)
    assert isinstance(attested, Attested)
    assert [each.column for each in attested.proofs] == [column.id]


def test_a_tombstone_in_another_coordinators_words_is_there_already() -> None:
    world = TargetWorld()
    put_document(world, DocumentKind.TOMBSTONE, b"deleted under term 1")
    put_document(world, DocumentKind.TOMBSTONE, b"deleted, says term 2", term=2)
    stored = DocumentStored(DocumentKind.TOMBSTONE, CHECKPOINT)
    assert world.messages(COORDINATOR)[-2:] == [stored, stored]
    world.tell(READER, ReadDocument(DocumentKind.TOMBSTONE, CHECKPOINT))
    (read,) = [each for each in world.sent if each.session == READER]
    assert bytes(read.bulk) == b"deleted under term 1"


def test_so_many_dropped_generations_are_remembered_and_no_more() -> None:
    """A target runs for months; what nobody begins any more need not be known."""
    world, column = _ready(), Column()
    world.tell(COORDINATOR, DropGeneration(1, CHECKPOINT))
    for counter in range(100, 100 + 4095):
        other = CheckpointId(CHECKPOINT.run, CHECKPOINT.step, Generation(1, counter))
        world.tell(COORDINATOR, DropGeneration(1, other))
    world.tell(WRITER, column.begin(), request=20)
    last = CheckpointId(CHECKPOINT.run, CHECKPOINT.step, Generation(2, 1))
    world.tell(COORDINATOR, DropGeneration(1, last))
    world.tell(WRITER, column.begin(), request=21)
    codes = [each.code for each in world.messages(WRITER) if isinstance(each, Failed)]
    assert codes == ["aborted", "refused"], "the second for want of a reservation"


def test_a_page_holds_no_more_than_the_meta_of_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    two = 2 * (PROOF_BYTES_MAX + len(CHECKPOINT.run.encode()))
    monkeypatch.setattr("ckpt.protocol.target.listing.META_BUDGET_BYTES", two)
    world = _ready()
    for number in range(1, 6):
        store(world, Column(rank=number, payload_bytes=5000), request=number, reservation=number)
    cursor, sizes = "", []
    while not sizes or cursor:
        world.messages(READER)
        world.tell(READER, ListColumns(cursor))
        (page,) = world.messages(READER)
        assert isinstance(page, ColumnsListed)
        sizes.append(len(page.columns))
        cursor = page.cursor
    assert sizes == [2, 2, 1]
