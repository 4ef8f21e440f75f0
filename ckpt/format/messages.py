"""Who says what: every message of the two planes, one frozen Struct each.

A message is the `meta` part of a frame (`ckpt.format.frame`), encoded as a MessagePack map by field
name. A newer peer may add fields with defaults: unknown fields are ignored, missing ones take their
default, so neighbours of one version understand each other (P11). Numbers in `MESSAGE_TYPES` are
never used again. Nothing here can carry code.

    handshake      client -> server    ClientHello, ClientProof
                   server -> client    ServerHello, ServerProof
    same host      stager  -> target   LendMemory, TakeBackMemory
                   target  -> stager   MemoryReturned
    data plane     stager  -> target   BeginColumn, Fragment, SealColumn, AskPace, AbandonColumn
                   target  -> stager   ColumnAccepted, CreditGranted, ColumnSealed, Failed
                   reader  -> target   ReadRanges, ReadManifest, ReadDocument, VerifyColumn,
                                       CancelRequest
                   target  -> reader   RangeData, RangeDamaged, RangesDone, ManifestData,
                                       DocumentData, ColumnVerified
    control plane  stager  -> coord.   JoinLaunch, OpenPayload, RequestSpares, Certify,
                                       BoxesCompared, TrainerLeft, PayloadGivenUp, CommitMembers
                   coord.  -> stager   LaunchJoined, PayloadPlanned, HomesRefused, SparesNamed,
                                       Certified, ColumnsLost, CompareBoxes, AttemptCommitted,
                                       AttemptAborted
                   reader  -> coord.   JoinLaunch, Resolve, LoadBegan, ConfirmLoad, ReleasePin, Ask,
                                       ShareReads, NextReads, LeaveReads, ReportDamage, DeleteStep
                   coord.  -> reader   LaunchJoined, Resolved, LoadConfirmed, ReadsShared,
                                       DamageJudged, Answer, StepDeleted
                   admin   -> coord.   Ask, DeleteStep, ReplaceTarget; TargetReplaced comes back
                   target  -> coord.   RegisterTarget, RenewLease (the target dials)
                   coord.  -> target   TargetRegistered, LeaseRenewed; commands: Reserve,
                                       ReleaseReservation, Attest, PutDocument, DropGeneration,
                                       DropColumn, VerifyColumn, ListColumns
                   target  -> coord.   Reserved, Attested, DocumentStored, Dropped, ColumnVerified,
                                       ColumnsListed
                   drain   -> coord.   see ckpt.format.drain_messages

Any request may be answered by `Failed` instead.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Epoch,
    Generation,
    Home,
    LaunchNumber,
    PayloadId,
    Rank,
    ReservationId,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.drain_messages import (
    BeginParts,
    DrainLeased,
    DrainNoted,
    EndDrain,
    ForgetStore,
    LeaseDrain,
    OpenStore,
    PartTaken,
    RenewDrain,
    TakePart,
    TellStored,
    TellTrouble,
)
from ckpt.format.lending_messages import LendMemory, MemoryReturned, TakeBackMemory
from ckpt.format.target_messages import (
    AskPace,
    Attest,
    Attested,
    ColumnProof,
    ColumnsListed,
    DocumentKind,
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    LeaseRenewed,
    ListColumns,
    PutDocument,
    RegisterTarget,
    ReleaseReservation,
    RenewLease,
    ReplaceTarget,
    Reserve,
    Reserved,
    TargetPace,
    TargetRegistered,
    TargetReplaced,
)

PROTOCOL_VERSION: Final = 1
"""Spoken here; a peer of the neighbouring version is accepted."""


class Role(Enum):
    """What a connection's other end claims to be; the handshake binds it."""

    STAGER = "stager"
    READER = "reader"
    TARGET = "target"
    COORDINATOR = "coordinator"
    ADMIN = "admin"
    DRAIN = "drain"
    """Keeps no idle cluster awake."""


# =========================================================================== handshake


class ClientHello(Struct, frozen=True, gc=False):
    """The first frame on a connection. Reveals no name."""

    version: int
    role: Role
    nonce: bytes
    """32 random bytes."""


class ServerHello(Struct, frozen=True, gc=False):
    """The server's half: nothing but a nonce; its identity follows when the client is proved."""

    version: int
    nonce: bytes
    mac: bytes
    """HMAC-SHA256(secret, "ckpt server" | transcript), see ckpt.protocol.handshake."""


class ClientProof(Struct, frozen=True, gc=False):
    """The client's half, and who it is."""

    mac: bytes
    name: str
    cluster: str = ""
    """The cluster id that the client expects; empty when it does not know yet."""
    server: str = ""
    """The server name that the client expects (a target's id); empty when any will do."""


class ServerProof(Struct, frozen=True, gc=False):
    """The session stands."""

    cluster: str
    role: Role
    name: str
    """The target's id; empty for the coordinator."""
    boot: BootId
    epoch: Epoch
    borrows: bool = False
    """It takes bulks where they lie, see ckpt.aio.lending."""


class Failed(Struct, frozen=True, gc=False):
    """The answer to any request that was not done; fields as in ckpt.base.errors."""

    code: str
    message: str
    hint: str = ""
    retry_after_us: int | None = None


class CancelRequest(Struct, frozen=True, gc=False):
    """The answer to the request of this frame's number is not wanted any more. Never answered."""


# =========================================================================== data plane: write


class BeginColumn(Struct, frozen=True, gc=False):
    """Open a column stream; the frame's request number names it until sealed or abandoned."""

    column: ColumnId
    launch: LaunchNumber
    reservation: ReservationId
    code: str
    payload_bytes: int
    cell_bytes: int


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


# =========================================================================== data plane: read


class ByteRange(Struct, frozen=True, gc=False):
    """Fragment bytes [start, end) of a column, the header page not counted."""

    start: int
    end: int


class ByteRuns(Struct, frozen=True, gc=False, omit_defaults=True):
    """Bytes [start, end), and as many at every `step` behind, `count` runs; a step is longer."""

    start: int
    end: int
    count: int = 1
    step: int = 0


class ReadRanges(Struct, frozen=True, gc=False):
    """Vectored read of one column. Answered by RangeData, RangeDamaged in any order; RangesDone.
    Whole blocks are verified, only wanted bytes sent. At most READ_RANGES_MAX, READ_RUNS_MAX."""

    column: ColumnId
    ranges: tuple[ByteRuns, ...]


class RangeData(Struct, frozen=True, gc=False):
    """Bulk: the fragment bytes of the ranges, one behind the other. A long range comes alone, so
    that it can be received where it belongs; short ones travel together."""

    ranges: tuple[ByteRuns, ...]
    """At least one; ascending, none begins before the last one's end; each run of one cell."""
    crc: int
    """Fresh CRC-32 of the bulk."""


class RangeDamaged(Struct, frozen=True, gc=False):
    """Wanted bytes [start, end) that fail their block's checksum or cannot be read: an erasure."""

    start: int
    end: int
    reason: str


class RangesDone(Struct, frozen=True, gc=False):
    """Every wanted byte was sent or named as damaged."""


class ReadManifest(Struct, frozen=True, gc=False):
    """Ask for a column's manifest. Answered by ManifestData parts, up to `total_bytes`."""

    column: ColumnId


class ManifestData(Struct, frozen=True, gc=False):
    """Bulk: manifest bytes at `offset`."""

    total_bytes: int
    offset: int = 0


class ReadDocument(Struct, frozen=True, gc=False):
    """Ask for [start, end) of a document; `end` None means to its end."""

    kind: DocumentKind
    checkpoint: CheckpointId
    start: int = 0
    end: int | None = None


class DocumentData(Struct, frozen=True, gc=False):
    """Bulk: document bytes at `offset`; parts follow until `last`."""

    total_bytes: int
    offset: int
    last: bool


class VerifyColumn(Struct, frozen=True, gc=False):
    """Read every byte of a column and compare all checksums."""

    column: ColumnId


class ColumnVerified(Struct, frozen=True, gc=False):
    """What a full read found. `missing` means that there is no such column here."""

    column: ColumnId
    missing: bool
    column_bytes: int
    damaged: tuple[ByteRange, ...] = ()


# =========================================================================== control plane: save


class JoinLaunch(Struct, frozen=True, gc=False):
    """One rank of one start of a run. Idempotent for the same process."""

    run: RunName
    key: str | None
    rank: Rank
    world_size: int
    process: str
    """The trainer's own incarnation: `HOST/PID/random`."""
    launch: LaunchNumber | None = None
    """What an earlier join answered; lets a restarted coordinator adopt it."""
    came_ago_us: int | None = None
    """Since the process joined this launch first; None when this is that time."""
    saved_step: Step | None = None
    saved_ago_us: int = 0
    """What it handed over last in this launch, and since a coordinator has answered that."""
    reads: bool = False
    """It only loads. In a launch with a key it holds no rank: another process may, and keeps it."""


class LaunchJoined(Struct, frozen=True, gc=False):
    """All ranks of one launch get the same number."""

    launch: LaunchNumber
    turn: int = 0
    """Of this rank's next resolution of "newest"; see ckpt.protocol.coordinator.rounds."""
    references: bool = False
    """This coordinator understands OpenPayload's homes, and tables that refer to them."""
    by_number: bool = False
    """It holds a launch together also where its ranks ask for a step by its number."""


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
    """Refused when the list has other files too: somebody else is writing them."""
    launch: LaunchNumber | None = None
    """The writer's own: what its ranks load of this step from now on is this, or newer."""


class Departure(Enum):
    """How a trainer left: its process has ended; it closed its store and lives, its end will be
    told; or the same, but nobody will tell, because the idle stager goes."""

    ENDED, CLOSED, UNWATCHED = "ended", "closed", "unwatched"


class TrainerLeft(Struct, frozen=True, gc=False):
    """A stager lost its trainer; told again when `how` changes, and on every new session."""

    run: RunName
    launch: LaunchNumber
    rank: Rank
    process: str
    how: Departure = Departure.ENDED


# =========================================================================== control plane: read


class Resolve(Struct, frozen=True, gc=False):
    """Which generation to read. With a launch, it is resolved once for all its ranks."""

    run: RunName
    step: Step | None
    launch: LaunchNumber | None = None
    rank: Rank | None = None
    world_size: int | None = None
    timeout_us: int = 10_000_000
    fallback: bool = False
    turn: int = 0
    """Which of the launch's resolutions is asked for; the same again gives the same. By number: of
    the loads of this step that the rank's process has had confirmed the how manieth it will be."""
    stored: bool = False
    """The reader can read object stores: what is not to be had here, whole there, may be named."""
    away: bool = False
    """It asked its targets in vain: a store that has it shall be named now."""
    only: Generation | None = None
    """It goes on reading what it was confirmed: no other will do."""


class TargetAddress(Struct, frozen=True, gc=False):
    """Where to read."""

    target: TargetId
    boot: BootId
    address: str
    unix: str = ""


class Resolved(Struct, frozen=True, gc=False):
    """A committed generation, pinned until ReleasePin or the session's end. Bulk: its record."""

    info: CommitInfo
    pin: int
    targets: tuple[TargetAddress, ...]
    """Live targets that hold columns or documents of it."""
    skipped: tuple[str, ...] = ()
    """Newer steps that were passed over, each with its reason."""
    sharing: bool = False
    """This coordinator answers ShareReads."""
    stored: tuple[str, ...] = ()
    """It is not to be had here: read it from one of these object stores, where it is verified."""
    away: str = ""
    """Why it is out of reach; empty for what is lost."""
    homes: tuple[bytes, ...] = ()
    """Commit records of the generations that hold bytes of it. `targets` has their holders too."""


class ReleasePin(Struct, frozen=True, gc=False):
    """The reader is done. Never answered."""

    pin: int


class LoadBegan(Struct, frozen=True, gc=False):
    """A rank begins to read what its launch resolved. Never answered."""

    run: RunName
    launch: LaunchNumber
    rank: Rank
    turn: int
    step: Step | None = None
    """As it was asked for."""


class ConfirmLoad(Struct, frozen=True, gc=False):
    """A rank has read what its launch resolved, whole and verified, and has not returned it yet.
    Answered when no rank that is loading can change the answer, at the latest after the timeout."""

    run: RunName
    launch: LaunchNumber
    rank: Rank
    turn: int
    checkpoint: CheckpointId
    timeout_us: int
    step: Step | None = None
    """As it was asked for."""
    stored: bool = False
    """It was read from an object store, of which nothing was resolved here."""


class LoadConfirmed(Struct, frozen=True, gc=False):
    """All ranks of the launch load it, for good; or, with a reason, it is another: ask again."""

    superseded: str = ""


class ShareReads(Struct, frozen=True, gc=False):
    """I read what others may read now. Answered by ReadsShared. Bulk: spans (ckpt.format.spans)."""

    checkpoint: CheckpointId
    key: str
    """What the ranks that read together have in common."""
    peer: TargetAddress
    """Where I give what I have read."""
    align_bytes: int
    """Spans are parted at multiples of it."""


class NextReads(Struct, frozen=True, gc=False):
    """What I was granted is read, and I give it to peers. What next? Answered by ReadsShared."""


class ReadsShared(Struct, frozen=True, gc=False):
    """What to read now. Bulk: spans (ckpt.format.spans), each with the number of the peer that has
    it, or OURS: not from a peer. Without spans all is done."""

    peers: tuple[TargetAddress, ...] = ()


class LeaveReads(Struct, frozen=True, gc=False):
    """I need nothing more. Answered by an empty ReadsShared when nobody who reads the same can need
    me, at the latest after the timeout; until then I serve."""

    timeout_us: int


class ReportDamage(Struct, frozen=True, gc=False):
    """A reader could not decode this payload from the columns it reached; or (`index`) met no whole
    copy of its checkpoint's index."""

    payload: PayloadId
    reason: str
    index: bool = False
    reading: CheckpointId | None = None
    """What is read, when the payload or the index is that of one of its homes."""


class DamageJudged(Struct, frozen=True, gc=False):
    """`proved`: the generation is lost, resolve again. Otherwise it is out of reach for now."""

    proved: bool
    reason: str


class Ask(Struct, frozen=True, gc=False):
    """A question of people and tools; the answer is the JSON that HTTP `/v1/<what>` gives."""

    what: str
    """`status`, `coordinator`, `runs`, `steps`, `show`, `files`, `members`."""
    run: RunName | None = None
    step: Step | None = None


class Answer(Struct, frozen=True, gc=False):
    """Bulk: JSON."""


class DeleteStep(Struct, frozen=True, gc=False):
    """Delete every generation of (run, step): tombstone first, columns when nobody reads them."""

    run: RunName
    step: Step


class StepDeleted(Struct, frozen=True, gc=False):
    """The tombstone is durable; nobody resolves this step any more."""

    bytes_freed: int
    bytes_held: int = 0
    """More, which go when no later checkpoint refers to them."""


Message = (
    ClientHello | ServerHello | ClientProof | ServerProof | Failed | CancelRequest
    | LendMemory | TakeBackMemory | MemoryReturned
    | BeginColumn | ColumnAccepted | Fragment | CreditGranted | SealColumn | ColumnSealed | AbandonColumn | AskPace
    | ReadRanges | RangeData | RangeDamaged | RangesDone | ReadManifest | ManifestData
    | ReadDocument | DocumentData | VerifyColumn | ColumnVerified
    | JoinLaunch | LaunchJoined | OpenPayload | PayloadPlanned | HomesRefused | RequestSpares | SparesNamed
    | Certify | Certified | ColumnsLost | CompareBoxes | BoxesCompared
    | AttemptCommitted | AttemptAborted | TrainerLeft | PayloadGivenUp | CommitMembers
    | Resolve | Resolved | ReleasePin | LoadBegan | ConfirmLoad | LoadConfirmed
    | ShareReads | NextReads | ReadsShared | LeaveReads | ReportDamage | DamageJudged | Ask | Answer | DeleteStep | StepDeleted
    | RegisterTarget | TargetRegistered | RenewLease | LeaseRenewed | Reserve | Reserved | ReleaseReservation
    | Attest | Attested | PutDocument | DocumentStored | DropGeneration | DropColumn | Dropped | ListColumns | ColumnsListed
    | OpenStore | TellStored | LeaseDrain | DrainLeased | BeginParts | TakePart | PartTaken
    | RenewDrain | EndDrain | ForgetStore | DrainNoted | TellTrouble
    | ReplaceTarget | TargetReplaced
)  # fmt: skip

MESSAGE_TYPES: Final[dict[int, type[Message]]] = {
    1: ClientHello, 2: ServerHello, 3: ClientProof, 4: ServerProof, 5: Failed, 6: CancelRequest,
    7: LendMemory, 8: TakeBackMemory, 9: MemoryReturned,
    16: BeginColumn, 17: ColumnAccepted, 18: Fragment, 19: CreditGranted, 20: SealColumn, 21: ColumnSealed,
    22: AbandonColumn, 23: AskPace,
    32: ReadRanges, 33: RangeData, 34: RangeDamaged, 35: RangesDone, 36: ReadManifest, 37: ManifestData,
    38: ReadDocument, 39: DocumentData, 40: VerifyColumn, 41: ColumnVerified,
    48: JoinLaunch, 49: LaunchJoined, 50: OpenPayload, 51: PayloadPlanned, 52: RequestSpares, 53: SparesNamed,
    54: Certify, 55: Certified, 56: ColumnsLost, 57: CompareBoxes, 58: BoxesCompared,
    59: AttemptCommitted, 60: AttemptAborted, 61: TrainerLeft, 62: PayloadGivenUp, 63: CommitMembers,
    64: Resolve, 65: Resolved, 66: ReleasePin, 67: ReportDamage, 68: DamageJudged, 69: Ask, 70: Answer,
    71: DeleteStep, 72: StepDeleted, 73: LoadBegan, 74: ConfirmLoad, 75: LoadConfirmed,
    76: ShareReads, 77: NextReads, 78: ReadsShared, 79: LeaveReads,
    80: RegisterTarget, 81: TargetRegistered, 82: RenewLease, 83: LeaseRenewed, 84: Reserve, 85: Reserved,
    86: ReleaseReservation, 87: Attest, 88: Attested, 89: PutDocument, 90: DocumentStored,
    91: DropGeneration, 92: DropColumn, 93: Dropped, 94: ListColumns, 95: ColumnsListed,
    96: OpenStore, 97: TellStored, 98: LeaseDrain, 99: DrainLeased, 100: BeginParts, 101: TakePart,
    102: PartTaken, 103: RenewDrain, 104: EndDrain, 105: ForgetStore, 106: DrainNoted, 107: HomesRefused,
    108: TellTrouble, 109: ReplaceTarget, 110: TargetReplaced,
}  # fmt: skip
"""Frame type number -> message. A number is never given to another message."""
