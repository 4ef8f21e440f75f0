"""What the coordinator keeps on stable storage: entries, and the image that a restart begins from.

Only numbering a launch, opening an attempt, deciding, committing, aborting and deleting are
durable; stagers and targets report everything else again. Most entries move a checkpoint along

    OPEN -> DECIDED -> COMMITTED -> TOMBSTONED -> DELETED
      \\-> ABORTED        \\-> DAMAGED (stays listed, is not read here until it is found again)

The shell stores entries in order and applies the same fold (`apply_entry`) when it loads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
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
from ckpt.protocol.coordinator.said import RetentionSaid, Said, Settled, note_said
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
BEGINNING = CatalogPosition(0, 0)
NO_GENERATION = Generation(0, 0)
"""Lower than every other generation."""
Kept = TypeVar("Kept")


class RowState(Enum):
    """How far a checkpoint has come; the names are stored."""

    OPEN = "open"
    DECIDED = "decided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    DAMAGED = "damaged"
    TOMBSTONED = "tombstoned"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class AttemptOpened:
    """Durable before any rank learns the generation."""

    checkpoint: CheckpointId
    launch: LaunchNumber
    launch_key: str | None
    world_size: int


@dataclass(frozen=True, slots=True)
class AttemptDecided:
    """The point of no return: from here on the attempt is only rolled forward, with these bytes."""

    checkpoint: CheckpointId
    record: bytes
    """The encoded commit record (ckpt.format.documents.record). The index that it names says which
    target holds which column."""


@dataclass(frozen=True, slots=True)
class RowCommitted:
    """The record lies on enough targets; announced after this."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RowAborted:
    """Will never commit; its columns may be dropped."""

    checkpoint: CheckpointId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointDamaged:
    """Proved beyond repair; resolution passes it over, loudly."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """What was proved beyond repair is there again: its columns were read whole."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointTombstoned:
    """Deleted as a fact; its columns go when no reader holds them."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class ColumnsMoved:
    """Columns of this page of ranks have another holder than the index says; each has proved its
    own. All of the page: it takes the place of what was said of it before.
    """

    checkpoint: CheckpointId
    page: int
    moves: bytes
    """The encoded page (ckpt.format.documents.moves); never empty."""


@dataclass(frozen=True, slots=True)
class LabelsSent:
    """Its targets may have others than the catalog from now on, until `CheckpointLabeled`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointLabeled:
    """Its names and whether it is pinned, all of it, as its targets have it."""

    checkpoint: CheckpointId
    labels: bytes
    """The encoded document (ckpt.format.documents.labels); empty: nothing is said of it."""


@dataclass(frozen=True, slots=True)
class CheckpointDeleted:
    """Every target has confirmed; nothing of it is left but tombstones."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RowForgotten:
    """The row of an aborted or deleted generation goes; one that is gone stays gone."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class LaunchNumbered:
    """A start of a run has its number: durable before any rank learns it."""

    run: RunName
    launch: LaunchNumber
    key: str | None
    world_size: int


@dataclass(frozen=True, slots=True)
class LaunchEntered:
    """This process holds a rank of a launch without a key: only its processes set that apart from
    the next launch."""

    run: RunName
    launch: LaunchNumber
    rank: Rank
    process: str


@dataclass(frozen=True, slots=True)
class LaunchResolved:
    """A rank of this launch has loaded this checkpoint: for that turn its peers load no other."""

    run: RunName
    launch: LaunchNumber
    turn: int
    checkpoint: CheckpointId
    by_number: bool = False
    """It was asked for by its step's number, and replaces what stood before; turn 0."""


@dataclass(frozen=True, slots=True)
class StepForgotten:
    """What a launch has resolved by this number binds it no more."""

    run: RunName
    launch: LaunchNumber
    step: Step


@dataclass(frozen=True, slots=True)
class LaunchForgotten:
    """A launch whose processes are gone; what it committed stays."""

    run: RunName
    launch: LaunchNumber


class TargetStanding(Enum):
    """What people have said of a target; the names are stored."""

    IN = "in"
    """It takes its share of what is saved."""
    DRAINING = "draining"
    """It takes nothing new. What it holds counts, and moves to others."""
    OUT = "out"
    """The same, and what is missing on it while it is away is made again at once."""
    REMOVED = "removed"
    """It is no target any more, and never again."""
    ABSENT = "absent"
    """In, and has not come since the catalog was made without it: its word is not waited for."""


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """A target belongs to the cluster: it is named in reports also while it is down."""

    target: TargetId
    domain: str
    directory: str
    incarnation: bytes = b""
    """Of its directory, 16 random bytes; empty until a process has presented one."""
    place: str = ""
    """Where that lies, says its process: the same only for the same file on the same machine."""
    standing: TargetStanding = TargetStanding.IN


@dataclass(frozen=True, slots=True)
class CatalogReached:
    """Everything up to this position is in the catalog, this entry's own ticket included."""

    position: CatalogPosition


@dataclass(frozen=True, slots=True)
class CatalogOutdated:
    """A target has proved that another catalog is newer: this one is never served again."""

    reason: str


RowMoved = (
    AttemptDecided | RowCommitted | RowAborted | CheckpointDamaged | CheckpointFound
    | CheckpointTombstoned | CheckpointDeleted
)  # fmt: skip
"""Each has its row in another state."""
CatalogEntry = (
    StoreOpened
    | StoreHolds
    | CheckpointDrained
    | StoreForgotten
    | AttemptOpened
    | RowMoved
    | ColumnsMoved
    | LabelsSent
    | CheckpointLabeled
    | Said
    | RowForgotten
    | LaunchNumbered
    | LaunchEntered
    | LaunchResolved
    | StepForgotten
    | LaunchForgotten
    | TargetSeen
    | CatalogReached
    | CatalogOutdated
)


@dataclass(frozen=True, slots=True)
class Persist:
    """Action: put all entries on stable storage, together; then answer with `Persisted(ticket)`.

    Tickets are numbered from 1 and acknowledged in order.
    """

    ticket: int
    entries: tuple[CatalogEntry, ...]


@dataclass(frozen=True, slots=True)
class Persisted:
    """Event: the entries of this ticket survive a crash."""

    now_us: int
    ticket: int


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
            case Settled():
                note_said(self, entry)
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
