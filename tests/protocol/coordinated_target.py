"""One target as the coordinator's tables see it: it does as told, refuses, or keeps silent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from ckpt.base.ids import (
    BootId,
    CatalogPosition,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.documents.cluster_map import decode_map
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import PROTOCOL_VERSION, Failed
from ckpt.format.messages.reading import (
    ByteRange,
    ColumnVerified,
    DocumentData,
    DocumentKind,
    ReadDocument,
    VerifyColumn,
)
from ckpt.format.messages.saving import PayloadPlanned, Place
from ckpt.format.messages.targets import (
    HELD_COLUMN,
    Attest,
    Attested,
    ColumnsListed,
    DeviceReport,
    DocumentStored,
    DocumentSummary,
    DropColumn,
    DropGeneration,
    Dropped,
    HeldGeneration,
    HoldingsListed,
    HoldingsPage,
    KeepMap,
    KeepProtocol,
    LeaseRenewed,
    ListColumns,
    ListHoldings,
    MapKept,
    ProtocolKept,
    PutDocument,
    ReleaseReservation,
    RenewLease,
    Reserve,
    Reserved,
    ScrubReport,
    TargetRegistered,
    encode_holdings,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.events import Send, Session
from ckpt.protocol.proofs import holdings_mac, make_proof, proof_key

SECRET = b"secret of a table test, 32 bytes."
CLUSTER = "c1"
DIGEST = b"m" * 16
"""Of every manifest."""


_LAYOUT = Layout(Code(2, 1), 10_000, 8192)
COLUMN_BYTES = file_bytes(_LAYOUT, manifest_bytes_bound(_LAYOUT))
"""Of a payload of 10,000 bytes under 2+1, as it is reserved."""


@dataclass(slots=True)
class FakeTarget:
    """What one target holds, and how it answers."""

    id: TargetId
    domain: str
    boot: BootId
    bytes_free: int = 1 << 40
    bytes_used: int = 0
    device: DeviceReport | UnsetType = UNSET
    """What its renewals say."""
    counters: dict[str, int] = field(default_factory=dict)
    """Likewise."""
    scrub: ScrubReport | UnsetType = UNSET
    """Likewise."""
    session: Session | None = None
    version: int = PROTOCOL_VERSION
    """Of the protocol."""
    needs: int = 0
    """What it has kept that one has to speak."""
    columns: dict[ColumnId, ColumnProof] = field(default_factory=dict)
    documents: dict[tuple[DocumentKind, CheckpointId], bytes] = field(default_factory=dict)
    digests: dict[tuple[DocumentKind, CheckpointId], bytes] = field(default_factory=dict)
    """As they were put: what rots afterwards is listed as it was."""
    reservations: set[ReservationId] = field(default_factory=set)
    refuses: dict[type[Message], Failed] = field(default_factory=dict)
    silent: set[type[Message]] = field(default_factory=set)
    """Commands of these types are kept in `unanswered`."""
    unanswered: list[Send] = field(default_factory=list)
    damaged: dict[ColumnId, tuple[ByteRange, ...]] = field(default_factory=dict)
    on_release: Callable[[FakeTarget], None] = lambda _: None
    capacity_bytes: int | None = None
    """Of columns of COLUMN_BYTES each; None has room for all."""
    parts: dict[tuple[DocumentKind, CheckpointId], bytes] = field(default_factory=dict)
    term_seen: int = 0
    coordinator: bytes = b""
    """Whose that is."""
    catalog: CatalogPosition | None = None
    """The newest position that it was told."""
    incarnation: bytes = b""
    place: str = ""
    map: bytes | None = None
    """The cluster's map that it keeps, empty for none yet; None: it keeps none."""

    part_bytes: int = 1 << 20
    """A document is given in parts of at most so many bytes."""

    def bulk(self, send: Send) -> bytes:
        """What comes with the answer."""
        match send.message:
            case ListHoldings():
                return self.holdings()
            case ReadDocument(kind, checkpoint, start, end):
                data = self.documents.get((kind, checkpoint), b"")[start:end]
                return data[: self.part_bytes]
        return b""

    def answer(self, send: Send) -> Message | None:
        """Do the command; None when it has no answer."""
        message = send.message
        if type(message) in self.refuses:
            return self.refuses[type(message)]
        match message:
            case TargetRegistered():
                self.term_seen, self.coordinator = message.term, message.coordinator
                self.needs = max(self.needs, message.protocol)
            case KeepProtocol():
                self.needs = max(self.needs, message.protocol)
                return ProtocolKept()
            case LeaseRenewed():
                self.catalog = message.catalog or self.catalog
            case Reserve():
                self.reservations.add(message.reservation)
                return Reserved(message.reservation)
            case ReleaseReservation():
                self.reservations.discard(message.reservation)
                self.on_release(self)
            case ListHoldings(cursor):
                key, page = proof_key(SECRET, self.id, self.boot), self.holdings()
                return HoldingsListed(self.boot, "", holdings_mac(key, CLUSTER, cursor, page))
            case ListColumns():
                return ColumnsListed(tuple(self.columns.values()), self.summaries(), "")
            case PutDocument():
                return self._put(message, bytes(send.bulk))
            case ReadDocument(kind, checkpoint, start, end):
                document = self.documents.get((kind, checkpoint))
                if document is None:
                    return Failed("not_found", "it is not here")
                last = (end or len(document)) - start <= self.part_bytes
                return DocumentData(len(document), start, last)
            case KeepMap():
                assert self.map is not None, "an older target ends its session"
                self.map = bytes(send.bulk)
                return MapKept()
            case Attest(_, columns):
                proofs = tuple(self.columns[c] for c in columns if c in self.columns)
                return Attested(proofs, tuple(c for c in columns if c in self._rotten))
            case VerifyColumn(column):
                found = self.columns.get(column)
                return ColumnVerified(column, found is None, 1, self.damaged.get(column, ()))
            case DropColumn(_, column):
                self.columns.pop(column, None)
                return Dropped(1)
            case DropGeneration(_, checkpoint, tombstone):
                self._drop(checkpoint)
                if tombstone:
                    self.documents.pop((DocumentKind.TOMBSTONE, checkpoint), None)
                return Dropped(1)
        return None

    @property
    def space(self) -> tuple[int, int]:
        """Bytes free and used, as a renewal says."""
        if self.capacity_bytes is None:
            return self.bytes_free, self.bytes_used
        used = COLUMN_BYTES * len(self.columns)
        return self.capacity_bytes - used, used

    @property
    def _rotten(self) -> list[ColumnId]:
        """As it has said."""
        found = () if self.scrub is UNSET else self.scrub.rot
        return [
            ColumnId(PayloadId(one.checkpoint, Rank(one.rank)), ColumnNumber(one.column))
            for one in found
            if one.rank is not None and one.column is not None
        ]

    @property
    def map_digest(self) -> bytes | None:
        """As it says when it comes."""
        return decode_map(self.map).digest if self.map else self.map

    @property
    def renewal(self) -> RenewLease:
        return RenewLease(
            self.id,
            self.boot,
            *self.space,
            device=self.device,
            counters=self.counters,
            scrub=self.scrub,
        )

    def summaries(self) -> tuple[DocumentSummary, ...]:
        held = sorted(self.documents.items(), key=lambda item: (item[0][0].value, item[0][1]))
        return tuple(
            DocumentSummary(kind, id, len(data), self.digests.get((kind, id), xxh3_128(data)))
            for (kind, id), data in held
        )

    def holdings(self) -> bytes:
        """All of it, on one page."""
        return page_of(self.columns.values(), self.summaries())

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Any column, index or record of it."""
        kinds = {kind for kind, id in self.documents if id == checkpoint}
        columns = any(c.payload.checkpoint == checkpoint for c in self.columns)
        return columns or bool(kinds - {DocumentKind.TOMBSTONE})

    def seal(self, column: ColumnId, place: Place, layout: PayloadPlanned, bytes_: int) -> None:
        """Become the holder of a column, out of its reservation."""
        self.reservations.discard(place.reservation)
        self.columns[column] = self.proof(column, layout.code, bytes_)

    def proof(
        self, column: ColumnId, code: str, payload_bytes: int, digest: bytes = DIGEST
    ) -> ColumnProof:
        return make_proof(
            proof_key(SECRET, self.id, self.boot), CLUSTER, column=column, target=self.id,
            boot=self.boot, code=code, payload_bytes=payload_bytes, column_crc=7,
            manifest_digest=digest,
        )  # fmt: skip

    def reboot(self) -> None:
        """Another incarnation: proofs are made anew, reservations are gone."""
        self.boot = BootId(self.boot + 1000)
        self.reservations.clear()
        for column, old in self.columns.items():
            self.columns[column] = self.proof(
                column, old.code, old.payload_bytes, old.manifest_digest
            )

    def _put(self, message: PutDocument, bulk: bytes) -> Message | None:
        key = (message.kind, message.checkpoint)
        self.parts[key] = self.parts.get(key, b"")[: message.offset] + bulk
        if len(self.parts[key]) < message.total_bytes:
            return None
        assert xxh3_128(self.parts[key]) == message.digest
        self.documents[key] = self.parts.pop(key)
        self.digests[key] = message.digest
        return DocumentStored(message.kind, message.checkpoint)

    def _drop(self, checkpoint: CheckpointId) -> None:
        for column in [c for c in self.columns if c.payload.checkpoint == checkpoint]:
            del self.columns[column]
        for kind, id in list(self.documents):
            if id == checkpoint and kind is not DocumentKind.TOMBSTONE:
                del self.documents[kind, id]


def page_of(columns: Iterable[ColumnProof], documents: Iterable[DocumentSummary] = ()) -> bytes:
    """What a target says that has these."""
    runs: dict[RunName, int] = {}

    def held(
        id: CheckpointId, columns: bytes, *documents: tuple[DocumentKind, int, bytes]
    ) -> HeldGeneration:
        number, of = runs.setdefault(id.run, len(runs)), id.generation
        return HeldGeneration(number, id.step, of.term, of.counter, columns, documents)

    generations = []
    for proof in columns:
        payload, column = proof.column.payload, proof.column.column
        packed = HELD_COLUMN.pack(payload.rank, column, proof.manifest_digest)
        generations.append(held(payload.checkpoint, packed))
    for one in documents:
        summary = one.kind, one.total_bytes, one.digest
        generations.append(held(one.checkpoint, b"", summary))
    return encode_holdings(HoldingsPage(tuple(runs), tuple(generations)))
