"""What lies on a target, page by page, for the coordinator that it has registered with.

    first page asked --nothing is on the disk's way, or it has ended, or WAIT_US--> answered

What an earlier coordinator, or a stager of an attempt that has ended, had stored while this one
asks would be in no page, and nobody would tell this one of it: the first page waits for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ckpt.base.ids import ColumnId
from ckpt.format.messages.targets import ColumnsListed, DocumentSummary, ListColumns
from ckpt.protocol.events import Session
from ckpt.protocol.target.columns import Columns
from ckpt.protocol.target.core import (
    META_BUDGET_BYTES,
    PROOF_BYTES_MAX,
    Core,
    DocumentKey,
    Entry,
    SealedColumn,
)

WAIT_US: Final = 5_000_000
"""What lies here counts only when it is listed: a disk that hangs holds that up for so long."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A first page that was asked for."""

    session: Session
    request: int
    message: ListColumns
    asked_us: int
    columns: frozenset[ColumnId]
    """That were being sealed then."""
    documents: frozenset[DocumentKey]
    """That were being stored then."""


class Listing:
    """I list."""

    def __init__(self, core: Core, columns: Columns) -> None:
        self._core = core
        self._columns = columns
        self._waiting: list[_Waiting] = []

    def asked(self, session: Session, request: int, message: ListColumns) -> None:
        """For one page."""
        columns, documents = self._columns.sealing_now(), frozenset(self._core.replacing)
        if message.cursor or not (columns or documents):
            self._answer(session, request, message)
            return
        now = self._core.now_us
        self._waiting.append(_Waiting(session, request, message, now, columns, documents))

    def session_closed(self, session: Session) -> None:
        """Nobody waits there any more."""
        self._waiting = [one for one in self._waiting if one.session != session]

    def look(self) -> None:
        """A disk operation has ended, or time has passed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if self._still_waits(one):
                self._waiting.append(one)
            else:
                self._answer(one.session, one.request, one.message)

    def _still_waits(self, one: _Waiting) -> bool:
        ends = self._core.now_us - one.asked_us >= WAIT_US
        columns = one.columns & self._columns.sealing_now()
        documents = one.documents & self._core.replacing.keys()
        return not ends and bool(columns or documents)

    def _answer(self, session: Session, request: int, message: ListColumns) -> None:
        """Columns in name order, then documents; as many as one frame's meta holds."""
        names: list[tuple[str, Entry]] = []
        names += [(f"c/{each.name}", each) for each in self._core.columns.values()]
        names += [(f"d/{each.name}", each) for each in self._core.documents.values()]
        names.sort(key=lambda pair: pair[0])
        rest = [pair for pair in names if pair[0] > message.cursor]
        columns, documents, cursor, budget = [], [], message.cursor, META_BUDGET_BYTES
        count = 0
        for name, entry in rest[: max(1, message.count_max)]:
            checkpoint = (
                entry.header.column.payload.checkpoint
                if isinstance(entry, SealedColumn)
                else entry.header.checkpoint
            )
            budget -= PROOF_BYTES_MAX + len(checkpoint.run.encode())
            if budget < 0:
                break
            cursor, count = name, count + 1
            if isinstance(entry, SealedColumn):
                columns.append(self._core.proof(entry))
            else:
                size, digest = entry.header.total_bytes, entry.header.digest
                documents.append(DocumentSummary(entry.kind, checkpoint, size, digest))
        next_cursor = cursor if count < len(rest) else ""
        page = ColumnsListed(tuple(columns), tuple(documents), next_cursor)
        self._core.send(session, request, page)
