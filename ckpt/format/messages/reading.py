"""How a reader fetches bytes of columns, manifests and documents from a target.

A request may have many answers. The coordinator reads documents and has columns verified with the
same messages.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ckpt.base.ids import CheckpointId, ColumnId


class ByteRange(Struct, frozen=True, gc=False):
    """Fragment bytes [start, end) of a column, the header page not counted."""

    start: int
    end: int


class ByteRuns(Struct, frozen=True, gc=False, omit_defaults=True):
    """Bytes [start, end), and as many at every `step` after it, `count` runs; a step is longer."""

    start: int
    end: int
    count: int = 1
    step: int = 0


class ReadRanges(Struct, frozen=True, gc=False):
    """Vectored read of one column. Answered by RangeData, RangeDamaged in any order; RangesDone.
    Whole blocks are verified, only wanted bytes sent. At most READ_RANGES_MAX, READ_RUNS_MAX."""

    column: ColumnId
    ranges: tuple[ByteRuns, ...]


class RangeData(Struct, frozen=True, gc=False):
    """Bulk: the fragment bytes of the ranges, one after the other. A long range comes alone, so
    that it can be received where it belongs; short ones travel together."""

    ranges: tuple[ByteRuns, ...]
    """At least one; ascending, none begins before the last one's end; each run of one cell."""
    crc: int
    """Fresh CRC-32 of the bulk."""


class RangeDamaged(Struct, frozen=True, gc=False):
    """Wanted bytes [start, end) that fail their block's checksum or cannot be read: an erasure."""

    start: int
    end: int
    reason: str


class RangesDone(Struct, frozen=True, gc=False):
    """Every wanted byte was sent or named as damaged."""


class ReadManifest(Struct, frozen=True, gc=False):
    """Ask for a column's manifest. Answered by ManifestData parts, up to `total_bytes`."""

    column: ColumnId


class ManifestData(Struct, frozen=True, gc=False):
    """Bulk: manifest bytes at `offset`."""

    total_bytes: int
    offset: int = 0


class DocumentKind(Enum):
    """The small documents that targets keep beside columns."""

    INDEX = "index"
    RECORD = "record"
    LABELS = "labels"
    TOMBSTONE = "tombstone"


class ReadDocument(Struct, frozen=True, gc=False):
    """Ask for [start, end) of a document; `end` None means to its end."""

    kind: DocumentKind
    checkpoint: CheckpointId
    start: int = 0
    end: int | None = None


class DocumentData(Struct, frozen=True, gc=False):
    """Bulk: document bytes at `offset`; parts follow until `last`."""

    total_bytes: int
    offset: int
    last: bool


class VerifyColumn(Struct, frozen=True, gc=False):
    """Read every byte of a column's file and compare all checksums."""

    column: ColumnId
    documents: bool = False
    """The documents of its checkpoint that lie here as well, also when the column does not."""


class Damage(Struct, frozen=True, gc=False):
    """A part of a file that is not as it was written, or cannot be read."""

    kind: str
    """Of the file: `column`, or a DocumentKind's value."""
    region: str
    """`header 1`, `header 2`; of a column `cells`, and `block table`, `manifest`, `padding` of
    trailer 1 or 2; of a document `copy` and `padding` 1 or 2; `file`: all of it."""
    start: int
    """In the file."""
    end: int
    """Exclusive."""
    why: str


class ColumnVerified(Struct, frozen=True, gc=False):
    """What a full read found. `missing` means that there is no such column here."""

    column: ColumnId
    missing: bool
    column_bytes: int
    damaged: tuple[ByteRange, ...] = ()
    """Of its fragment bytes."""
    beside: tuple[Damage, ...] = ()
    """What else of its file is damaged, and what of documents."""
    documents: int = 0
    """How many documents of its checkpoint lie here, when they were asked for."""
