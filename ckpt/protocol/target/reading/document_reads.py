"""Documents of a target as its readers get them: a small one is checked whole, and has a second
copy; of an index parts are given, which its reader checks.
"""

from __future__ import annotations

from collections import deque

from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.reading import DocumentData, ReadDocument
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.target.core import Core, StoredDocument
from ckpt.protocol.target.disk_events import UNSAID_ERRNOS, DiskFailed
from ckpt.protocol.target.reading.read_jobs import StreamJob
from ckpt.protocol.target.reading.reads import Reads


class DocumentReads:
    """I answer ReadDocument, by the same turns as all reads."""

    def __init__(self, core: Core, reads: Reads) -> None:
        self._core = core
        self._reads = reads

    def read(self, session: Session, request: int, message: ReadDocument) -> None:
        """Give the bytes that were asked for."""
        document = self._core.documents.get((message.kind, message.checkpoint))
        if document is None:
            text = f"{message.kind.value} of {message.checkpoint} is not here"
            self._core.fail(session, request, "not_found", text)
            return
        total = document.header.total_bytes
        start, end = message.start, total if message.end is None else message.end
        if not 0 <= start <= end <= total:
            text = f"bytes {start} to {end} of a document of {total}"
            self._core.fail(session, request, "refused", text)
            return
        self._core.counters.documents_read += 1
        if document.header.copies > 1:
            self._read_checked(session, request, document, start, end)
            return

        def part(job: StreamJob, at: int, upto: int) -> None:
            self._read_part(job, document, at, upto, end)

        self._reads.queue(StreamJob(session, request, self._reads.parts(start, end), part))

    def _read_checked(
        self, session: Session, request: int, document: StoredDocument, start: int, end: int,
        copy: int = 0,
    ) -> None:  # fmt: skip
        """A small document is checked whole; the second copy answers for a bad first."""
        header = document.header

        def deliver(data: Buffer | DiskFailed) -> bool:
            if not isinstance(data, DiskFailed) and xxh3_128(data) == header.digest:
                answer = DocumentData(header.total_bytes, offset=start, last=True)
                self._core.send(session, request, answer, memoryview(data)[start:end])
                return end > start
            if self._is_unread(session, request, document, data):
                return False
            self._core.counters.blocks_damaged += 1
            self._core.on_suspect(document)
            if copy + 1 < header.copies:
                self._read_checked(session, request, document, start, end, copy + 1)
            else:
                text = f"{header.kind} of {header.checkpoint} is damaged here"
                self._core.fail(session, request, "corrupt", text)
            return False

        def fetch(job: StreamJob, at: int, upto: int) -> None:
            offset = header.copy_offset(copy)
            self._reads.read_part(job, document.file, offset, upto - at, deliver)

        whole = deque([(0, header.total_bytes)])
        self._reads.queue(StreamJob(session, request, whole, fetch))

    def _read_part(
        self, job: StreamJob, document: StoredDocument, start: int, end: int, last: int
    ) -> None:
        header = document.header

        def deliver(data: Buffer | DiskFailed) -> bool:
            if isinstance(data, DiskFailed) or len(data) != end - start:
                if not self._is_unread(job.session, job.request, document, data):
                    self._core.counters.blocks_damaged += 1
                    self._core.on_suspect(document)
                    text = f"{header.kind} of {header.checkpoint} cannot be read at {start}"
                    self._core.fail(job.session, job.request, "corrupt", text)
                self._reads.cancel(job.session, job.request)
                job.cancelled = True
                return False
            answer = DocumentData(header.total_bytes, offset=start, last=end == last)
            self._core.send(job.session, job.request, answer, data)
            return True

        offset = header.copy_offset(0) + start
        self._reads.read_part(job, document.file, offset, end - start, deliver)

    def _is_unread(
        self, session: Session, request: int, document: StoredDocument, data: Buffer | DiskFailed
    ) -> bool:
        """Whether it could not be read for a reason that is no damage; then that was answered."""
        if not isinstance(data, DiskFailed) or data.errno_name not in UNSAID_ERRNOS:
            return False
        self._core.fail_unread(session, request, document.file, data.errno_name)
        return True
