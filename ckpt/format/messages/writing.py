"""How a stager streams one column to a target, and what the target vouches for at its end.

The stream is opened with a reservation, fragments are sent against credit, the seal carries the
manifest. The column file itself is ckpt.format.column.
"""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import BootId, ColumnId, LaunchNumber, ReservationId, TargetId


class BeginColumn(Struct, frozen=True, gc=False):
    """Open a column stream; the frame's request number names it until sealed or abandoned."""

    column: ColumnId
    launch: LaunchNumber
    reservation: ReservationId
    code: str
    payload_bytes: int
    cell_bytes: int
    again: bool = False
    """It was lost, and is made again: also of a generation that is deleted, while later ones refer
    to it, and in the place of one that is damaged here."""


class ColumnAccepted(Struct, frozen=True, gc=False):
    """The target holds space and buffers: this many fragment bytes may be sent at once."""

    credit_bytes: int
    pace: TargetPace | None = None
    answers: bool = False  # AskPace.


class Fragment(Struct, frozen=True, gc=False):
    """Bulk: one cell. Any order of stripes is accepted; a repeated stripe is ignored."""

    stripe: int
    crc: int
    """CRC-32 (IEEE) of the bulk."""


class CreditGranted(Struct, frozen=True, gc=False):
    """Buffers are free again: so many bytes more may be sent on this stream. 0 to a stream that
    waits, now and then, and to who asks: the target lives, and may be busy.
    """

    credit_bytes: int
    pace: TargetPace | None = None


class SealColumn(Struct, frozen=True, gc=False):
    """Bulk: the rank's manifest (ckpt.format.manifest), or the part of it at this offset."""

    manifest_bytes: int
    manifest_offset: int = 0


class ColumnSealed(Struct, frozen=True, gc=False):
    """The column and its metadata are on stable storage."""

    proof: ColumnProof


class AbandonColumn(Struct, frozen=True, gc=False):
    """The sender gives this stream up; the target frees what it held. Never answered."""


class AskPace(Struct, frozen=True, gc=False):
    """Is somebody there? Answered at once by CreditGranted(0), also after the stream's end.

    Only to a target that said `answers`: an older one would close the connection.
    """


class TargetPace(Struct, frozen=True, gc=False):
    """How long this target takes now, whoever waits for it: its service time, without any queue."""

    write_us: int
    """Microseconds to write one MiB."""
    seal_us: int
    """Microseconds for one step of making a column durable: a sync, a rename."""
    waiting_count: int
    """Streams that may not send now, for want of memory here."""
    still_us: int = 0
    """For so long its device has had something to do, and has ended nothing; 0 for a moment."""
    alone_us: int = 0
    """Microseconds for a small operation that the device had for itself; 0: not known. What does
    many at a time, each slowly, takes less than this between the ends of two."""


class ColumnProof(Struct, frozen=True, gc=False):
    """What a target vouches for: this column is sealed here, under this boot."""

    column: ColumnId
    target: TargetId
    boot: BootId
    code: str
    payload_bytes: int
    column_crc: int
    """CRC-32 over all fragment bytes of the column."""
    manifest_digest: bytes
    """xxh3-128 of the manifest."""
    mac: bytes
    """HMAC-SHA256 under the target's own key, over all other fields and the cluster id."""
