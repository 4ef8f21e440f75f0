"""What a target says is held against its disk: too early is found, and in time is fine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.ids import (
    BootId,
    CatalogPosition,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.documents.file import document_name
from ckpt.format.messages import Message
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    PutDocument,
    RegisterTarget,
    Reserve,
    Reserved,
)
from ckpt.protocol.events import Send, Session
from ckpt.protocol.target.core import column_name
from ckpt.protocol.target.disk_events import DiskDone
from ckpt.protocol.target.term import TERM_FILE, encode_term
from ckpt.testing.disk import FakeDisk
from tests.sim.oracles import Violation
from tests.sim.vows import Command, Vows

COORDINATOR = Session(1)
CHECKPOINT = CheckpointId(RunName("run"), Step(7), Generation(1, 4))
COLUMN = ColumnId(PayloadId(CHECKPOINT, Rank(1)), ColumnNumber(2))
DOCUMENT = f"documents/{document_name('record', CHECKPOINT)}"
PUT = PutDocument(1, DocumentKind.RECORD, CHECKPOINT, 1, 0, b"")
STORED = DocumentStored(DocumentKind.RECORD, CHECKPOINT)
DONE = DiskDone(1, 1)


@pytest.fixture
def disk() -> FakeDisk:
    """Empty, but for a term of 1."""
    made = FakeDisk()
    for directory in ("staging", "columns", "documents"):
        made.make_directory(directory)
    made.write_at(TERM_FILE, 0, encode_term(1))
    made.sync_file(TERM_FILE)
    made.sync_directory("")
    return made


@pytest.fixture
def vows(disk: FakeDisk) -> Vows:
    return Vows("t0", disk)


def answer(vows: Vows, message: Message, command: Command | None = None) -> Callable[[], None]:
    """Says it, to a command if there is one, because the disk has done something."""

    def say() -> None:
        if command is not None:
            vows.heard(COORDINATOR, 9, command)
        vows.says(Send(COORDINATOR, 9, message), DONE)

    return say


def expect_violation(said: Callable[[], None], text: str) -> None:
    with pytest.raises(Violation, match=text):
        said()


def test_a_file_gets_its_name_after_all_its_bytes_are_synced(disk: FakeDisk, vows: Vows) -> None:
    disk.write_at("staging/document-1", 0, b"record")
    expect_violation(lambda: vows.renames("staging/document-1"), "not synced")
    disk.sync_file("staging/document-1")
    vows.renames("staging/document-1")


def test_a_document_is_stored_when_its_name_is_durable(disk: FakeDisk, vows: Vows) -> None:
    disk.write_at(DOCUMENT, 0, b"record")
    expect_violation(answer(vows, STORED, PUT), "before its name is durable")
    disk.sync_directory("documents")
    answer(vows, STORED, PUT)()


@pytest.mark.parametrize("command", [DropGeneration(1, CHECKPOINT), DropColumn(1, COLUMN)])
def test_a_column_is_dropped_when_no_crash_brings_it_back(
    disk: FakeDisk, vows: Vows, command: Command
) -> None:
    file = f"columns/{column_name(COLUMN)}"
    disk.write_at(file, 0, b"column")
    disk.sync_directory("columns")
    disk.remove_file(file)
    expect_violation(answer(vows, Dropped(0), command), "a crash brings it back")
    disk.sync_directory("columns")
    answer(vows, Dropped(0), command)()


def test_nothing_of_a_dropped_generation_is_taken_in_again(disk: FakeDisk, vows: Vows) -> None:
    answer(vows, Dropped(0), DropGeneration(1, CHECKPOINT))()
    disk.write_at(DOCUMENT, 0, b"record")
    disk.sync_directory("documents")
    expect_violation(answer(vows, STORED, PUT), "again, which it dropped")


def test_a_command_is_obeyed_when_its_term_is_durable(disk: FakeDisk, vows: Vows) -> None:
    reservation = ReservationId(3)
    answer(vows, Reserved(reservation), Reserve(1, reservation, 4096))()
    expect_violation(answer(vows, Reserved(reservation), Reserve(2, reservation, 4096)), "term 2")


def test_a_target_tells_of_no_term_and_no_catalog_that_it_may_forget(vows: Vows) -> None:
    def registered(term: int, position: CatalogPosition | None) -> Message:
        return RegisterTarget(
            TargetId("t0"), BootId(1), "", "", "", "", 0, 0, 0, 0, term, catalog=position
        )

    answer(vows, registered(1, None))()
    expect_violation(answer(vows, registered(2, None)), "term 2")
    expect_violation(answer(vows, registered(1, CatalogPosition(1, 5))), "not durable")
