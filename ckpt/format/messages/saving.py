"""How stagers and the coordinator bring one attempt from its first payload to its commit.

A payload is opened, planned onto targets, certified, compared with its replicas. The outcome is
pushed to every stager of the attempt.
"""

from __future__ import annotations

from enum import Enum

from msgspec import UNSET, Struct, UnsetType

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnNumber,
    Home,
    LaunchNumber,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.writing import ColumnProof


class ReplicaPolicy(Enum):
    """What to do with a replica that differs."""

    ABORT = "abort"
    KEEP = "keep"


class OpenPayload(Struct, frozen=True, gc=False):
    """A rank has staged its payload and asks where it goes; the first opens the attempt."""

    run: RunName
    step: Step
    launch: LaunchNumber
    rank: Rank
    world_size: int
    process: str
    payload_bytes: int
    replicas: ReplicaPolicy = ReplicaPolicy.ABORT
    resume: CheckpointId | None = None
    """The generation, when the stager repeats itself to a restarted coordinator."""
    save: int = 0
    """This process's own count of its saves, from 1: makes a repeated request recognizable."""
    member: str = ""
    """Of a file (ckpt.format.members): its name below the run; launch and world size are 0, and
    `rank` is the number that an earlier answer gave, 0 before."""
    refused: str = ""
    """Why the rank staged nothing, which ends the attempt for all. It has 0 bytes, and no plan."""
    homes: tuple[Home, ...] = ()
    """Committed generations that hold what did not change of this rank's tensors: `payload_bytes`
    are the others. Said again with `resume`. Answered by HomesRefused when one cannot be used."""
    metrics: dict[str, float] = {}
    """What the trainer says of the step, as `check_metrics` has it. Said again with `resume`."""
    nth: int = 0
    """Its rank's how-many-th save of this step it is in this launch, from 1: the n-th meets the
    n-th of every other rank. 0: not known. Only said where LaunchJoined has `counts`."""


class HomesRefused(Struct, frozen=True, gc=False):
    """Instead of a plan: these generations cannot be referred to; open with all bytes."""

    homes: tuple[Home, ...]
    reason: str


class Place(Struct, frozen=True, gc=False):
    """One target that may take a column, with the reservation that waits for it there."""

    target: TargetId
    boot: BootId
    address: str
    """HOST:PORT."""
    reservation: ReservationId
    unix: str = ""
    """Path of the target's Unix socket, for a stager on its host."""


class PayloadPlanned(Struct, frozen=True, gc=False):
    """The generation is durable; `places[j]` takes column j, spares replace them in order."""

    payload: PayloadId
    code: str
    cell_bytes: int
    places: tuple[Place, ...]
    """n entries, or fewer than n: a column without a live target has None."""
    spares: tuple[Place, ...]
    absent: tuple[ColumnNumber, ...] = ()
    """Columns that no live target can take now; `places` holds the others, ascending."""


class SpaceStands(Struct, frozen=True, gc=False):
    """Places wait for the next save of this shape by the stager that hears it, and by no other."""

    run: RunName
    code: str
    payload_bytes: int
    cell_bytes: int
    places: tuple[Place, ...]
    """Of all columns, ascending."""
    spares: tuple[Place, ...]


class ClaimSpace(Struct, frozen=True, gc=False):
    """A stager says to another coordinator, or to one that was started again, what waits for it.
    Said before any question of the launch, and of nothing that a plan has named to it."""

    launch: LaunchNumber
    rank: Rank
    space: SpaceStands
    stood_us: int
    """So long ago it heard that."""


class RequestSpares(Struct, frozen=True, gc=False):
    """The named spares are used up, or the plan had none."""

    payload: PayloadId
    column: ColumnNumber
    failed: tuple[TargetId, ...]
    held: tuple[tuple[ColumnNumber, TargetId], ...] = ()
    """Where its other columns are: a coordinator that started meanwhile knows it from here."""
    stays: bool = True
    """It has a place still. Without one it may go where it failed when nothing else is left."""


class SparesNamed(Struct, frozen=True, gc=False):
    """More spares; empty when no live target can take the column."""

    payload: PayloadId
    spares: tuple[Place, ...]


class Repeats(Struct, frozen=True, gc=False):
    """How many tensors of a rank's save have the bits of its save before, of step `step`."""

    step: int
    tensors: int
    same: int
    optimizer_tensors: int
    optimizer_same: int


class Certify(Struct, frozen=True, gc=False):
    """This payload has enough sealed columns at this moment. Bulk: the rank's RankTable. Repeated,
    with the same content, to a restarted coordinator.
    """

    payload: PayloadId
    launch: LaunchNumber
    world_size: int
    proofs: tuple[ColumnProof, ...]
    code: str
    payload_bytes: int
    cell_bytes: int
    manifest_digest: bytes
    document_offset: int
    """Where the rank's tree document lies in its payload."""
    document_bytes: int
    stall_us: int
    fault_in_us: int = 0
    table_bytes: int = 0
    table_offset: int = 0
    """A table larger than one frame comes in several, ascending; the last completes it."""
    slowest_target: TargetId = TargetId("")
    """Whose column took longest, for the report."""
    slowest_us: int = 0
    repeats: Repeats | None = None
    slow: tuple[TargetId, ...] = ()
    """Targets that were silent or slow beside their peers."""


class Certified(Struct, frozen=True, gc=False):
    """Noted. The commit counts again."""

    payload: PayloadId


class ColumnsLost(Struct, frozen=True, gc=False):
    """The second count found too few: stream these columns again, onto these places."""

    payload: PayloadId
    columns: tuple[ColumnNumber, ...]
    places: tuple[Place, ...]


class BoxQuery(Struct, frozen=True, gc=False):
    """A part of one tensor that two ranks hold: fingerprint it."""

    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class CompareBoxes(Struct, frozen=True, gc=False):
    """Overlapping shards must agree: every holder answers with the fingerprints of the overlaps."""

    payload: PayloadId
    boxes: tuple[BoxQuery, ...]


class BoxesCompared(Struct, frozen=True, gc=False):
    """xxh3-128 of each box's bytes in C order, as asked."""

    payload: PayloadId
    fingerprints: tuple[bytes, ...]


AgedAt = float | UnsetType
"""When a commit was, for rules by age; unset: where the wall clock was."""


class CommitInfo(Struct, frozen=True, gc=False):
    """What everybody may know of a committed checkpoint."""

    checkpoint: CheckpointId
    launch: LaunchNumber
    world_size: int
    code: str
    payload_bytes: int
    targets_survivable: int
    domains_survivable: int
    domain_level: str
    """`device`, `host`, `rack` or `power`: what domains_survivable counts."""
    committed_at_s: float
    """Wall clock, for people only (P12)."""
    commit_us: int
    """From the first OpenPayload to the durable record."""
    stall_us: int
    """The longest of all ranks."""
    slowest_rank: Rank
    slowest_target: TargetId
    fault_in_us: int = 0
    columns_missing: int = 0
    warnings: tuple[str, ...] = ()
    """What the saver should know, such as replicas that differ and were kept apart."""
    homes: tuple[Home, ...] = ()
    """Generations that hold bytes of this one, ascending; they stay as long as this one."""
    referenced_bytes: int = 0
    """So many, without parity: they are not among `payload_bytes`."""
    metrics: dict[str, float] = {}
    """What the lowest rank that said anything has said of the step."""
    aged_at_s: AgedAt = UNSET
    """Seconds as `committed_at_s`, by a clock that believes no jump (ckpt.plan.keeping.aging)."""


class AttemptCommitted(Struct, frozen=True, gc=False):
    """Pushed to every stager of the attempt; the arena half is free."""

    info: CommitInfo


class AttemptAborted(Struct, frozen=True, gc=False):
    """Pushed to every stager of the attempt; it will never commit."""

    checkpoint: CheckpointId
    code: str
    message: str
    hint: str = ""
    retry_after_us: int | None = None
    """When another save may succeed, as when there was no space."""


class PayloadGivenUp(Struct, frozen=True, gc=False):
    """This payload can never be certified: fewer than floor places can exist, or its bytes broke.

    The coordinator aborts the attempt; AttemptAborted (or an earlier AttemptCommitted) answers it.
    """

    payload: PayloadId
    code: str
    message: str
    hint: str = ""


class CommitMembers(Struct, frozen=True, gc=False):
    """These files are the checkpoint. Bulk: the list (ckpt.format.members).

    Closes the attempt: exactly the named members are committed, the others are discarded. Answered
    by AttemptCommitted or AttemptAborted; by Failed when a member is missing or differs, which
    closes nothing.
    """

    checkpoint: CheckpointId
    alone: bool = False
    """Refused when the list has other files as well: somebody else is writing them."""
    launch: LaunchNumber | None = None
    """The writer's own: what its ranks load of this step from now on is this, or newer."""
