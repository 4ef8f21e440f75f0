"""A target's word: what it says lies on stable storage lies there when it says so (P1, P10).

    a file gets its name                  after all its bytes were synced
    a column is sealed, a document kept   under its name, which no crash can take away
    a column is said to be here           under its name, whatever was written over it meanwhile
    a column, a generation is dropped     no name of it comes back after a crash, and nothing of a
                                          generation is taken in again
    a command of a term is obeyed         that term is durable, and no lower one is obeyed again

One watcher for each boot. Whether a crash strikes in between is left to chance and to aims
(`windows.py`); here the promise itself is held.
"""

from __future__ import annotations

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.format.messages import Message
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    Attest,
    Attested,
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    PutDocument,
    RegisterTarget,
    Reserve,
    Reserved,
)
from ckpt.format.messages.writing import ColumnSealed
from ckpt.protocol.events import Send, Session
from ckpt.protocol.target.core import column_name
from ckpt.protocol.target.disk_events import DiskDone
from ckpt.protocol.target.documents import document_name
from ckpt.protocol.target.notes.catalog_note import CATALOG_FILE, decode_note
from ckpt.protocol.target.term import TERM_FILE, decode_term
from ckpt.testing.disk import FakeDisk
from tests.sim.oracles import Violation

Command = Reserve | Attest | PutDocument | DropGeneration | DropColumn
COMMANDS: frozenset[type[Message]] = frozenset(
    {Reserve, Attest, PutDocument, DropGeneration, DropColumn}
)
"""Of a coordinator, under its term."""
OBEYED = frozenset({Reserved, Attested, DocumentStored, Dropped})
VOWS: frozenset[type[Message]] = OBEYED | {ColumnSealed, RegisterTarget}
"""What says that something is durable."""


class Vows:
    """I raise Violation at the first word that is ahead of the disk."""

    def __init__(self, name: str, disk: FakeDisk) -> None:
        self._name, self._disk = name, disk
        #: Commands that were not answered, by who asked.
        self._asked: dict[tuple[Session, int], Command] = {}
        #: Generations that it said are gone.
        self._dropped: set[CheckpointId] = set()

    def heard(self, session: Session, request: int, command: Command) -> None:
        """One of COMMANDS."""
        self._asked[session, request] = command

    def session_closed(self, session: Session) -> None:
        """Its answers reach nobody."""
        for key in [key for key in self._asked if key[0] == session]:
            del self._asked[key]

    def renames(self, file: str) -> None:
        """What was written aside is about to get its name."""
        if file.startswith("staging/") and not self._disk.is_synced(file):
            raise Violation(f"P1: {self._name} renames {file}, whose bytes are not synced")

    def says(self, action: Send, cause: object) -> None:
        """One of VOWS. What stood there before is said again without a look at the disk, and a
        fault may have harmed it since: only what a disk operation just ended is checked.
        """
        command = self._asked.pop((action.session, action.request), None)
        if command is not None and type(action.message) in OBEYED:
            self._check_term(command.term)
        fresh = type(cause) is DiskDone
        match action.message:
            case ColumnSealed(proof) if fresh:
                self._check_kept(f"columns/{column_name(proof.column)}")
                self._check_new(proof.column.payload.checkpoint)
            case DocumentStored(kind, checkpoint) if fresh:
                self._check_kept(f"documents/{document_name(kind.value, checkpoint)}")
                if kind is not DocumentKind.TOMBSTONE:
                    self._check_new(checkpoint)
            case Attested(proofs):
                for proof in proofs:
                    self._check_here(f"columns/{column_name(proof.column)}")
            case Dropped() if isinstance(command, DropColumn):
                self._check_gone(column_name(command.column))
            case Dropped() if isinstance(command, DropGeneration):
                self._check_gone(_prefix_of(command.checkpoint))
                self._dropped.add(command.checkpoint)
            case RegisterTarget(term_seen=term, catalog=position):
                self._check_term(term)
                note = self._disk.durable(CATALOG_FILE)
                if position is not None and (
                    note is None or (decode_note(note) or position) < position
                ):
                    raise Violation(f"P10: {self._name} tells of {position}, which is not durable")

    def _check_term(self, term: int) -> None:
        stored = self._disk.durable(TERM_FILE)
        durable = decode_term(stored) if stored is not None else None
        if (durable or 0) < term:
            raise Violation(f"P10: {self._name} obeys term {term}, {durable} is durable")

    def _check_kept(self, file: str) -> None:
        if self._disk.durable_ends(file) is None:
            raise Violation(f"P1: {self._name} tells of {file} before its name is durable")

    def _check_here(self, file: str) -> None:
        self._check_kept(file)
        if not self._disk.has(file):
            raise Violation(f"P1: {self._name} tells of {file}, and took its name away")

    def _check_new(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self._dropped:
            raise Violation(f"P10: {self._name} takes in {checkpoint} again, which it dropped")

    def _check_gone(self, prefix: str) -> None:
        left = [name for name in self._disk.durable_names("columns") if name.startswith(prefix)]
        if left:
            raise Violation(
                f"P10: {self._name} says that it dropped {left}, a crash brings it back"
            )


def _prefix_of(checkpoint: CheckpointId) -> str:
    """With which the names of all its columns begin."""
    column = ColumnId(PayloadId(checkpoint, Rank(0)), ColumnNumber(0))
    return column_name(column).removesuffix("0-0")
