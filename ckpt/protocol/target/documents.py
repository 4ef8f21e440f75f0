"""Indexes, commit records, labels and tombstones on a target; and how generations leave it.

    PutDocument parts --> ASSEMBLING (aside file) --last part, digest right--> SYNCING --> stored,
    answered

Invariants: a document is visible only after its file, its name and its directory are durable; a
record or tombstone that stands is never replaced; a drop is answered only when the
removal is durable, and leaves the tombstone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from ckpt.base.ids import CheckpointId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, INDEX_BYTES_MAX
from ckpt.format.checksum import Xxh3
from ckpt.format.documents.file import DocumentHeader, document_name, encode_document_header
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import (
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    PutDocument,
)
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.target.columns import Columns
from ckpt.protocol.target.core import (
    DOCUMENTS,
    Completion,
    Core,
    DocumentKey,
    SealedColumn,
    Step,
    StoredDocument,
    Stuck,
)
from ckpt.protocol.target.disk_events import (
    DiskFailed,
    ReleaseBulk,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from ckpt.protocol.target.reading.pieces import TableCache
from ckpt.protocol.target.space import NO_SPACE_RETRY_US, Reservations, Space, disk_failure

REPLACED = (DocumentKind.INDEX, DocumentKind.LABELS)
"""Kinds of which a later document takes the place of an earlier one."""


@dataclass(slots=True, eq=False)
class ArrivingDocument:
    """A document whose parts arrive."""

    session: Session
    request: int
    header: DocumentHeader
    kind: DocumentKind
    file: str
    digest: Xxh3
    received_bytes: int = 0
    write_count: int = 0
    failure: DiskFailed | None = None
    ended: bool = False

    @property
    def complete(self) -> bool:
        return self.received_bytes == self.header.total_bytes


WaitingDrop = tuple[Session, int, DropGeneration | DropColumn]
"""Who asked for it, under which number."""


class Documents:
    """I keep the small documents and remove what is dropped."""

    def __init__(
        self, core: Core, space: Space, reservations: Reservations, columns: Columns,
        tables: TableCache,
    ) -> None:  # fmt: skip
        self._core = core
        self._space = space
        self._reservations = reservations
        self._columns = columns
        self._tables = tables
        self._assemblies: dict[tuple[Session, DocumentKey], ArrivingDocument] = {}
        #: Documents from their first part until they are stored, or what came of them is removed.
        self._coming: list[ArrivingDocument] = []
        #: Those of one key that are whole, as they were put: the first is being stored. A disk does
        #: things in its own order, and what was put last has to stand.
        self._turns: dict[DocumentKey, deque[ArrivingDocument]] = {}
        #: Generations of which a drop is on its way to the disk; one at a time.
        self._dropping: set[CheckpointId] = set()
        #: Generations of which the log has said that something cannot be removed.
        self._stuck: set[CheckpointId] = set()
        #: Drops that wait for a seal, a document or an earlier drop, which is on its way there.
        self._waiting_drops: list[WaitingDrop] = []

    # ----------------------------------------------------------------------- put

    def put(self, session: Session, request: int, message: PutDocument, bulk: Buffer) -> None:
        """Take one part; parts of one document ascend on one session, offset 0 begins again."""
        core, key = self._core, (message.kind, message.checkpoint)
        end = message.offset + len(bulk)
        if not (message.offset >= 0 and end <= message.total_bytes <= INDEX_BYTES_MAX):
            core.fail(session, request, "refused", f"document bytes {message.offset} to {end}")
            return
        if message.checkpoint in core.dropped and message.kind is not DocumentKind.TOMBSTONE:
            # It set out before the drop was decided, and nobody would look for it.
            core.fail(session, request, "aborted", "this generation was dropped here")
            return
        standing = core.documents.get(key)
        # Coordinators word a tombstone differently: any says that the generation is deleted.
        same = standing is not None and (
            standing.header.digest == message.digest or message.kind is DocumentKind.TOMBSTONE
        )
        if same and not message.again and key not in core.replacing:
            self._abandon((session, key))
            if end == message.total_bytes:
                stored = DocumentStored(message.kind, message.checkpoint)
                core.send(session, request, stored)
            return
        if standing is not None and not same and message.kind not in REPLACED:
            self._refuse_other(session, request, key)
            return
        if message.offset == 0:
            earlier = self._assemblies.get((session, key))
            if earlier is not None and earlier.complete:  # Its last part waits for an answer.
                core.fail(session, earlier.request, "aborted", "another one came in its place")
            self._abandon((session, key))
            if not self._assemble(session, request, message):
                return
        assembly = self._assemblies.get((session, key))
        if assembly is None or assembly.received_bytes != message.offset:
            core.fail(session, request, "refused", "the document's parts do not follow each other")
            return
        assembly.request = request
        self._take_part(assembly, bulk)

    def _assemble(self, session: Session, request: int, message: PutDocument) -> bool:
        header = DocumentHeader(
            self._core.identity.cluster, message.kind.value, message.checkpoint,
            message.total_bytes, message.digest,
        )  # fmt: skip
        file = self._reservations.new_file("document")
        # Records and tombstones may use the reserve: deleting must work on a full device.
        large = header.copies == 1
        if large and not self._space.promise(file, header.file_bytes):
            text = f"no space for a document of {message.total_bytes} bytes"
            self._core.fail(session, request, "no_space", text, retry_after_us=NO_SPACE_RETRY_US)
            return False
        key = (session, (message.kind, message.checkpoint))
        assembly = ArrivingDocument(session, request, header, message.kind, file, Xxh3())
        self._assemblies[key] = assembly
        self._coming.append(assembly)
        return True

    def _take_part(self, assembly: ArrivingDocument, bulk: Buffer) -> None:
        header = assembly.header
        assert len(bulk) <= FRAME_BULK_BYTES_MAX
        assembly.digest.update(bulk)
        at = assembly.received_bytes
        assembly.received_bytes += len(bulk)
        if header.copies == 1 and bulk:
            self._write_part(assembly, header.copy_offset(0) + at, bulk, keeps_bulk=True)
        elif bulk:
            data = bytes(bulk)
            for copy in range(header.copies):
                self._write_part(assembly, header.copy_offset(copy) + at, data, keeps_bulk=False)
        self._store_when_written(assembly)

    def _write_part(
        self, assembly: ArrivingDocument, offset: int, data: Buffer, *, keeps_bulk: bool
    ) -> None:
        assembly.write_count += 1

        def written(event: Completion) -> None:
            assembly.write_count -= 1
            if keeps_bulk:
                self._core.out.append(ReleaseBulk(event.op))
            if isinstance(event, DiskFailed):
                assembly.failure = assembly.failure or event
            self._store_when_written(assembly)

        op = self._core.expect(written)
        self._core.out.append(WriteAt(op, assembly.file, offset, data, keeps_bulk=keeps_bulk))

    def _store_when_written(self, assembly: ArrivingDocument) -> None:
        if assembly.write_count:
            return
        if assembly.ended:
            self._remove_aside(assembly)
            return
        if not assembly.complete:
            return
        key = (assembly.session, (assembly.kind, assembly.header.checkpoint))
        if self._assemblies.pop(key, None) is not assembly:
            return
        if assembly.failure is not None:
            self._refuse(assembly, assembly.failure)
            return
        if assembly.digest.digest() != assembly.header.digest:
            text = "the document does not match its digest"
            self._core.fail(assembly.session, assembly.request, "corrupt", text)
            self._remove_aside(assembly)
            return
        turns = self._turns.setdefault((assembly.kind, assembly.header.checkpoint), deque())
        turns.append(assembly)
        if len(turns) == 1:
            self._store(assembly)

    def _store(self, assembly: ArrivingDocument) -> None:
        """It is the first in the turns of its key."""
        key = assembly.kind, assembly.header.checkpoint
        standing = self._core.documents.get(key)
        stays = assembly.kind not in REPLACED
        if stays and standing is not None and standing.header.digest != assembly.header.digest:
            if assembly.kind is DocumentKind.TOMBSTONE:
                self._core.send(assembly.session, assembly.request, DocumentStored(*key))
            else:
                self._refuse_other(assembly.session, assembly.request, key)
            self._remove_aside(assembly)
            self._end_turn(key)
            return
        self._core.replacing[key] = None
        self._core.chain(self._steps(assembly), lambda failure: self._stored(assembly, failure))

    def _end_turn(self, key: DocumentKey) -> None:
        turns = self._turns[key]
        turns.popleft()
        if turns:
            self._store(turns[0])
        else:
            del self._turns[key]

    def _steps(self, assembly: ArrivingDocument) -> list[Step]:
        header, file = assembly.header, assembly.file
        page = encode_document_header(header)
        name = document_name(header.kind, header.checkpoint)
        return [
            partial(WriteAt, file=file, offset=header.file_bytes - len(page), data=page),
            partial(WriteAt, file=file, offset=0, data=page),
            partial(SyncFile, file=file),
            partial(RenameFile, old=file, new=f"{DOCUMENTS}/{name}"),
            partial(SyncDirectory, directory=DOCUMENTS),
        ]

    def _stored(self, assembly: ArrivingDocument, failure: DiskFailed | None) -> None:
        core, header = self._core, assembly.header
        key = assembly.kind, header.checkpoint
        del core.replacing[key]
        if failure is not None:
            self._refuse(assembly, failure)
        else:
            name = document_name(header.kind, header.checkpoint)
            core.add_document(StoredDocument(header, assembly.kind, name))
            core.counters.documents_stored += 1
            self._coming.remove(assembly)
            self._space.forget(assembly.file)
            core.send(assembly.session, assembly.request, DocumentStored(*key))
        self._end_turn(key)

    def _refuse(self, assembly: ArrivingDocument, failure: DiskFailed) -> None:
        failed = disk_failure("store the document", failure)
        self._core.send(assembly.session, assembly.request, failed)
        self._core.report(
            "error", "document refused", checkpoint=str(assembly.header.checkpoint),
            error=failure.errno_name,
        )  # fmt: skip
        self._remove_aside(assembly)

    def _refuse_other(self, session: Session, request: int, key: DocumentKey) -> None:
        text = f"another {key[0].value} of {key[1]} stands here"
        self._core.fail(session, request, "refused", text)

    def _abandon(self, key: tuple[Session, DocumentKey]) -> None:
        assembly = self._assemblies.pop(key, None)
        if assembly is not None:
            assembly.ended = True
            self._store_when_written(assembly)

    def _remove_aside(self, assembly: ArrivingDocument) -> None:
        def removed(_event: Completion) -> None:
            self._space.forget(assembly.file)
            self._coming.remove(assembly)

        op = self._core.expect(removed)
        self._core.out.append(RemoveFile(op, assembly.file))

    def session_closed(self, session: Session) -> None:
        for key in [key for key in self._assemblies if key[0] == session]:
            self._abandon(key)
        self._wait(*(each for each in self._waiting_drops if each[0] != session))

    # ----------------------------------------------------------------------- drop

    def drop(self, session: Session, request: int, message: DropGeneration | DropColumn) -> None:
        """Remove a generation, or one column, durably. What of it is on its way to the disk is
        waited for: it would come after the drop, and nobody would look for it. So is an earlier
        drop: what it removes is not known any more, and a crash may bring it back. A column whose
        seal failed is not known either, and goes in the same way.
        """
        if isinstance(message, DropGeneration):
            checkpoint, only = message.checkpoint, None
            self._core.note_dropped(checkpoint)
            self._end_incomplete(checkpoint)
        else:
            checkpoint, only = message.column.payload.checkpoint, message.column
        self._columns.drop(checkpoint, only)
        coming = only is None and self._coming_of(checkpoint)
        if self._columns.sealing(checkpoint, only) or coming or checkpoint in self._dropping:
            self._wait(*self._waiting_drops, (session, request, message))
            return
        columns = self._core.columns_of(checkpoint)
        if only is not None:
            columns = [column for column in columns if column.header.column == only]
        documents = []
        if isinstance(message, DropGeneration):
            documents = self._droppable(checkpoint, message)
        failed = self._columns.failed_seals(checkpoint, only)
        files = {*failed.values(), *(each.file for each in columns)}
        # Nothing of it is served from here on, removed or not.
        for column in columns:
            self._core.remove_column(column)
            self._core.removing[column.header.column] = None
            self._tables.forget(column.header.column)
        for document in documents:
            self._core.remove_document(document)
        self._dropping.add(checkpoint)

        def ended(stuck: Stuck, failure: DiskFailed | None) -> None:
            self._dropping.remove(checkpoint)
            self._note_stuck(checkpoint, stuck)
            left = columns if failure else [each for each in columns if each.file in stuck]
            failure = failure or next(iter(stuck.values()), None)
            if failure is None:
                self._columns.gone(failed)
            self._dropped(session, request, columns, documents, left, failure)

        self._core.remove_files(sorted(files), [each.file for each in documents], ended)

    def _note_stuck(self, checkpoint: CheckpointId, stuck: Stuck) -> None:
        """Each generation's is said once."""
        if not stuck:
            self._stuck.discard(checkpoint)
        elif checkpoint not in self._stuck:
            self._stuck.add(checkpoint)
            file, why = next(iter(stuck.items()))
            self._core.report("error", "not removed", file=file, error=why.errno_name)

    def _wait(self, *drops: WaitingDrop) -> None:
        """These wait from now on; nothing begins in the place of what they are about to remove."""
        self._waiting_drops = list(drops)
        only = (message for *_, message in drops if isinstance(message, DropColumn))
        self._core.doomed = {message.column for message in only}

    def _coming_of(self, checkpoint: CheckpointId) -> list[ArrivingDocument]:
        """Of what a drop removes."""
        of_it = [each for each in self._coming if each.header.checkpoint == checkpoint]
        return [each for each in of_it if each.kind is not DocumentKind.TOMBSTONE]

    def _end_incomplete(self, checkpoint: CheckpointId) -> None:
        """The rest of its parts may never come."""
        for each in self._coming_of(checkpoint):
            key = each.session, (each.kind, checkpoint)
            # Who sent the last part waits for its answer: that one is stored first.
            if self._assemblies.get(key) is each and not each.complete:
                self._abandon(key)

    def _droppable(self, checkpoint: CheckpointId, message: DropGeneration) -> list[StoredDocument]:
        kinds = [DocumentKind.INDEX, DocumentKind.RECORD, DocumentKind.LABELS]
        if message.tombstone:
            kinds.append(DocumentKind.TOMBSTONE)
        found = (self._core.documents.get((kind, checkpoint)) for kind in kinds)
        return [each for each in found if each is not None]

    def _dropped(
        self, session: Session, request: int, columns: list[SealedColumn],
        documents: list[StoredDocument], left: list[SealedColumn], failure: DiskFailed | None,
    ) -> None:  # fmt: skip
        """`left`: columns that may be there still when it failed."""
        for column in columns:
            del self._core.removing[column.header.column]
        if failure is None:
            freed = sum(each.file_bytes for each in columns)
            freed += sum(each.header.file_bytes for each in documents)
            self._core.send(session, request, Dropped(bytes_freed=freed))
            return
        # Still known, so that the repeated command tries again; removing twice does no harm.
        for column in left:
            self._core.add_column(column)
        for document in documents:
            self._core.add_document(document)
        self._core.send(session, request, disk_failure("drop", failure))

    def retry_drops(self) -> None:
        """A disk operation ended: drops that waited for it may go on."""
        if not self._waiting_drops:
            return
        waiting = self._waiting_drops
        self._wait()
        for session, request, message in waiting:
            self.drop(session, request, message)
