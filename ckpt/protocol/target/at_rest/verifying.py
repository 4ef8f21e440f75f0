"""Somebody asks what a column is like, and the documents beside it: read whole, and answered.

Reads gives a question its turns and bounds its memory, as for any reader; what lies at rest is
read, never what was read before for others. A file that is dropped or replaced meanwhile is
not here, and no damage.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import ColumnId
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.reading import (
    ByteRange,
    ColumnVerified,
    Damage,
    DocumentKind,
    VerifyColumn,
)
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.target.at_rest.file_check import CELLS, COLUMN, WHOLE, FileCheck
from ckpt.protocol.target.core import (
    COLUMNS,
    Core,
    Entry,
    SealedColumn,
    StoredDocument,
    column_name,
)
from ckpt.protocol.target.disk_events import UNSAID_ERRNOS, DiskFailed
from ckpt.protocol.target.reading.read_jobs import CheckJob
from ckpt.protocol.target.reading.reads import Reads

BESIDE_MAX: Final = 128
"""Damage beside the cells that one answer names."""


@dataclass(slots=True)
class _Question:
    """What is still to be read for one, and what was found."""

    id: ColumnId
    entries: deque[Entry]
    column: SealedColumn | None = None
    """None: it was not here."""
    check: FileCheck | None = None
    reading: bool = False
    documents: int = 0
    found: list[Damage] = field(default_factory=list)


class Verifying:
    """I answer VerifyColumn."""

    def __init__(self, core: Core, reads: Reads) -> None:
        self._core = core
        self._reads = reads

    def verify(self, session: Session, request: int, message: VerifyColumn) -> None:
        """Read the column, if it is here, and its checkpoint's documents, if they are asked for."""
        column = self._core.columns.get(message.column)
        unread = self._core.unread.get(column_name(message.column), "")
        if column is None and unread in UNSAID_ERRNOS:
            file = f"{COLUMNS}/{column_name(message.column)}"
            self._core.fail_unread(session, request, file, unread)
            return
        entries: deque[Entry] = deque(self._documents(message.column) if message.documents else ())
        if column is not None:
            entries.appendleft(column)
        asked = _Question(message.column, entries, column)
        if not entries:
            self._core.send(session, request, ColumnVerified(message.column, True, 0))
            return
        self._reads.queue(CheckJob(session, request, lambda job: self._fetch(job, asked)))

    def _documents(self, id: ColumnId) -> list[StoredDocument]:
        checkpoint = id.payload.checkpoint
        known = (self._core.documents.get((kind, checkpoint)) for kind in DocumentKind)
        return [each for each in known if each is not None]

    def _fetch(self, job: CheckJob, asked: _Question) -> int | None:
        """Ask for the next part of what is wanted, one at a time."""
        if asked.reading:
            return None
        if asked.check is None:
            asked.check = FileCheck(asked.entries.popleft(), self._core.limits.read_piece_bytes)
        check = asked.check
        assert check.wanted is not None
        offset, length = check.wanted
        asked.reading = True

        def deliver(data: Buffer | DiskFailed) -> bool:
            asked.reading = False
            self._took(job, asked, check, data)
            return False

        self._reads.read_part(job, check.file, offset, length, deliver, at_rest=True)
        return length

    def _took(
        self, job: CheckJob, asked: _Question, check: FileCheck, data: Buffer | DiskFailed
    ) -> None:
        if isinstance(data, DiskFailed) and data.errno_name in UNSAID_ERRNOS:
            self._reads.end(job)
            self._core.fail_unread(job.session, job.request, check.file, data.errno_name)
            return
        check.took(data)
        if check.wanted is not None:
            return
        self._checked(asked, check)
        asked.check = None
        if not asked.entries:
            self._reads.end(job)
            self._core.send(job.session, job.request, _answer(asked))

    def _checked(self, asked: _Question, check: FileCheck) -> None:
        """All of a file was read."""
        entry = check.entry
        is_column = isinstance(entry, SealedColumn)
        self._core.counters.bytes_read += check.read_bytes
        if not self._core.holds(entry):
            if is_column:
                asked.column = None
            return
        self._core.counters.columns_verified += is_column
        self._core.counters.blocks_damaged += len(check.found)
        asked.documents += not is_column
        asked.found += check.found


def _answer(asked: _Question) -> ColumnVerified:
    size = asked.column.header.column_bytes if asked.column is not None else 0
    if any(one.kind == COLUMN and one.region == WHOLE for one in asked.found):
        cells = [ByteRange(0, size)]
    else:
        cells = [
            ByteRange(one.start - FRAGMENTS_OFFSET, one.end - FRAGMENTS_OFFSET)
            for one in asked.found
            if one.region == CELLS
        ]
    beside = tuple(one for one in asked.found if one.region != CELLS)[:BESIDE_MAX]
    return ColumnVerified(
        asked.id,
        missing=asked.column is None,
        column_bytes=size,
        damaged=tuple(cells),
        beside=beside,
        documents=asked.documents,
    )
