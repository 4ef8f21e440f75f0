"""What happens to a rank's saves, and what is to be done: StagerMachine's vocabulary.

`save` is the trainer process's own count of its saves, from 1. The shared events SessionOpened,
SessionClosed, Received and Ticked and the shared actions Send and Report belong to it too.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ckpt.base.ids import (
    ColumnNumber,
    Home,
    LaunchNumber,
    PayloadId,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.saving import (
    BoxQuery,
    CommitInfo,
    PayloadPlanned,
    Place,
    Repeats,
    ReplicaPolicy,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.events import (
    Buffer,
    Received,
    Report,
    Send,
    SessionClosed,
    SessionOpened,
    Ticked,
)


class FullPolicy(Enum):
    """What a save does when no half is free."""

    WAIT = "wait"
    ERROR = "error"
    SKIP = "skip"


class Unchanged(Enum):
    """What to do about a save that repeats the one before."""

    WARN = "warn"
    IGNORE = "ignore"


class SaveCommitted(Struct, frozen=True, gc=False):
    """The outcome that everybody wants."""

    info: CommitInfo


class SaveFailed(Struct, frozen=True, gc=False):
    """This save will never commit; fields as in ckpt.base.errors."""

    code: str
    message: str
    hint: str = ""
    retry_after_us: int | None = None


Outcome = SaveCommitted | SaveFailed


# --------------------------------------------------------------------------- events: trainer


class TrainerAttached(Struct, frozen=True, gc=False):
    """The trainer's control socket stands. What it has not heard yet is sent again."""

    now_us: int


class TrainerDetached(Struct, frozen=True, gc=False):
    """It closed its store; its process lives, as far as is known."""

    now_us: int


class TrainerEnded(Struct, frozen=True, gc=False):
    """Its process has ended, exited or killed, with its store open or after TrainerDetached."""

    now_us: int


class HalfAsked(Struct, frozen=True, gc=False):
    """The trainer wants to stage a save. Numbers ascend."""

    now_us: int
    save: int
    run: RunName
    step: Step
    when_full: FullPolicy = FullPolicy.WAIT
    member: str = ""
    """The file's name below the run, when the save is a file (ckpt.format.members)."""
    taken: int | None = None
    """The free half that the trainer writes into already: it gets this one, unless it is held."""


class StagingDropped(Struct, frozen=True, gc=False):
    """The trainer gave this save up before handing it over."""

    now_us: int
    save: int


class StepRefused(Struct, frozen=True, gc=False):
    """The trainer will not save this step, whether it had asked for a half or not: the ranks that
    do must hear of it. Numbers ascend with those of HalfAsked.
    """

    now_us: int
    save: int
    run: RunName
    step: Step
    why: str


class PayloadHandedOver(Struct, frozen=True, gc=False):
    """The payload lies whole in its half; from here on the trainer is not needed."""

    now_us: int
    save: int
    payload_bytes: int
    document_offset: int
    document_bytes: int
    replicas: ReplicaPolicy
    stall_us: int
    fault_in_us: int = 0
    comparing: bool = False
    """It is opened only after ReferencesFound: its bytes are compared with those of a base."""
    metrics: dict[str, float] = {}


class ReferencesFound(Struct, frozen=True, gc=False):
    """How much of the payload need not be written; without homes, nothing."""

    now_us: int
    save: int
    homes: tuple[Home, ...] = ()
    payload_bytes: int = 0
    """What is left of it."""
    table: Buffer = b""
    """Instead of TableReady's, while the homes are referred to."""


class TableReady(Struct, frozen=True, gc=False):
    """The rank's encoded table, fingerprints filled in. Kept until the save has ended."""

    now_us: int
    save: int
    table: Buffer
    repeats: Repeats | None = None


class BoxesFingerprinted(Struct, frozen=True, gc=False):
    """The answer to ComputeBoxes."""

    now_us: int
    payload: PayloadId
    fingerprints: tuple[bytes, ...]


class OutcomeHeard(Struct, frozen=True, gc=False):
    """The trainer acknowledged TellTrainer."""

    now_us: int
    save: int


# ------------------------------------------------------------------ events: coordinator, sender


class DialFailed(Struct, frozen=True, gc=False):
    """The answer to DialCoordinator when no session could be made."""

    now_us: int
    gone: bool = False
    """The cluster's directory is gone, or is another cluster's: nobody will ever answer."""


class PayloadSealed(Struct, frozen=True, gc=False):
    """Enough columns are sealed at this moment. Comes again when the set of proofs changes."""

    now_us: int
    payload: PayloadId
    proofs: tuple[ColumnProof, ...]
    manifest_digest: bytes
    slowest_target: TargetId = TargetId("")
    """Whose column was sealed last."""
    slowest_us: int = 0
    slow: tuple[TargetId, ...] = ()
    """Targets that were slow beside their peers."""
    manifest: bytes = b""
    """The document, for readers of the same memory."""


class SparesWanted(Struct, frozen=True, gc=False):
    """A column needs another place. Answered once by AddSpares for the same column."""

    now_us: int
    payload: PayloadId
    column: ColumnNumber
    failed: tuple[TargetId, ...]
    held: tuple[tuple[ColumnNumber, TargetId], ...] = ()
    stays: bool = True


class PayloadFailed(Struct, frozen=True, gc=False):
    """This payload can never be sealed."""

    now_us: int
    payload: PayloadId
    code: str
    message: str
    hint: str = ""


class PayloadStopped(Struct, frozen=True, gc=False):
    """No thread reads the half any more: the answer to StopPayload."""

    now_us: int
    payload: PayloadId


SaveEvent = StagingDropped | PayloadHandedOver | ReferencesFound | TableReady | OutcomeHeard


class EndAsked(Struct, frozen=True, gc=False):
    """Somebody ends all that runs here (SIGTERM, SIGINT): stay for the trainer, and a bounded time
    for its saves.
    """

    now_us: int


TrainerEvent = (
    TrainerAttached
    | TrainerDetached
    | TrainerEnded
    | EndAsked
    | HalfAsked
    | StepRefused
    | SaveEvent
)
SenderEvent = PayloadSealed | SparesWanted | PayloadFailed | PayloadStopped
CoordinatorEvent = DialFailed | SessionOpened | SessionClosed | Received | Ticked
StagerEvent = TrainerEvent | BoxesFingerprinted | SenderEvent | CoordinatorEvent


# --------------------------------------------------------------------------- actions


class DialCoordinator(Struct, frozen=True, gc=False):
    """Connect; answer with SessionOpened or DialFailed."""


class GrantHalf(Struct, frozen=True, gc=False):
    """The trainer may stage this save into this half of the arena."""

    save: int
    half: int


class RefuseSave(Struct, frozen=True, gc=False):
    """Instead of GrantHalf. Code `skipped` is the policy's word, not an error."""

    save: int
    code: str
    message: str
    hint: str = ""


class StartPayload(Struct, frozen=True, gc=False):
    """Encode and send this half as planned."""

    save: int
    half: int
    payload_bytes: int
    launch: LaunchNumber
    plan: PayloadPlanned
    refers: bool = False
    """To homes: what was found to be there goes, and the rest moves together, before a byte is
    sent."""


class AddSpares(Struct, frozen=True, gc=False):
    """More places for the sender; `column` None when nobody asked."""

    payload: PayloadId
    column: ColumnNumber | None
    spares: tuple[Place, ...]


class ReopenColumns(Struct, frozen=True, gc=False):
    """The second count lost them: the sender streams them again."""

    payload: PayloadId
    columns: tuple[ColumnNumber, ...]
    places: tuple[Place, ...]


class StopPayload(Struct, frozen=True, gc=False):
    """End all streams of the payload; answer with PayloadStopped when nothing reads the half."""

    payload: PayloadId


class ReleaseHalf(Struct, frozen=True, gc=False):
    """The save has ended and nothing reads the half: it may be granted again."""

    half: int


class ComputeBoxes(Struct, frozen=True, gc=False):
    """Fingerprint these boxes of the half's tensors; answer with BoxesFingerprinted."""

    payload: PayloadId
    half: int
    boxes: tuple[BoxQuery, ...]


class TellTrainer(Struct, frozen=True, gc=False):
    """Repeated after TrainerAttached until OutcomeHeard."""

    save: int
    outcome: Outcome


class TellCertified(Struct, frozen=True, gc=False):
    """A file is on enough targets and waits for its step's commit: its bytes are not read again."""

    save: int


class Exit(Struct, frozen=True, gc=False):
    """Nobody needs this process, or nothing can help what it holds."""

    reason: str
    lost: tuple[tuple[RunName, Step], ...] = ()
    """Saves that were handed over, and of whose end nothing was heard."""


StagerAction = (
    DialCoordinator | GrantHalf | RefuseSave | StartPayload | AddSpares | ReopenColumns | StopPayload
    | ReleaseHalf | ComputeBoxes | TellTrainer | TellCertified | Exit | Send | Report
)  # fmt: skip
