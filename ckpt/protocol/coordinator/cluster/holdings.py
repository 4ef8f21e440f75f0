"""What one boot of a target has proved and said that it holds, by generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.format.documents.record import CommitRecord
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import HELD_COLUMN, DocumentSummary
from ckpt.format.messages.writing import ColumnProof

REVISIONS_MAX: Final = 64
"""Generations of which each target's last change is known by itself."""
_NOTHING: Final[Mapping[ColumnId, bytes]] = MappingProxyType({})


def index_summaries(record: CommitRecord) -> frozenset[DocumentSummary]:
    """How a target may list the index that this record names. An earlier one of the same attempt,
    which gave way to it when a column moved, may be as long, and lie on targets still: it has
    another digest. A target of an earlier version lists none.
    """
    id, size = record.info.checkpoint, record.index_bytes
    return frozenset(
        DocumentSummary(DocumentKind.INDEX, id, size, digest)
        for digest in (record.index_digest, b"")
    )


def columns_here(
    payload: PayloadId,
    columns: Sequence[TargetId | None],
    digest: bytes,
    held: Mapping[TargetId, Mapping[ColumnId, bytes]],
) -> list[ColumnNumber]:
    """Of the columns on these targets those that `held` has, with the bytes that the manifest of
    this digest describes.
    """
    return [
        ColumnNumber(j)
        for j, target in enumerate(columns)
        if target is not None
        and target in held
        and held[target].get(ColumnId(payload, ColumnNumber(j))) == digest
    ]


class HeldDocuments:
    """I know of each generation which documents one boot of a target has listed or stored, so that
    a word about one of ten thousand looks at no other.
    """

    def __init__(self) -> None:
        self._held: dict[CheckpointId, tuple[DocumentSummary, ...]] = {}
        self.tombstones: set[CheckpointId] = set()
        """Generations of which it has one. Only I change it."""

    def add(self, document: DocumentSummary) -> None:
        """Note that the document is there as well."""
        held = self._held.get(document.checkpoint, ())
        if document not in held:
            self._keep(document.checkpoint, [*held, document])

    def put(self, document: DocumentSummary) -> None:
        """Note that the document is there, in the place of any other of its kind."""
        kept = [one for one in self.of(document.checkpoint) if one.kind is not document.kind]
        self._keep(document.checkpoint, [*kept, document])

    def of(self, checkpoint: CheckpointId) -> Sequence[DocumentSummary]:
        """The documents of one generation."""
        return self._held.get(checkpoint, ())

    def holds_any(self, documents: Iterable[DocumentSummary]) -> bool:
        """Whether one of these documents is there."""
        return any(one in self._held.get(one.checkpoint, ()) for one in documents)

    def drop(self, checkpoint: CheckpointId) -> None:
        """Note that all but the tombstone has gone."""
        self._keep(checkpoint, [one for one in self.of(checkpoint) if _is_tombstone(one)])

    def drop_tombstone(self, checkpoint: CheckpointId) -> None:
        """Note that the tombstone has gone."""
        self._keep(checkpoint, [one for one in self.of(checkpoint) if not _is_tombstone(one)])

    def has_tombstone(self, checkpoint: CheckpointId) -> bool:
        """Whether the tombstone of that generation is there."""
        return checkpoint in self.tombstones

    def has_more(self, checkpoint: CheckpointId) -> bool:
        """Whether there is more of it than its tombstone."""
        return not all(map(_is_tombstone, self.of(checkpoint)))

    def checkpoints(self) -> set[CheckpointId]:
        """Generations of which it has more than a tombstone."""
        return {id for id in self._held if self.has_more(id)}

    def __iter__(self) -> Iterator[DocumentSummary]:
        for held in self._held.values():
            yield from held

    def _keep(self, checkpoint: CheckpointId, kept: list[DocumentSummary]) -> None:
        if kept:
            self._held[checkpoint] = tuple(kept)
        else:
            self._held.pop(checkpoint, None)
        if any(map(_is_tombstone, kept)):
            self.tombstones.add(checkpoint)
        else:
            self.tombstones.discard(checkpoint)


def _is_tombstone(document: DocumentSummary) -> bool:
    return document.kind is DocumentKind.TOMBSTONE


class ProvedColumns:
    """I know of each column the digest of the manifest that it was proved with. It says which bytes
    they are: what another manifest describes is no copy.

    What was listed stays packed until somebody asks for its generation: of ten thousand few are
    asked for soon.
    """

    def __init__(self) -> None:
        #: Either as it was listed, HELD_COLUMN for each, or taken apart.
        self._held: dict[CheckpointId, bytes | dict[ColumnId, bytes]] = {}
        self._changes = 0
        #: Which change was the last of each, of those that changed lately; of all others this.
        self._revisions: dict[CheckpointId, int] = {}
        self._revision = 0

    def revision(self, checkpoint: CheckpointId) -> int:
        """Another number whenever what is held of it has changed, and at times when it has not."""
        return self._revisions.get(checkpoint, self._revision)

    def _changed(self, checkpoint: CheckpointId) -> None:
        self._changes += 1
        self._revisions.pop(checkpoint, None)
        self._revisions[checkpoint] = self._changes
        if len(self._revisions) > REVISIONS_MAX:
            self._revision = self._revisions.pop(next(iter(self._revisions)))

    def add(self, proof: ColumnProof) -> None:
        """Add a proof whose maker was verified."""
        column = proof.column
        self._unpacked(column.payload.checkpoint)[column] = proof.manifest_digest
        self._changed(column.payload.checkpoint)

    def add_listed(self, checkpoint: CheckpointId, columns: bytes) -> None:
        """HELD_COLUMN for each, at least one, of a page whose maker was verified."""
        self._changed(checkpoint)
        before = self._held.get(checkpoint)
        if before is None:
            self._held[checkpoint] = columns
        elif isinstance(before, bytes):
            self._held[checkpoint] = before + columns
        else:
            before.update(_taken_apart(checkpoint, columns))

    def digest(self, column: ColumnId) -> bytes | None:
        """The digest of its manifest; None: the column is not held."""
        return self.of(column.payload.checkpoint).get(column)

    def of(self, checkpoint: CheckpointId) -> Mapping[ColumnId, bytes]:
        """All of one generation, each with its digest."""
        return self._unpacked(checkpoint) if checkpoint in self._held else _NOTHING

    def has(self, checkpoint: CheckpointId) -> bool:
        """Whether something of it is held."""
        return checkpoint in self._held

    def checkpoints(self) -> set[CheckpointId]:
        """Generations of which some column is held."""
        return set(self._held)

    def discard(self, column: ColumnId) -> None:
        """Forget a column that no longer counts."""
        checkpoint = column.payload.checkpoint
        of_checkpoint = self._unpacked(checkpoint)
        of_checkpoint.pop(column, None)
        self._changed(checkpoint)
        if not of_checkpoint:
            del self._held[checkpoint]

    def drop(self, checkpoint: CheckpointId) -> None:
        """Forget all columns of a generation."""
        self._held.pop(checkpoint, None)
        self._changed(checkpoint)

    def _unpacked(self, checkpoint: CheckpointId) -> dict[ColumnId, bytes]:
        """What is held of it, to be read and changed."""
        held = self._held.get(checkpoint, b"")
        if isinstance(held, bytes):
            held = self._held[checkpoint] = _taken_apart(checkpoint, held)
        return held

    def __iter__(self) -> Iterator[ColumnId]:
        for checkpoint in list(self._held):
            yield from self._unpacked(checkpoint)

    def __len__(self) -> int:
        return sum(
            len(held) // HELD_COLUMN.size if isinstance(held, bytes) else len(held)
            for held in self._held.values()
        )


def _taken_apart(checkpoint: CheckpointId, columns: bytes) -> dict[ColumnId, bytes]:
    return {
        ColumnId(PayloadId(checkpoint, Rank(rank)), ColumnNumber(column)): digest
        for rank, column, digest in HELD_COLUMN.iter_unpack(columns)
    }
