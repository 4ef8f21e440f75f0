"""What the coordinator keeps on stable storage, entry by entry.

Only numbering a launch, opening an attempt, deciding, committing, aborting and deleting are
durable; stagers and targets report everything else again. Most entries move a checkpoint along

    OPEN -> DECIDED -> COMMITTED -> TOMBSTONED -> DELETED
      \\-> ABORTED        \\-> DAMAGED (stays listed, is not read here until it is found again)

The shell stores entries in order; a restart begins from what they make together (image.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
from ckpt.protocol.coordinator.said import Said
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
)

BEGINNING = CatalogPosition(0, 0)
NO_GENERATION = Generation(0, 0)
"""Lower than every other generation."""


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
