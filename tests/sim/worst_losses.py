"""Every promise against the worst losses that it allows, not against those that happened.

At the end of a history, for each committed checkpoint that is still kept: whatever its answer said
may be lost is taken away, in every way there is, and what is left must be enough. I am a program
that knows nothing but the disks: their durable bytes lead from the record to the index, from there
to columns, and from these to the bytes that were saved. No machine's opinion and no catalog.

What a history has lost since the decision is part of the losses: only the rest of the allowance is
taken away besides. What checks a column's bytes is its checksum; that any k whole columns give the
payload is the code's own property (tests/erasure), so each payload is decoded only once, from the
last k of its columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.base.limits import PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.erasure.codec import codec_for
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.column import FRAGMENTS_OFFSET, decode_header
from ckpt.format.documents.file import decode_document_header, document_name
from ckpt.format.documents.record import CommitRecord, decode_record
from ckpt.format.index.document import Index
from ckpt.format.index.pages import IndexPayload
from ckpt.format.index.reader import decode_index
from ckpt.format.layout import Layout
from ckpt.format.messages.saving import CommitInfo
from ckpt.plan.placement import check_level, domain_key
from ckpt.protocol.target.core import column_name
from ckpt.testing.disk import FakeDisk
from tests.sim.oracles import Violation

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass(slots=True)
class _Shelf:
    """What one disk durably holds of one checkpoint, each thing checked by its own checksums."""

    record: CommitRecord | None = None
    index: Index | None = None
    index_digest: bytes = b""
    columns: dict[ColumnId, bytes] = field(default_factory=dict)
    """Fragment bytes."""


def check_worst_losses(world: World) -> None:
    """Raises Violation for a checkpoint that a loss which its answer allowed would take away."""
    for id, announced in world.oracles.announced.items():
        if id not in world.oracles.deleted:
            _Judge(world, id, announced.info).check()


def targets_gone(world: World, id: CheckpointId) -> set[TargetId]:
    """What a history has taken of this checkpoint's allowance by now."""
    return _Judge(world, id, world.oracles.announced[id].info).gone()


class _Judge:
    """I take targets away from one checkpoint."""

    def __init__(self, world: World, id: CheckpointId, info: CommitInfo) -> None:
        self._world = world
        self._id = id
        self._info = info
        self._decoded: set[PayloadId] = set()
        self._shelves: dict[TargetId, _Shelf] = {}
        #: Of those to which it refers: they may go no earlier.
        self._homes = [
            _Judge(world, home.id(id.run), world.oracles.announced[home.id(id.run)].info)
            for home in info.homes
        ]

    def check(self) -> None:
        """Every set of targets, and every set of domains."""
        targets, gone = self._world.targets, self.gone()
        left = [id for id in targets if id not in gone and not targets[id].lost]
        allowed = self._info.targets_survivable - len(gone)
        if allowed >= 0:
            for lost in combinations(left, allowed):
                self._restore(set(left).difference(lost), f"targets {sorted({*gone, *lost})}")
        level = check_level(self._info.domain_level)
        domain_of = {t: domain_key(t, n.domain, level) for t, n in targets.items()}
        broken = {domain_of[id] for id in gone}
        whole = sorted(set(domain_of.values()) - broken)
        allowed = self._info.domains_survivable - len(broken)
        for fallen in combinations(whole, allowed) if allowed >= 0 else ():
            stay = {id for id in left if domain_of[id] not in fallen}
            self._restore(stay, f"{level}s {sorted({*broken, *fallen})}")

    def gone(self) -> set[TargetId]:
        """Targets that lost something of it since it was decided, or while nobody could know."""
        world, decided = self._world, self._world.oracles.harmed_before[self._id]
        harmed = {id for id in world.targets if world.oracles.is_harmed(id)}
        mine = self._files().union(*(home._files() for home in self._homes))
        rotted = {
            TargetId(r.partition("/")[0]) for r in world.rotted if r.partition("/")[2] in mine
        }
        return (harmed - decided) | rotted

    def _files(self) -> set[str]:
        """Names of all that may be a part of it."""
        kinds = ("record", "index")
        documents = {f"documents/{document_name(kind, self._id)}" for kind in kinds}
        return documents | {f"columns/{column_name(column)}" for column in self._columns()}

    def _columns(self) -> Iterator[ColumnId]:
        for rank in self._world.oracles.announced[self._id].placement:
            for j in range(Code.parse(self._info.code).n):
                yield ColumnId(PayloadId(self._id, rank), ColumnNumber(j))

    def _shelf(self, target: TargetId) -> _Shelf:
        found = self._shelves.get(target)
        if found is None:
            found = self._shelves[target] = _Shelf()
            disk = self._world.targets[target].disk
            record = _document(disk, "record", self._id)
            found.record = decode_record(record) if record is not None else None
            index = _document(disk, "index", self._id)
            if index is not None:
                found.index, found.index_digest = decode_index(index), xxh3_128(index)
            for column in self._columns():
                held = _fragments(disk, column)
                if held is not None:
                    found.columns[column] = held
        return found

    # ----------------------------------------------------------------------- a restore

    def _restore(self, stay: Collection[TargetId], lost: str) -> None:
        shelves = {id: self._shelf(id) for id in sorted(stay)}
        record = next((s.record for s in shelves.values() if s.record is not None), None)
        if record is None:
            raise Violation(f"P1: {self._id} allows {lost} to go, with them goes its last record")
        indexes = (s.index for s in shelves.values() if s.index_digest == record.index_digest)
        index = next((each for each in indexes if each is not None), None)
        if index is None:
            raise Violation(f"P1: {self._id} allows {lost} to go, with them goes its last index")
        for payload in index.payloads:
            self._read(payload, shelves, lost)
        for home in self._homes:
            home._restore_for(index, stay, lost)

    def _restore_for(self, user: Index, stay: Collection[TargetId], lost: str) -> None:
        """What a later checkpoint refers to. The catalog has the record, and tells it."""
        world = self._world
        shelves = {id: self._shelf(id) for id in sorted(stay) if not world.targets[id].lost}
        digest = decode_record(world.oracles.decided[self._id].record).index_digest
        index = next((s.index for s in shelves.values() if s.index_digest == digest), None)
        if index is None:
            raise Violation(f"P1: {self._id} is referred to, {lost} may go, with them its index")
        places = (p for tensor in user.tensors for box in tensor.boxes for p in box.locations)
        referred = {p.rank for p in places if p.generation == self._id.generation}
        for payload in index.payloads:
            if payload.rank in referred:
                self._read(payload, shelves, lost)

    def _read(self, payload: IndexPayload, shelves: dict[TargetId, _Shelf], lost: str) -> None:
        """Where the index says that they are, or they have moved since, there must be k columns."""
        id, k = PayloadId(self._id, payload.rank), payload.code.k
        whole: dict[int, bytes] = {}
        for j, target in enumerate(self._world.oracles.placement_of(self._id)[payload.rank]):
            shelf = shelves.get(target) if target is not None else None
            held = shelf.columns.get(ColumnId(id, ColumnNumber(j))) if shelf is not None else None
            if held is not None and crc32(held) == payload.column_crcs[j]:
                whole[j] = held
        if len(whole) < k:
            raise Violation(f"P1: {id} allows {lost} to go, {len(whole)} of {k} columns are left")
        if id not in self._decoded:
            self._decoded.add(id)
            sources = {j: whole[j] for j in sorted(whole)[-k:]}
            if _decode(payload, sources) != self._world.content_of(id):
                raise Violation(f"P3: {id} without {lost} has other bytes than were saved")


def _document(disk: FakeDisk, kind: str, id: CheckpointId) -> bytes | None:
    """The document of that name, or None where it is not, or not whole."""
    stored = disk.durable(f"documents/{document_name(kind, id)}")
    if stored is None:
        return None
    for page in (stored[:PAGE_BYTES], stored[-PAGE_BYTES:]):
        try:
            header = decode_document_header(page)
        except Corrupt:
            continue
        if (header.kind, header.checkpoint) != (kind, id):
            continue
        for copy in range(header.copies):
            start = header.copy_offset(copy)
            document = stored[start : start + header.total_bytes]
            if xxh3_128(document) == header.digest:
                return document
    return None


def _fragments(disk: FakeDisk, column: ColumnId) -> bytes | None:
    """The column's bytes, or None where they are not, or not whole."""
    stored = disk.durable(f"columns/{column_name(column)}")
    if stored is None:
        return None
    for page in (stored[:PAGE_BYTES], stored[-PAGE_BYTES:]):
        try:
            header = decode_header(page)
        except Corrupt:
            continue
        held = stored[FRAGMENTS_OFFSET : FRAGMENTS_OFFSET + header.column_bytes]
        if header.column == column and crc32(held) == header.column_crc:
            return held
    return None


def _decode(payload: IndexPayload, sources: dict[int, bytes]) -> bytes:
    """The payload, from k of its columns."""
    layout = Layout(payload.code, payload.payload_bytes, payload.cell_bytes)
    data, codec = bytearray(), codec_for(payload.code)
    for stripe in range(layout.stripe_count):
        size, at = layout.cell_bytes_of(stripe), layout.fragment_offset(stripe)
        cells = {j: memoryview(held)[at : at + size] for j, held in sources.items()}
        wanted = {j: memoryview(bytearray(size)) for j in range(payload.code.k) if j not in cells}
        if wanted:
            codec.reconstruct(cells, wanted)
        for j in range(payload.code.k):
            data += cells[j] if j in cells else wanted[j]
    return bytes(data[: payload.payload_bytes])
