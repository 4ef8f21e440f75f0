"""An index read whole from whoever gives it right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.record import CommitRecord
from ckpt.format.index.mending import PART_BYTES
from ckpt.format.messages import Message
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.protocol.coordinator.cluster.membership import Target
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.events import Buffer

PATIENCE_US: Final = 2 * US_PER_S
"""Patience with a part of an index; then another holder is asked."""


def read_index(
    desk: Desk,
    record: CommitRecord,
    holders: Sequence[Target],
    then: Callable[[bytes | None], None],
) -> None:
    """From the first holder whose copy has the record's digest; None: nobody has one."""
    if not holders:
        then(None)
        return

    def read(document: bytes) -> None:
        if xxh3_128(document) == record.index_digest:
            then(document)
        else:
            read_index(desk, record, holders[1:], then)

    _read(desk, holders[0], record, bytearray(), read)


def _read(
    desk: Desk, target: Target, record: CommitRecord, got: bytearray, then: Callable[[bytes], None]
) -> None:
    """All of its copy; without a part that it does not give."""
    start, size = len(got), record.index_bytes
    if start >= size or target.session is None:
        then(bytes(got))
        return

    def answered(message: Message, part: Buffer) -> None:
        match message:
            case DocumentData(total, offset) if (total, offset) == (size, start) and part:
                got.extend(part)
                _read(desk, target, record, got, then)
            case _:
                then(bytes(got))

    end = min(size, start + PART_BYTES)
    question = ReadDocument(DocumentKind.INDEX, record.info.checkpoint, start, end)
    desk.ask(target.session, question, answered, patience_us=PATIENCE_US)
