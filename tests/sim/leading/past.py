"""Generations that were committed long before a crowd begins: rows of the catalog, and on the
targets what a scan finds there. Their columns have no bytes, which nobody asks for; records and
indexes are whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader, trailer_bytes
from ckpt.format.documents.file import DocumentHeader, document_name, encode_document_header
from ckpt.format.documents.record import CommitRecord, encode_record
from ckpt.format.index.document import TensorPages, index_document
from ckpt.format.index.pages import IndexPayload
from ckpt.format.layout import Layout
from ckpt.format.manifest import manifest_bytes
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.coordinator.catalog import (
    AttemptDecided,
    AttemptOpened,
    CatalogEntry,
    RowCommitted,
)
from ckpt.protocol.target.core import COLUMNS, DOCUMENTS, column_name
from ckpt.protocol.target.directory import DirectoryLoaded, FoundFile
from ckpt.testing.disk import FakeDisk
from tests.sim.coordinator_node import CLUSTER
from tests.sim.target_node import TargetNode

CELL = 4096
LAUNCH = LaunchNumber(1)
RUN = RunName("past")


@dataclass(frozen=True, slots=True)
class Past:
    """So many generations of one run, each of so many ranks."""

    generations: int
    ranks: int
    code: Code
    targets: tuple[TargetId, ...]

    @property
    def columns(self) -> int:
        """Of all targets."""
        return self.generations * self.ranks * self.code.n

    def all(self) -> Iterator[PastGeneration]:
        """Each of them, ascending."""
        for number in range(1, self.generations + 1):
            id = CheckpointId(RUN, Step(number), Generation(0, number))
            yield PastGeneration(self, id)


@dataclass(frozen=True, slots=True)
class PastGeneration:
    """One of them: its columns go around all targets."""

    of: Past
    id: CheckpointId

    def columns(self) -> Iterator[tuple[TargetId, ColumnId, bytes]]:
        """Where each lies, with the digest of its manifest."""
        code = self.of.code
        for rank in range(self.of.ranks):
            payload = PayloadId(self.id, Rank(rank))
            for j, target in enumerate(self._places(rank)):
                yield target, ColumnId(payload, ColumnNumber(j)), self._digest(rank)
        assert code.n <= len(self.of.targets)

    def documents(self) -> dict[DocumentKind, bytes]:
        """Index and record."""
        index, record = self._index(), self.record()
        return {DocumentKind.INDEX: index, DocumentKind.RECORD: record}

    def entries(self) -> tuple[CatalogEntry, ...]:
        """That the catalog has of it."""
        opened = AttemptOpened(self.id, LAUNCH, "past", self.of.ranks)
        return opened, AttemptDecided(self.id, self.record()), RowCommitted(self.id)

    def holders(self) -> tuple[TargetId, ...]:
        """Of its documents: m + 1."""
        targets, first = self.of.targets, self.id.step * 7
        count = self.of.code.m + 1
        return tuple(sorted(targets[(first + i) % len(targets)] for i in range(count)))

    def record(self) -> bytes:
        """Its document."""
        index, code = self._index(), self.of.code
        info = CommitInfo(
            self.id, LAUNCH, self.of.ranks, str(code), self.of.ranks * code.k * CELL, code.m,
            code.m, "device", float(self.id.step), 1, 1, Rank(0), self.of.targets[0],
        )  # fmt: skip
        return encode_record(
            CommitRecord(CLUSTER, info, xxh3_128(index), len(index), self.holders(), 1)
        )

    def _index(self) -> bytes:
        code = self.of.code
        payloads = [
            IndexPayload(
                Rank(rank), code, code.k * CELL, CELL, 0, 0, self._digest(rank),
                self._places(rank), (0,) * code.n,
            )
            for rank in range(self.of.ranks)
        ]  # fmt: skip
        pages = TensorPages(in_rows=True)
        pages.finish()
        return index_document(self.id, LAUNCH, self.of.ranks, payloads, pages)

    def _places(self, rank: int) -> tuple[TargetId, ...]:
        targets, n = self.of.targets, self.of.code.n
        first = (self.id.step * self.of.ranks + rank) * n
        return tuple(targets[(first + j) % len(targets)] for j in range(n))

    def _digest(self, rank: int) -> bytes:
        return xxh3_128(f"{self.id}/{rank}".encode())


class OldTarget(TargetNode):
    """I find more in my directory than this history has put there."""

    past: Callable[[], tuple[FoundFile, ...]] = tuple

    def _found(self) -> DirectoryLoaded:
        loaded = super()._found()
        known = {one.file for one in loaded.files}
        older = tuple(one for one in self.past() if one.file not in known)
        return replace(loaded, files=(*loaded.files, *older))


def lay_down(past: Past, targets: dict[TargetId, OldTarget]) -> list[CatalogEntry]:
    """On the targets, which have not started; returns what the catalog has of it."""
    columns: defaultdict[TargetId, list[FoundFile]] = defaultdict(list)
    layout = Layout(past.code, past.code.k * CELL, CELL)
    entries: list[CatalogEntry] = []
    for one in past.all():
        entries += one.entries()
        for target, column, digest in one.columns():
            columns[target].append(_column(layout, column, digest))
        documents = one.documents()
        for holder in one.holders():
            for kind, document in documents.items():
                _store(targets[holder].disk, one.id, kind, document)
    for id, node in targets.items():
        node.past = lambda found=tuple(columns[id]): found
    return entries


def _column(layout: Layout, column: ColumnId, digest: bytes) -> FoundFile:
    size = manifest_bytes(layout)
    header = ColumnHeader(
        CLUSTER, column, LAUNCH, layout.code, layout.payload_bytes, CELL, layout.column_bytes, 0,
        trailer_bytes(layout, size), size, digest,
    )  # fmt: skip
    return FoundFile(f"{COLUMNS}/{column_name(column)}", header.file_bytes, header)


def _store(disk: FakeDisk, id: CheckpointId, kind: DocumentKind, document: bytes) -> None:
    header = DocumentHeader(CLUSTER, kind.value, id, len(document), xxh3_128(document))
    page, padded = encode_document_header(header), document.ljust(header.padded_bytes, b"\0")
    file = f"{DOCUMENTS}/{document_name(kind.value, id)}"
    disk.make_directory(DOCUMENTS)
    disk.write_at(file, 0, page + padded * header.copies + page)
    disk.sync_file(file)
    disk.sync_directory(DOCUMENTS)
