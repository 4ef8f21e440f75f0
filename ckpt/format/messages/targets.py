"""What targets and the coordinator say to each other, on the session that the target dials.

The coordinator's commands carry its term: a target refuses those of a lower one than it has seen.
Commands are idempotent.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from ckpt.base.errors import Refused
from ckpt.base.ids import (
    BootId,
    CatalogPosition,
    CheckpointId,
    ColumnId,
    Epoch,
    ReservationId,
    RunName,
    TargetId,
)
from ckpt.format.messages.reading import Damage, DocumentKind
from ckpt.format.messages.writing import ColumnProof


class Rot(Struct, frozen=True, gc=False):
    """A damaged part of a file that lies on a target."""

    checkpoint: CheckpointId
    damage: Damage
    rank: int | None = None
    """Of a column; None for a document."""
    column: int | None = None


class ScrubReport(Struct, frozen=True, gc=False):
    """What a target knows of the bytes that it keeps. Times are the wall clock's, in seconds; 0:
    never."""

    period_s: float = 0.0
    """Everything is read at least this often; 0: only when somebody asks."""
    pass_began_s: int = 0
    pass_ended_s: int = 0
    """End of the last finished pass: all that was here at its beginning was read."""
    oldest_s: int = 0
    """When the file that has gone unread for longest was last read, among those that were read."""
    late_s: int = 0
    """By how much the most overdue file is late."""
    rot_count: int = 0
    """Damaged parts of files that are here now."""
    rot: tuple[Rot, ...] = ()
    """The first of them, at most ROT_NAMED_MAX."""
    whole_since_s: int = 0
    """Beginning of the last finished pass: every byte here was read since then, or written."""


ROT_NAMED_MAX = 16


class RegisterTarget(Struct, frozen=True, gc=False):
    """A target process presents itself. It dials; the coordinator's commands come back on this
    session."""

    target: TargetId
    boot: BootId
    address: str
    unix: str
    domain: str
    directory: str
    pid: int
    bytes_total: int
    bytes_free: int
    bytes_used: int
    term_seen: int
    """The highest coordinator term on this target's stable storage."""
    reservations: tuple[ReservationId, ...] = ()
    device_bytes_free: int | None = None
    """What all targets of this device may take together; None: `bytes_free`. `bytes_free` is less
    when this target has a capacity of its own."""
    catalog: CatalogPosition | None = None
    """The newest position of a catalog that this target heard of and has on stable storage."""
    incarnation: bytes = b""
    """Of the directory: 16 random bytes, made once. Empty: it has none yet."""
    place: str = ""
    """The same text only for the same directory on the same machine since that started."""
    coordinator: bytes = b""
    """The process whose term `term_seen` is, as that one said; empty: nothing is known of it."""
    wire: str = ""
    """Which of its connections have tags on their bulks: auto, mac or plain; or encrypt: all of
    TCP is encrypted."""
    scrub: ScrubReport | None = None
    """None: of an earlier version."""
    map: bytes | None = None
    """The digest of the cluster's map that it keeps, empty without one. None: of an earlier
    version, which keeps none."""
    protocol: int = 0
    """The protocol version that is needed there, as a coordinator of the cluster said; 0:
    none did.
    """


class TargetRegistered(Struct, frozen=True, gc=False):
    """The target refuses every command of a lower term from now on, also after a restart."""

    term: int
    epoch: Epoch
    lease_us: int
    coordinator: bytes = b""
    """Of this process: 16 random bytes. Two that began from copies of one catalog have one term;
    a target obeys the one of them that came first."""
    protocol: int = 0
    """The protocol version that is needed in this cluster. The target keeps it, and from then on
    obeys no peer that speaks less, whatever its term is.
    """


class DeviceReport(Struct, frozen=True, gc=False):
    """What a target's device refused."""

    errors: dict[str, int]
    """Since boot, by kind, of DEVICE_ERROR_KINDS."""
    failures: int
    """Since the device was last proved well; a device that is full has not failed."""
    latest: str = ""
    """Of these: `write: EIO: Input/output error`."""


DEVICE_ERROR_KINDS = ("write", "read", "sync", "create", "space")
"""`create`: a file could not be made, renamed or removed. `space`: there was no room, whatever was
tried."""


class RenewLease(Struct, frozen=True, gc=False):
    """I live. Counters are cumulative since boot."""

    target: TargetId
    boot: BootId
    bytes_free: int
    bytes_used: int
    counters: dict[str, int] = field(default_factory=dict)
    device_bytes_free: int | None = None
    """As in RegisterTarget."""
    device: DeviceReport | UnsetType = UNSET
    """Unset while nothing was refused."""
    scrub: ScrubReport | UnsetType = UNSET
    """Unset while it is as this session heard it last."""


class LeaseRenewed(Struct, frozen=True, gc=False):
    """The current epoch of the cluster map."""

    epoch: Epoch
    catalog: CatalogPosition | None = None
    """How far the catalog is durable, for the target to keep; None before the targets vouched."""
    repair_bytes: int = 0
    """Bytes a second that it gives to repair while others use it; 0: any amount."""


class KeepProtocol(Struct, frozen=True, gc=False):
    """The upgrade is finished: as `protocol` of TargetRegistered."""

    term: int
    protocol: int


class ProtocolKept(Struct, frozen=True, gc=False):
    """The needed protocol version is on stable storage."""


class Reserve(Struct, frozen=True, gc=False):
    """Preallocate an aside file for one column. Idempotent by reservation."""

    term: int
    reservation: ReservationId
    file_bytes: int


class Reserved(Struct, frozen=True, gc=False):
    """The space is held on disk until used or released."""

    reservation: ReservationId


class ReleaseReservation(Struct, frozen=True, gc=False):
    """Give the space back. Idempotent; never answered."""

    term: int
    reservation: ReservationId


class Attest(Struct, frozen=True, gc=False):
    """Prove again, under the current boot, which of these columns are sealed here."""

    term: int
    columns: tuple[ColumnId, ...]


class Attested(Struct, frozen=True, gc=False):
    """One proof for each column that is here; others are absent."""

    proofs: tuple[ColumnProof, ...]
    damaged: tuple[ColumnId, ...] = ()
    """Of these: in which damage is known."""


class PutDocument(Struct, frozen=True, gc=False):
    """Bulk: document bytes at `offset`. The part that completes it is answered when all is
    durable."""

    term: int
    kind: DocumentKind
    checkpoint: CheckpointId
    total_bytes: int
    offset: int
    digest: bytes
    """xxh3-128 of the whole document."""
    again: bool = False
    """Also where the same stands already: a part of that is damaged."""


class DocumentStored(Struct, frozen=True, gc=False):
    """On stable storage, whole, digest checked."""

    kind: DocumentKind
    checkpoint: CheckpointId


class DropGeneration(Struct, frozen=True, gc=False):
    """Remove all columns and documents of a generation but its tombstone. Idempotent."""

    term: int
    checkpoint: CheckpointId
    tombstone: bool = False
    """Its tombstone as well: no target holds anything else of it any more."""


class DropColumn(Struct, frozen=True, gc=False):
    """Remove one column that the index does not name. Idempotent."""

    term: int
    column: ColumnId


class Dropped(Struct, frozen=True, gc=False):
    """Gone, durably."""

    bytes_freed: int


class KeepMap(Struct, frozen=True, gc=False):
    """Bulk: the cluster's map (ckpt.format.documents.cluster_map), in the place of the one that is
    kept."""

    term: int


class MapKept(Struct, frozen=True, gc=False):
    """On stable storage."""


class AskMap(Struct, frozen=True, gc=False):
    """Which map is kept here?"""


class MapTold(Struct, frozen=True, gc=False):
    """Bulk: the document; empty: none was given yet."""

    target: TargetId


class ListColumns(Struct, frozen=True, gc=False):
    """What is here, in name order, after the cursor."""

    cursor: str = ""
    count_max: int = 512


class DocumentSummary(Struct, frozen=True, gc=False):
    """A document that a target holds."""

    kind: DocumentKind
    checkpoint: CheckpointId
    total_bytes: int
    digest: bytes = b""
    """xxh3-128 of it; empty from a target of an earlier version."""


class ColumnsListed(Struct, frozen=True, gc=False):
    """A page. `cursor` is empty at the end."""

    columns: tuple[ColumnProof, ...]
    documents: tuple[DocumentSummary, ...]
    cursor: str


class ListHoldings(Struct, frozen=True, gc=False):
    """The same as ListColumns, for thousands of generations at once."""

    cursor: str = ""


class HoldingsListed(Struct, frozen=True, gc=False):
    """Bulk: a HoldingsPage. `cursor` is empty at the end."""

    boot: BootId
    cursor: str
    mac: bytes
    """Of the page (ckpt.protocol.proofs), under the key of this boot: all that it names is sealed
    here."""


class HeldGeneration(Struct, frozen=True, array_like=True, gc=False):
    """What a page has of one generation; others may have more of it."""

    run: int
    """Its place in the page's list."""
    step: int
    term: int
    counter: int
    columns: bytes
    """HELD_COLUMN for each: rank, column and the manifest's digest, xxh3-128."""
    documents: tuple[tuple[DocumentKind, int, bytes], ...]
    """Kind, total bytes and digest, xxh3-128."""


class HoldingsPage(Struct, frozen=True, array_like=True, gc=False):
    """Files of a target in name order, as MessagePack: of 10,000 generations 0.7 MB."""

    runs: tuple[RunName, ...]
    generations: tuple[HeldGeneration, ...]


HELD_COLUMN: Final = struct.Struct("<II16s")
HOLDINGS_BYTES: Final = 256 << 10
"""About the size of a page: a coordinator reads it within 20 ms."""

_PAGE: Final = msgspec.msgpack.Decoder(HoldingsPage)


def encode_holdings(page: HoldingsPage) -> bytes:
    """The bulk of HoldingsListed."""
    return msgspec.msgpack.encode(page)


def decode_holdings(bulk: bytes | bytearray | memoryview) -> HoldingsPage:
    """Raises Refused for anything that `encode_holdings` does not give."""
    try:
        page = _PAGE.decode(bulk)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(f"no list of holdings: {error}") from error
    runs = len(page.runs)
    for one in page.generations:
        if not 0 <= one.run < runs or len(one.columns) % HELD_COLUMN.size:
            raise Refused("no list of holdings: its parts do not fit together")
    return page
