"""What one part of the coordinator learns and others act on.

A part tells a fact to the desk and knows no hearer. Who hears it, and in which order, is one table:
`CoordinatorMachine._introduce`, drawn in docs/ARCHITECTURE.md. A fact names what it is about by its
id, so that it can cross rooms that do not import each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, LaunchNumber, PayloadId, RunName, TargetId
from ckpt.format.messages.loading import Resolve
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.events import Received, Session

# --------------------------------------------------------------------------- the cluster


@dataclass(frozen=True, slots=True)
class TargetListed:
    """A target is live: all that it holds is known."""

    target: TargetId


@dataclass(frozen=True, slots=True)
class TargetVouched:
    """What a target holds fits the catalog, and requests were served before it came."""

    target: TargetId


@dataclass(frozen=True, slots=True)
class TargetRemoved:
    """Somebody has said that it is no target any more, and it never comes back."""

    target: TargetId


@dataclass(frozen=True, slots=True)
class TargetLeft:
    """A target is down, and its reservations died with it."""

    target: TargetId


@dataclass(frozen=True, slots=True)
class CatalogVouched:
    """Enough targets say that the catalog is the newest: requests may be served."""


@dataclass(frozen=True, slots=True)
class RequestConfirmed:
    """The coordinator was in force after this request came: it may be answered."""

    event: Received


@dataclass(frozen=True, slots=True)
class LoadUnconfirmed:
    """A load waited in vain for enough targets. The hearer answers it, or raises why not."""

    session: Session
    request: int
    message: Resolve
    problem: CkptError


# --------------------------------------------------------------------------- saves


@dataclass(frozen=True, slots=True)
class AttemptRecorded:
    """The record lies on enough targets, and the catalog says so: the attempt is committed."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A generation is there to be read; nobody outside has heard of it yet."""

    checkpoint: CheckpointId
    info: CommitInfo
    """As it will be announced."""
    written_by: tuple[LaunchNumber, ...]
    """Launches whose ranks wrote files of it."""


@dataclass(frozen=True, slots=True)
class AttemptDropped:
    """An attempt is aborted, durably: nobody may keep what it left."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FileDropped:
    """A file that its attempt goes on without."""

    payload: PayloadId


# --------------------------------------------------------------------------- what is kept


@dataclass(frozen=True, slots=True)
class CheckpointReleased:
    """Its last reader has gone, or the last later generation that referred to it."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ReferencesDropped:
    """An attempt or a generation that nobody will read: what it refers to is its own again."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RunForgotten:
    """Nothing of a run is left, nobody is at work in it, and its last trace has gone."""

    run: RunName
    launches: tuple[LaunchNumber, ...]
    """That were known of it."""


@dataclass(frozen=True, slots=True)
class RunDrained:
    """An object store holds something else of the run, durably."""

    run: RunName


@dataclass(frozen=True, slots=True)
class RetentionDue:
    """What stays of the run may be less now: rules or names were changed, or time has passed."""

    run: RunName


@dataclass(frozen=True, slots=True)
class CheckpointDoubted:
    """A load found too few targets that hold it."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointPlaced:
    """The index of a checkpoint that the catalog named was read: where its columns are."""

    checkpoint: CheckpointId


Fact = (
    TargetListed
    | TargetVouched
    | TargetLeft
    | TargetRemoved
    | CatalogVouched
    | RequestConfirmed
    | LoadUnconfirmed
    | AttemptRecorded
    | CheckpointCommitted
    | AttemptDropped
    | FileDropped
    | CheckpointReleased
    | ReferencesDropped
    | RunForgotten
    | RunDrained
    | RetentionDue
    | CheckpointDoubted
    | CheckpointPlaced
)
