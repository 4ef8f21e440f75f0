"""What one boot of a target has proved that it holds, by generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.format.documents.record import CommitRecord
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DocumentSummary
from ckpt.format.messages.writing import ColumnProof

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


class ProvedColumns:
    """I know of each column the digest of the manifest that it was proved with. It says which bytes
    they are: what another manifest describes is no copy.
    """

    def __init__(self) -> None:
        self._digests: dict[CheckpointId, dict[ColumnId, bytes]] = {}

    def add(self, proof: ColumnProof) -> None:
        """Its maker was verified."""
        column = proof.column
        of_checkpoint = self._digests.setdefault(column.payload.checkpoint, {})
        of_checkpoint[column] = proof.manifest_digest

    def digest(self, column: ColumnId) -> bytes | None:
        """None: it is not held."""
        return self.of(column.payload.checkpoint).get(column)

    def of(self, checkpoint: CheckpointId) -> Mapping[ColumnId, bytes]:
        """All of one generation, each with its digest."""
        return self._digests.get(checkpoint, _NOTHING)

    def checkpoints(self) -> set[CheckpointId]:
        """Generations of which something is held."""
        return set(self._digests)

    def discard(self, column: ColumnId) -> None:
        """It counts no more."""
        of_checkpoint = self._digests.get(column.payload.checkpoint, {})
        of_checkpoint.pop(column, None)
        if not of_checkpoint:
            self._digests.pop(column.payload.checkpoint, None)

    def drop(self, checkpoint: CheckpointId) -> None:
        """Nothing of it counts any more."""
        self._digests.pop(checkpoint, None)

    def __iter__(self) -> Iterator[ColumnId]:
        for of_checkpoint in self._digests.values():
            yield from of_checkpoint

    def __len__(self) -> int:
        return sum(map(len, self._digests.values()))
