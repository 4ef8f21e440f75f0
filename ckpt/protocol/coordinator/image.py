"""The catalog as a restart finds it: all entries, in order, folded into one image.

The coordinator begins from it, and every kind of catalog makes it by the same fold
(`CatalogImage.apply`) when it loads its entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ckpt.base.ids import (
    CatalogPosition,
    CheckpointId,
    Generation,
    LaunchNumber,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.format.messages.keeping import Retention
from ckpt.format.messages.repairs import RepairRules
from ckpt.protocol.coordinator.catalog import (
    BEGINNING,
    NO_GENERATION,
    AttemptDecided,
    AttemptOpened,
    CatalogEntry,
    CatalogOutdated,
    CatalogReached,
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointFound,
    CheckpointLabeled,
    CheckpointTombstoned,
    ColumnsMoved,
    LabelsSent,
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    LaunchResolved,
    RowAborted,
    RowCommitted,
    RowForgotten,
    RowMoved,
    RowState,
    StepForgotten,
    TargetSeen,
)
from ckpt.protocol.coordinator.said import (
    RepairSaid,
    RetentionSaid,
    Said,
    TargetsGrouped,
    UpgradeFinished,
)
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
    StoreRow,
    apply_drain,
)

TURNS_KEPT = 16
"""Resolutions of a launch that are kept, besides the first one."""
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """All that is known of one checkpoint."""

    checkpoint: CheckpointId
    state: RowState
    launch: LaunchNumber
    launch_key: str | None
    world_size: int
    record: bytes = b""
    reason: str = ""
    """Of an abort, damage or deletion: `code: message`."""


@dataclass(slots=True)
class LaunchRow:
    """All that is known of one launch."""

    key: str | None
    world_size: int
    processes: dict[Rank, str] = field(default_factory=dict)
    """Who holds each rank; kept only for a launch without a key."""
    resolved: dict[int, CheckpointId] = field(default_factory=dict)
    """What "newest" was settled to, by turn: the first turn and the newest ones are kept."""
    by_number: dict[Step, CheckpointId] = field(default_factory=dict)
    """What was settled for loads that named their step."""


@dataclass(slots=True)
class CatalogImage:
    """The catalog as a restart finds it. `term` is already this process's own, new and durable."""

    term: int
    rows: dict[CheckpointId, CatalogRow] = field(default_factory=dict)
    targets: dict[TargetId, TargetSeen] = field(default_factory=dict)
    launches: dict[tuple[RunName, LaunchNumber], LaunchRow] = field(default_factory=dict)
    stores: dict[str, StoreRow] = field(default_factory=dict)
    moves: dict[CheckpointId, dict[int, bytes]] = field(default_factory=dict)
    """Which columns lie elsewhere than the index says, as encoded pages, by their number."""
    labels: dict[CheckpointId, bytes] = field(default_factory=dict)
    """What people have said of committed checkpoints, as encoded documents."""
    unsettled: set[CheckpointId] = field(default_factory=set)
    """Of these targets may have other labels."""
    retentions: dict[RunName, Retention] = field(default_factory=dict)
    """What people have said stays of a run; without any rule: that is lost."""
    repair: RepairRules = field(default_factory=RepairRules)
    """What people have said of repair."""
    groups: dict[TargetId, int] = field(default_factory=dict)
    """The placement group of each target; empty while there are none."""
    protocol: int = PROTOCOL_VERSION
    """Who speaks less is not let in. Below MOVES_VERSION while an upgrade is not finished."""
    position: CatalogPosition = BEGINNING
    """Of the newest entry that was made durable while the targets vouched for the catalog."""
    forgotten: Generation = NO_GENERATION
    """The newest generation whose row was forgotten: above it, none is missing."""
    rebuilt_term: int = 0
    """The highest that was seen when the catalog was made from the targets; 0 for one that grew."""
    rebuilt_from: int = 0
    """So many targets were named then, whether they answered or not, or had been removed."""
    passed_over: set[CheckpointId] = field(default_factory=set)
    """Generations without a row whose record or tombstone was found then, and refused."""
    outdated: str = ""
    """What proved that another catalog is newer; empty when nothing has."""
    process: bytes = field(default=b"", compare=False)
    """16 random bytes of this process, not stored: a copy begins the same term elsewhere."""

    def launch_entries(self) -> Iterator[CatalogEntry]:
        """What makes the same launches again."""
        for (run, number), row in self.launches.items():
            yield LaunchNumbered(run, number, row.key, row.world_size)
            for rank, process in row.processes.items():
                yield LaunchEntered(run, number, rank, process)
            for turn, checkpoint in row.resolved.items():
                yield LaunchResolved(run, number, turn, checkpoint)
            for checkpoint in row.by_number.values():
                yield LaunchResolved(run, number, 0, checkpoint, by_number=True)

    def drain_entries(self) -> Iterator[CatalogEntry]:
        """What makes the same object stores again."""
        for url, row in self.stores.items():
            yield StoreOpened(row.policy)
            for run, stored in row.stored.items():
                yield StoreHolds(url, run, tuple(sorted(stored)))

    def move_entries(self) -> Iterator[CatalogEntry]:
        """What moves the same columns again."""
        for checkpoint, pages in self.moves.items():
            yield from (ColumnsMoved(checkpoint, *page) for page in pages.items())

    def label_entries(self) -> Iterator[CatalogEntry]:
        """What labels the same checkpoints again."""
        yield from (CheckpointLabeled(*labeled) for labeled in self.labels.items())
        yield from map(LabelsSent, sorted(self.unsettled))

    def retention_entries(self) -> Iterator[CatalogEntry]:
        """What says of the same runs again what stays."""
        yield from (RetentionSaid(*said) for said in self.retentions.items())

    def apply(self, entry: CatalogEntry) -> None:
        """Fold one entry into the image.

        Entries about unknown checkpoints are a programmer's mistake.
        """
        match entry:
            case AttemptOpened():
                id, launch, key = entry.checkpoint, entry.launch, entry.launch_key
                self.rows[id] = CatalogRow(id, RowState.OPEN, launch, key, entry.world_size)
            case RowForgotten():
                self._forget(entry.checkpoint)
            case ColumnsMoved():
                self.moves.setdefault(entry.checkpoint, {})[entry.page] = entry.moves
            case CheckpointDeleted():
                self.moves.pop(entry.checkpoint, None)
                self.rows[entry.checkpoint] = _after(self.rows[entry.checkpoint], entry)
            case LabelsSent():
                self.unsettled.add(entry.checkpoint)
            case CheckpointLabeled():
                self._forget_labels(entry.checkpoint)
                if entry.labels:
                    self.labels[entry.checkpoint] = entry.labels
            case RetentionSaid() | RepairSaid() | UpgradeFinished() | TargetsGrouped():
                self._note_said(entry)
            case CheckpointTombstoned():
                self._forget_labels(entry.checkpoint)
                self.rows[entry.checkpoint] = _after(self.rows[entry.checkpoint], entry)
            case LaunchNumbered():
                self.launches[(entry.run, entry.launch)] = LaunchRow(entry.key, entry.world_size)
            case LaunchEntered():
                self.launches[(entry.run, entry.launch)].processes[entry.rank] = entry.process
            case LaunchResolved():
                known = self.launches.get((entry.run, entry.launch))
                if known is not None and entry.by_number:
                    known.by_number[entry.checkpoint.step] = entry.checkpoint
                elif known is not None:
                    known.resolved[entry.turn] = entry.checkpoint
                    forget_old_turns(known.resolved, entry.turn)
            case StepForgotten():
                known = self.launches.get((entry.run, entry.launch))
                if known is not None:
                    known.by_number.pop(entry.step, None)
            case LaunchForgotten():
                self.launches.pop((entry.run, entry.launch), None)
            case TargetSeen():
                self.targets[entry.target] = entry
            case CatalogReached():
                self.position = entry.position
            case CatalogOutdated():
                self.outdated = entry.reason
            case StoreOpened() | StoreHolds() | CheckpointDrained() | StoreForgotten():
                apply_drain(self.stores, entry)
            case _:
                self.rows[entry.checkpoint] = _after(self.rows[entry.checkpoint], entry)

    def _note_said(self, said: Said) -> None:
        match said:
            case RepairSaid():
                self.repair = said.rules
            case TargetsGrouped():
                self.groups = dict(said.groups)
            case UpgradeFinished():
                self.protocol = max(self.protocol, said.protocol)
            case RetentionSaid(retention=None):
                self.retentions.pop(said.run, None)
            case RetentionSaid(retention=retention):
                assert retention is not None
                self.retentions[said.run] = retention

    def _forget(self, checkpoint: CheckpointId) -> None:
        self.rows.pop(checkpoint, None)
        self.moves.pop(checkpoint, None)
        self._forget_labels(checkpoint)
        self.forgotten = max(self.forgotten, checkpoint.generation)

    def _forget_labels(self, checkpoint: CheckpointId) -> None:
        self.labels.pop(checkpoint, None)
        self.unsettled.discard(checkpoint)


def forget_old_turns(turns: dict[int, Kept], newest: int) -> None:
    """No rank lags its peers by TURNS_KEPT resolutions; the first one stays."""
    for turn in [turn for turn in turns if 0 < turn <= newest - TURNS_KEPT]:
        del turns[turn]


def _after(row: CatalogRow, entry: RowMoved) -> CatalogRow:
    match entry:
        case AttemptDecided():
            return replace(row, state=RowState.DECIDED, record=entry.record)
        case RowCommitted():
            return replace(row, state=RowState.COMMITTED)
        case RowAborted():
            return replace(row, state=RowState.ABORTED, reason=f"{entry.code}: {entry.message}")
        case CheckpointDamaged():
            return replace(row, state=RowState.DAMAGED, reason=entry.reason)
        case CheckpointFound():
            return replace(row, state=RowState.COMMITTED, reason="")
        case CheckpointTombstoned():
            return replace(row, state=RowState.TOMBSTONED, reason=entry.reason)
        case CheckpointDeleted():
            return replace(row, state=RowState.DELETED)
