"""What is durable on a target's disk, as it is: what no process says or believes matters here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ckpt.base.errors import Corrupt, Unavailable
from ckpt.base.ids import CheckpointId, ColumnId, TargetId
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import decode_header
from ckpt.format.documents.cluster_map import decode_map
from ckpt.format.documents.file import DocumentHeader, decode_document_header
from ckpt.format.messages.hello import OLDEST_VERSION
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.target.core import COLUMNS, DOCUMENTS
from ckpt.protocol.target.notes.map_note import MAP_FILE
from ckpt.protocol.target.term import (
    COORDINATOR_FILE,
    PROTOCOL_FILE,
    TERM_FILE,
    decode_protocol,
    noted_term,
)
from ckpt.testing.disk import FakeDisk
from ckptd.catalog.sources import Holdings
from tests.explore.columns import Columns

Document = tuple[DocumentKind, CheckpointId]


@dataclass(frozen=True, slots=True)
class Held:
    """Of one disk."""

    columns: frozenset[ColumnId]
    """Right ones alone: of the manifest that their writer sent."""
    other: frozenset[ColumnId]
    """Whole, and of another manifest."""
    documents: dict[Document, tuple[str, DocumentHeader]]

    @property
    def checkpoints(self) -> frozenset[CheckpointId]:
        """Of columns and documents."""
        columns = {column.payload.checkpoint for column in self.columns | self.other}
        return frozenset(columns | {id for _, id in self.documents})


def held_on(disk: FakeDisk) -> Held:
    """Names and bytes that are both durable."""
    right, other = set(), set()
    for name in disk.durable_names(COLUMNS):
        pages = disk.durable_ends(f"{COLUMNS}/{name}")
        assert pages is not None
        column, is_right = _column(pages[0])
        (right if is_right else other).add(column)
    documents: dict[Document, tuple[str, DocumentHeader]] = {}
    for name in disk.durable_names(DOCUMENTS):
        file = f"{DOCUMENTS}/{name}"
        pages = disk.durable_ends(file)
        assert pages is not None
        header = decode_document_header(memoryview(pages[0]))
        documents[DocumentKind(header.kind), header.checkpoint] = file, header
    return Held(frozenset(right), frozenset(other), documents)


@lru_cache(maxsize=256)
def _column(page: bytes) -> tuple[ColumnId, bool]:
    header = decode_header(page)
    of = header.column.payload
    return header.column, Columns.of(
        of, header.launch, header.code
    ).digest == header.manifest_digest


class HeldSource:
    """A disk, as `ckpt catalog rebuild` reads it when the power has gone; or one that is away."""

    def __init__(self, name: str, disk: FakeDisk, held: Held, *, away: bool = False) -> None:
        self.name = name
        self._disk = disk
        self._held = held
        self._away = away

    def holdings(self) -> Holdings:
        if self._away:
            raise Unavailable("it does not answer")
        term = noted_term(self._note(TERM_FILE), self._note(COORDINATOR_FILE))
        needs = max(OLDEST_VERSION, decode_protocol(self._note(PROTOCOL_FILE)))
        map = decode_map(self._note(MAP_FILE)) if self._note(MAP_FILE) else None
        held = self._held
        return Holdings(
            held.checkpoints, frozenset(held.documents), term, needs, map, TargetId(self.name)
        )

    def _note(self, file: str) -> bytes:
        return self._disk.durable(file) or b""

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        if self._away:
            raise Unavailable("it does not answer")
        file, header = self._held.documents[kind, checkpoint]
        start = header.copy_offset(0)
        document = (self._disk.durable(file) or b"")[start : start + header.total_bytes]
        if xxh3_128(document) != header.digest:
            raise Corrupt(f"{file} fails its checksum")
        return document
