"""The committed checkpoints: what is readable now, which one to read, and how one goes away.

    COMMITTED --proved damage--> DAMAGED --+
        |                                  |
        +--tombstone durable--> TOMBSTONED-+--no pins, every target dropped--> (forgotten)

Invariants: a TOMBSTONED checkpoint is resolved for repair alone, a DAMAGED one only to an object
store that has it; columns are dropped only when the tombstone is durable, nobody holds a pin and
nobody refers to them (homes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.labels import Labels, decode_labels, is_aside
from ckpt.format.documents.moves import Moves, decode_moves
from ckpt.format.documents.record import decode_record
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.saving import CommitInfo
from ckpt.format.messages.targets import DocumentSummary
from ckpt.plan.placement import Level, domain_key
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.holdings import columns_here, index_summaries
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.image import CatalogRow
from ckpt.protocol.coordinator.keeping.moving import Moving
from ckpt.protocol.coordinator.keeping.placements import Placement, PlacementMemory
from ckpt.protocol.coordinator.keeping.redundancy import GONE, Redundancy, redundancy_of


@dataclass(slots=True)
class KeptCheckpoint:
    """One committed generation."""

    info: CommitInfo
    record_bytes: bytes
    index_targets: tuple[TargetId, ...]
    index: frozenset[DocumentSummary]
    """How a target may list it."""
    placement: Placement | None
    """None: its index has not been read since this coordinator began (placing.py)."""
    moved: dict[tuple[Rank, ColumnNumber], TargetId] = field(default_factory=dict)
    """Holders that the index does not name, durable; in `placement` as well. Only Adopter adds."""
    surplus: dict[ColumnId, set[TargetId]] = field(default_factory=dict)
    """Who else has proved a right copy of a column, and may be away. Only Adopter changes it."""
    state: RowState = RowState.COMMITTED
    reason: str = ""
    pins: set[int] = field(default_factory=set)
    """Readers, and rounds that wait for late ranks, that hold it: its columns stay while one does.
    Only Resolver and LaunchRounds add and take them."""
    users: set[CheckpointId] = field(default_factory=set)
    """Attempts and later generations that refer to its bytes; its columns stay likewise. Only Homes
    adds and takes them."""
    labels: Labels | None = None
    """What people have said of it, durable."""
    unsettled: bool = False
    """Its targets may have other labels, which were no answer. Only Labeling changes it."""
    dropping: bool = False
    """Its columns are being deleted: nobody can hold it any more."""
    unread: str = ""
    """Why its index could not be read, when that was last tried."""

    @property
    def id(self) -> CheckpointId:
        return self.info.checkpoint

    @property
    def code(self) -> Code:
        return Code.parse(self.info.code)

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called, ascending."""
        return () if self.labels is None else self.labels.names

    @property
    def is_pinned(self) -> bool:
        """Whether somebody has pinned it; a reader's pin is something else."""
        return self.labels is not None and self.labels.pinned

    @property
    def is_aside(self) -> bool:
        """Whether a rollback has set it aside: it stays, and is never the newest."""
        return is_aside(self.names)

    @property
    def is_kept(self) -> bool:
        """Whether it has a name or is pinned, or is about to: neither retention nor eviction
        removes it.
        """
        return self.unsettled or (self.labels is not None and self.labels.keeps)

    @property
    def is_needed(self) -> bool:
        """Whether it can be read, or is deleted and later ones refer to it: then what is lost of it
        is made again.
        """
        held = self.state is RowState.TOMBSTONED and bool(self.users) and not self.dropping
        return self.state is RowState.COMMITTED or held

    @property
    def document_copies(self) -> int:
        """On how many targets its index should be, and on how many its record: m may be lost."""
        return self.code.m + 1

    @property
    def targets(self) -> set[TargetId]:
        """Every target that its placement, as far as that is known, or its record names."""
        placed = (self.placement or {}).values()
        named = {t for payload in placed for t in payload.columns if t is not None}
        return named.union(self.index_targets)

    def may_have(self, rank: Rank) -> bool:
        """Whether it has a payload of that number, as far as is known."""
        ranks = range(self.info.world_size) if self.placement is None else self.placement
        return rank in ranks

    @property
    def homes(self) -> tuple[CheckpointId, ...]:
        """Earlier generations that hold bytes of it."""
        return tuple(home.id(self.id.run) for home in self.info.homes)


DocumentCounts = Counter[tuple[DocumentKind, CheckpointId]]


class Checkpoints:
    """I hold every committed checkpoint that is not forgotten, by run, in (step, generation)
    order.
    """

    def __init__(self, members: Membership, report_level: Level) -> None:
        self._members = members
        self._level = report_level
        self.moving = Moving()
        #: Each run's checkpoints, of which there is one, kept in (step, generation) order.
        self._by_run: dict[RunName, dict[CheckpointId, KeptCheckpoint]] = {}
        self.placed: set[CheckpointId] = set()
        """Those of them whose index was read. Only I change it."""
        #: Records of deleted checkpoints whose rows stay: a stager may have missed the commit.
        self._deleted: dict[CheckpointId, bytes] = {}
        #: The columns' redundancy of each, with the version of the map under which it was counted.
        #: Of a checkpoint that is here a target gains or loses columns only with a new version, or
        #: when that is said (`recount`).
        self._counted: dict[CheckpointId, tuple[int, Redundancy]] = {}
        self._memory = PlacementMemory(members)

    def add(self, checkpoint: KeptCheckpoint) -> None:
        self.recount(checkpoint.id)
        id, of_run = checkpoint.id, self._by_run.setdefault(checkpoint.id.run, {})
        is_late = id < next(reversed(of_run), id)
        of_run[id] = checkpoint
        if checkpoint.placement is not None:
            self.placed.add(id)
        if is_late:
            self._by_run[id.run] = dict(sorted(of_run.items()))

    def recover(
        self, row: CatalogRow, moves: Mapping[int, bytes], labels: bytes = b""
    ) -> KeptCheckpoint:
        """A row of the catalog at start, which of its columns have moved, and what is said of it.
        Raises Corrupt.
        """
        record = decode_record(row.record)
        checkpoint = KeptCheckpoint(
            record.info, row.record, record.index_targets, index_summaries(record), None,
            state=row.state, reason=row.reason, labels=decode_labels(labels) if labels else None,
        )  # fmt: skip
        for page, document in moves.items():
            checkpoint.moved.update(decode_moves(page, document))
        self.add(checkpoint)
        return checkpoint

    def place(self, checkpoint: KeptCheckpoint, placement: Placement) -> None:
        """Note where its columns are, once its index was read."""
        checkpoint.placement, checkpoint.unread = dict(placement), ""
        self.placed.add(checkpoint.id)
        self._put_moved(checkpoint, checkpoint.moved)

    def recount(self, id: CheckpointId) -> None:
        """Targets may have more or less of it than they had when the map became what it is."""
        self._counted.pop(id, None)
        self._memory.forget(id)

    def move(self, checkpoint: KeptCheckpoint, moves: Moves) -> None:
        """Columns of it have other holders now; that is durable. It is placed."""
        checkpoint.moved.update(moves)
        self._put_moved(checkpoint, moves)

    def _put_moved(self, checkpoint: KeptCheckpoint, moves: Moves) -> None:
        placement = checkpoint.placement
        assert placement is not None
        by_rank: dict[Rank, dict[ColumnNumber, TargetId]] = {}
        for (rank, column), target in moves.items():
            by_rank.setdefault(rank, {})[column] = target
        for rank, holders in by_rank.items():
            placement[rank] = placement[rank].moved(holders)
        self.moving.replaced(checkpoint.id)
        self.recount(checkpoint.id)

    def forget(self, checkpoint: KeptCheckpoint) -> None:
        """It is deleted: only the fact that it was committed stays, as long as its row does."""
        of_run = self._by_run[checkpoint.id.run]
        del of_run[checkpoint.id]
        if not of_run:
            del self._by_run[checkpoint.id.run]
        self.placed.discard(checkpoint.id)
        self.recount(checkpoint.id)
        self._deleted[checkpoint.id] = checkpoint.record_bytes

    def recover_deleted(self, row: CatalogRow) -> None:
        """The same for a row at start; one that was rebuilt from tombstones has no record."""
        if row.record:
            self._deleted[row.checkpoint] = row.record

    def forget_row(self, id: CheckpointId) -> None:
        """The catalog says nothing of it any more."""
        self._deleted.pop(id, None)

    def runs(self) -> list[RunName]:
        return sorted(self._by_run)

    def get(self, id: CheckpointId) -> KeptCheckpoint | None:
        return self._by_run.get(id.run, {}).get(id)

    def of_run(self, run: RunName, *states: RowState) -> list[KeptCheckpoint]:
        """Checkpoints of a run in these states, oldest first."""
        return [c for c in self._by_run.get(run, {}).values() if c.state in states]

    def of_line(self, run: RunName, *states: RowState) -> list[KeptCheckpoint]:
        """The same without what a rollback has set aside: the last one is the newest."""
        return [c for c in self.of_run(run, *states) if not c.is_aside]

    def of_step(self, run: RunName, step: Step, *states: RowState) -> list[KeptCheckpoint]:
        return [c for c in self.of_run(run, *states) if c.id.step == step]

    def all(self) -> Iterator[KeptCheckpoint]:
        for held in tuple(self._by_run.values()):
            yield from tuple(held.values())  # Whoever goes through them may change them.

    # ----------------------------------------------------------------------- what counts now

    def columns_now(self, checkpoint: KeptCheckpoint, rank: Rank) -> list[ColumnNumber]:
        """The columns of one payload that can be read at this moment. The checkpoint is placed."""
        assert checkpoint.placement is not None
        payload, placed = PayloadId(checkpoint.id, rank), checkpoint.placement[rank]
        return [
            ColumnNumber(j)
            for j, target in enumerate(placed.columns)
            if target is not None
            and self._members.holds(
                target, ColumnId(payload, ColumnNumber(j)), placed.manifest_digest
            )
        ]

    def columns_by_rank(
        self, checkpoint: KeptCheckpoint
    ) -> Iterator[tuple[Rank, list[ColumnNumber]]]:
        """As `columns_now`, of all payloads that it holds itself; in a third of the time."""
        held = {target.id: target.proved.of(checkpoint.id) for target in self._members.live()}
        for rank, placed in (checkpoint.placement or {}).items():
            payload = PayloadId(checkpoint.id, rank)
            yield rank, columns_here(payload, placed.columns, placed.manifest_digest, held)

    def outgoing_now(self, checkpoint: KeptCheckpoint, rank: Rank) -> list[ColumnNumber]:
        """Those of them that are to be made again elsewhere: their targets have found them damaged,
        or are to be emptied.
        """
        return self.outgoing_of(checkpoint, rank, self.columns_now(checkpoint, rank))

    def outgoing_of(
        self, checkpoint: KeptCheckpoint, rank: Rank, now: Iterable[ColumnNumber]
    ) -> list[ColumnNumber]:
        """The same of those that are known to count. While one is missing none goes for balance."""
        assert checkpoint.placement is not None
        columns, targets = checkpoint.placement[rank].columns, self._members.targets
        here = [(j, id) for j in now if (id := columns[j]) is not None]
        payload, is_whole = PayloadId(checkpoint.id, rank), len(here) == checkpoint.code.n
        return [
            j
            for j, id in here
            if (not _is_plain(targets[id]) and self._goes(ColumnId(payload, j), id))
            or (is_whole and self.moving.leaves(ColumnId(payload, j), id))
        ]

    def moving_now(self, payload: PayloadId) -> set[ColumnNumber]:
        """Those of the outgoing ones in which nobody has found damage."""
        checkpoint = self.get(payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return set()
        columns = checkpoint.placement[payload.rank].columns
        outgoing = self.outgoing_now(checkpoint, payload.rank)
        holders = ((j, self._members.targets.get(columns[j] or TargetId(""))) for j in outgoing)
        return {
            j
            for j, holder in holders
            if holder is not None and ColumnId(payload, j) not in rotten_columns(holder)
        }

    def _goes(self, column: ColumnId, holder: TargetId) -> bool:
        target = self._members.targets[holder]
        return not target.stays or column in rotten_columns(target)

    def homes_of(self, checkpoint: KeptCheckpoint) -> list[KeptCheckpoint]:
        """Its homes that are here, deleted ones too, which stay for it."""
        return [home for id in checkpoint.homes if (home := self.get(id)) is not None]

    def readable(self, checkpoint: KeptCheckpoint) -> bool:
        """Whether every payload, its homes' too, has k columns, and each index a holder, on live
        targets.
        """
        homes = self.homes_of(checkpoint)
        if len(homes) < len(checkpoint.homes):
            return False
        return all(map(self._has_all_bytes, (checkpoint, *homes)))

    def _has_all_bytes(self, checkpoint: KeptCheckpoint) -> bool:
        """Whether what it holds itself can be read."""
        if checkpoint.placement is None:
            return False
        k = checkpoint.code.k
        return self._memory.is_whole(
            checkpoint.id,
            lambda: all(len(here) >= k for _, here in self.columns_by_rank(checkpoint)),
        ) and bool(self.index_copies(checkpoint))

    def is_about_to_be_placed(self, checkpoint: KeptCheckpoint) -> bool:
        """Whether a start has not come to it yet, or to one of its homes: nothing is known to be
        wrong.
        """
        return any(
            one.placement is None and not one.unread and bool(self.index_copies(one))
            for one in (checkpoint, *self.homes_of(checkpoint))
        )

    def redundancy(self, checkpoint: KeptCheckpoint) -> Redundancy:
        """Redundancy now, not at write: the least of what it holds itself and its homes hold."""
        known = (checkpoint, *self.homes_of(checkpoint))
        found = [self._with_index(one, self._columns_of_map(one)) for one in known]
        if len(found) <= len(checkpoint.homes):
            found.append(GONE)
        return Redundancy(
            min(one.targets for one in found),
            min(one.domains for one in found),
            sum(one.columns_missing for one in found),
        )

    def own_redundancy(self, checkpoint: KeptCheckpoint) -> Redundancy:
        """Redundancy now of what it holds itself, without its homes: of its columns, and of its
        index, of which one copy must stay.
        """
        return self._with_index(checkpoint, self._columns(checkpoint))

    def _with_index(self, checkpoint: KeptCheckpoint, columns: Redundancy) -> Redundancy:
        """The lower of both. Copies of the record do not count."""
        copies = self.index_copies(checkpoint)
        spread = {domain_key(one.id, one.domain, self._level) for one in copies}
        return Redundancy(
            min(columns.targets, len(copies) - 1),
            max(0, min(columns.domains, len(spread) - 1)),
            columns.columns_missing,
        )

    def _columns_of_map(self, checkpoint: KeptCheckpoint) -> Redundancy:
        """As `_columns`, counted once for each version of the map: whoever watches asks often, and
        of every checkpoint.
        """
        counted = self._counted.get(checkpoint.id)
        if counted is None or counted[0] != self._members.version:
            counted = self._members.version, self._columns(checkpoint)
            self._counted[checkpoint.id] = counted
        return counted[1]

    def _columns(self, checkpoint: KeptCheckpoint) -> Redundancy:
        if checkpoint.placement is None:
            return GONE
        domains = {id: target.domain for id, target in self._members.targets.items()}
        here = (
            tuple(t if j in now else None for j, t in enumerate(checkpoint.placement[rank].columns))
            for rank, now in self.columns_by_rank(checkpoint)
        )
        return redundancy_of(checkpoint.code, here, domains, self._level)

    def columns_missing(self, checkpoint: KeptCheckpoint) -> int:
        """How many of its own columns are missing."""
        return self._columns_of_map(checkpoint).columns_missing

    def documents_missing(self, checkpoint: KeptCheckpoint, counts: DocumentCounts) -> int:
        """Copies of index, record and labels, its homes' as well, that are not there now. `counts`
        is `document_counts`: whoever looks at all checkpoints asks each target once.
        """
        lacking = [
            one.document_copies - count
            for one in (checkpoint, *self.homes_of(checkpoint))
            for count in (len(self.index_copies(one)), counts[DocumentKind.RECORD, one.id])
        ]
        if checkpoint.labels is not None:
            copies = counts[DocumentKind.LABELS, checkpoint.id]
            lacking.append(checkpoint.document_copies - copies)
        return sum(max(0, count) for count in lacking)

    def document_counts(self, *, staying: bool = False) -> DocumentCounts:
        """How many live targets have each commit record, and each generation's labels; with
        `staying` of those that are not to be emptied.
        """
        return Counter(
            (document.kind, document.checkpoint)
            for target in self._members.live()
            if target.stays or not staying
            for document in target.documents
            if document.kind in (DocumentKind.RECORD, DocumentKind.LABELS)
        )

    def record_copies(self, checkpoint: KeptCheckpoint) -> list[Target]:
        """Live targets that have its commit record; nothing says where else one was put."""
        size, digest = len(checkpoint.record_bytes), xxh3_128(checkpoint.record_bytes)
        record = {
            DocumentSummary(DocumentKind.RECORD, checkpoint.id, size, listed)
            for listed in (digest, b"")
        }
        return [one for one in self._members.live() if one.documents.holds_any(record)]

    def label_copies(self, checkpoint: KeptCheckpoint) -> list[Target]:
        """Live targets that have what is said of it."""
        return [
            target
            for target in self._members.live()
            for document in target.documents.of(checkpoint.id)
            if document.kind is DocumentKind.LABELS
        ]

    def index_copies(self, checkpoint: KeptCheckpoint) -> list[Target]:
        """Live targets that have its index: those that it was put on first, and where one of these
        lacks it, any other.
        """
        return self._members.index_holders(checkpoint.index, checkpoint.index_targets)

    def info_now(self, checkpoint: KeptCheckpoint) -> CommitInfo:
        """What may be said of it now: what was lost since the decision is not promised (P1)."""
        now, info = self.redundancy(checkpoint), checkpoint.info
        return replace(
            info,
            targets_survivable=max(0, min(info.targets_survivable, now.targets)),
            domains_survivable=max(0, min(info.domains_survivable, now.domains)),
            columns_missing=max(info.columns_missing, now.columns_missing),
        )

    def info_told(self, id: CheckpointId) -> CommitInfo | None:
        """The answer to somebody who missed the commit, also when it is deleted by now: how much it
        survives at this moment. None when nothing is known of a commit.
        """
        held = self.get(id)
        if held is not None and held.state is not RowState.TOMBSTONED:
            return self.info_now(held)
        # Its columns may still be there, and go at any moment.
        record = self._deleted.get(id) if held is None else held.record_bytes
        if record is None:
            return None
        return replace(decode_record(record).info, targets_survivable=0, domains_survivable=0)

    def unreachable(self, checkpoint: KeptCheckpoint) -> list[TargetId]:
        """Its targets and its homes' that are not live now, for the error message."""
        removed = self._members.targets.keys() - {target.id for target in self._members.all()}
        live = {target.id for target in self._members.live()}
        return sorted(self._all_targets(checkpoint) - removed - live)

    def addresses(self, checkpoint: KeptCheckpoint) -> tuple[TargetAddress, ...]:
        """Where its live targets, and its homes', are read."""
        live = {target.id: target.where for target in self._members.live()}
        return tuple(live[id] for id in sorted(self._all_targets(checkpoint)) if id in live)

    def _all_targets(self, checkpoint: KeptCheckpoint) -> set[TargetId]:
        known = (checkpoint, *self.homes_of(checkpoint))
        holders = {target.id for one in known for target in self.index_copies(one)}
        placed = (self._memory.named(one.id, one.placement or {}) for one in known)
        return holders.union(*placed, *(one.index_targets for one in known))


def _is_plain(target: Target) -> bool:
    """All that it has stays there."""
    return target.stays and (target.scrub is None or not target.scrub.rot)
