"""Columns that readers of this host take from their files by themselves.

Through a socket a byte is copied twice, and two processes wake for it. A reader here gets the
column's file once, and with it the checksums of its blocks: these have been compared with their
own, the reader compares each block. What it finds wrong, or cannot read, it asks for as any other
reader does, so that damage is seen, named and mended in one way.

Invariants: only who has proved itself on a Unix socket gets a file, to be read, and never a worker,
whose pace is kept here; while one is lent the device is in use (`Reads.is_idle`), as long as the
session lives. A lent file may be dropped: whoever has it reads on, or meets the bytes of another
column, which are not what he was given checksums for.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.lending import ColumnLent, ReturnColumn
from ckpt.protocol.events import Session, SessionOpened
from ckpt.protocol.target.core import Core
from ckpt.protocol.target.disk_events import LendFile
from ckpt.protocol.target.reading.pieces import BlockTable
from ckpt.protocol.target.reading.read_jobs import LendJob
from ckpt.protocol.target.reading.read_turns import Reader, ReadingSessions
from ckpt.protocol.target.workers import Workers

TABLE_BYTES_MAX: Final = FRAME_BULK_BYTES_MAX
"""Of the checksums that go along, in one frame: a column of 256 GiB has as many."""


class Loans:
    """I know who may be lent columns, and give them."""

    def __init__(self, core: Core, readers: ReadingSessions, workers: Workers) -> None:
        self._core = core
        self._readers = readers
        self._workers = workers
        #: Sessions on which files can go along.
        self._near: set[Session] = set()

    def opened(self, event: SessionOpened) -> None:
        """Note who it is."""
        if event.lends:
            self._near.add(event.session)

    def closed(self, session: Session) -> None:
        """Note the end of anybody's session."""
        self._near.discard(session)

    def may_ask(self, session: Session, request: int) -> bool:
        """Whether the session may be lent one more; else it is refused."""
        if session not in self._near or session in self._workers:
            self._core.fail(session, request, "refused", "columns are not lent to this peer")
            return False
        reader = self._readers.get(session)
        if reader is not None and len(reader.loans) >= self._core.limits.read_jobs_max:
            self._core.fail(session, request, "busy", "too many columns are lent to this peer")
            return False
        return True

    def give(
        self, reader: Reader, job: LendJob, table: BlockTable | None, _manifest: bytes = b""
    ) -> None:
        """The table is here, or both its copies are damaged."""
        if job.cancelled:
            return
        reader.jobs.remove(job)
        if table is None:
            text = f"both trailers of {job.column.header.column} are damaged"
            self._core.fail(job.session, job.request, "corrupt", text)
            return
        if table.nbytes > TABLE_BYTES_MAX:
            text = f"{job.column.header.column} has {table.nbytes} bytes of checksums"
            self._core.fail(job.session, job.request, "refused", text)
            return
        reader.loans.add(job.request)
        self._core.counters.columns_lent += 1
        crcs, answer = table.astype("<u4").tobytes(), ColumnLent(FRAGMENTS_OFFSET)
        self._core.out.append(LendFile(job.session, job.request, job.column.file, answer, crcs))
        self._readers.gave_copy(reader, len(crcs), self._core.now_us)

    def returned(self, session: Session, request: int, message: ReturnColumn) -> None:
        """The reader is done with a column."""
        reader = self._readers.get(session)
        if reader is not None and self._readers.returned(reader, request):
            self._core.counters.bytes_read += max(0, message.read_bytes)
            self._core.counters.bytes_given += max(0, message.read_bytes)
