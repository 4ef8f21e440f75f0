"""Who says what: the numbers of all messages. Each conversation's own are in a file beside this.

A message is the `meta` part of a frame (`ckpt.format.frame`): one frozen Struct, encoded as a
MessagePack map by field name. A newer peer may add fields with defaults: unknown fields are
ignored, missing ones take their default, so neighbours of one version understand each other (P11).
Numbers in `MESSAGE_TYPES` are never used again. Nothing here can carry code. Import a message from
the file that defines it.

    hello.py       client  -> server   ClientHello, ClientProof, CancelRequest, Ping
                   server  -> client   ServerHello, ServerProof, Failed, Pong,
                                       CoordinatorsNamed

    the data plane:
    lending.py     stager  -> target   LendMemory, TakeBackMemory (of one host)
                   target  -> stager   MemoryReturned
                   reader  -> target   LendColumn, ReturnColumn (of one host)
                   target  -> reader   ColumnLent
    writing.py     stager  -> target   BeginColumn, Fragment, SealColumn, AskPace, AbandonColumn
                   target  -> stager   ColumnAccepted, CreditGranted, ColumnSealed
    reading.py     reader  -> target   ReadRanges, ReadManifest, ReadDocument, VerifyColumn
                   target  -> reader   RangeData, RangeDamaged, RangesDone, ManifestData,
                                       DocumentData, ColumnVerified
    scrubbing.py   reader  -> target   AskScrub
                   target  -> reader   ScrubState

    the control plane:
    launches.py    stager,
                   reader  -> coord.   JoinLaunch; a stager also TrainerLeft
                   coord.  -> both     LaunchJoined
    preempting.py  trainer -> coord.   GuardStanding
                   coord.  -> trainer  HoldSteps, StopAt, NoCommonStep, GuardsAwaited
    saving.py      stager  -> coord.   OpenPayload, RequestSpares, Certify, BoxesCompared,
                                       PayloadGivenUp, CommitMembers, ClaimSpace
                   coord.  -> stager   PayloadPlanned, HomesRefused, SparesNamed, Certified,
                                       ColumnsLost, CompareBoxes, AttemptCommitted, AttemptAborted,
                                       SpaceStands
    loading.py     reader  -> coord.   Resolve, AskMoves, LoadBegan, ConfirmLoad, ReleasePin,
                                       ReportDamage
                   coord.  -> reader   Resolved, MovesFound, LoadConfirmed, DamageJudged
    sharing.py     reader  -> coord.   ShareReads, NextReads, LeaveReads
                   coord.  -> reader   ReadsShared
    asking.py      reader,
                   admin   -> coord.   Ask, LabelStep, DeleteStep; an admin also
                                       ReplaceTarget, StepDown
                   coord.  -> both     Answer, StepLabeled, StepDeleted, TargetReplaced,
                                       SteppedDown
    keeping.py     admin   -> coord.   KeepSteps
                   coord.  -> admin    StepsKept
    targets.py     target  -> coord.   RegisterTarget, RenewLease (the target dials)
                   coord.  -> target   TargetRegistered, LeaseRenewed; commands: Reserve,
                                       ReleaseReservation, Attest, PutDocument, DropGeneration,
                                       DropColumn, KeepProtocol, ListColumns, ListHoldings, and
                                       VerifyColumn of reading.py
                   target  -> coord.   Reserved, Attested, DocumentStored, Dropped, ProtocolKept,
                                       ColumnsListed, HoldingsListed, and ColumnVerified of
                                       reading.py
    drains.py      drain   -> coord.   OpenStore, TellStored, TellTrouble, ForgetStore, LeaseDrain,
                                       BeginParts, TakePart, RenewDrain, EndDrain
                   coord.  -> drain    DrainLeased, PartTaken, DrainNoted
    repairs.py     worker  -> coord.   LeaseRepair, RenewRepair, EndRepair
                   coord.  -> worker   RepairLeased, RepairNoted
                   admin   -> coord.   SetRepair
                   coord.  -> admin    RepairSet
    upgrading.py   admin   -> coord.   FinishUpgrade
                   coord.  -> admin    UpgradeNoted

Any request may be answered by `Failed` instead.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from ckpt.format.messages.asking import (
    Answer,
    Ask,
    ChangeTarget,
    DeleteStep,
    LabelStep,
    ReplaceTarget,
    RollBack,
    RolledBack,
    StepDeleted,
    StepDown,
    StepLabeled,
    SteppedDown,
    TargetChanged,
    TargetReplaced,
)
from ckpt.format.messages.balancing import BalanceTargets, TargetsBalanced
from ckpt.format.messages.drains import (
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
from ckpt.format.messages.hello import (
    CancelRequest,
    ClientHello,
    ClientProof,
    CoordinatorsNamed,
    Failed,
    Ping,
    Pong,
    ServerHello,
    ServerProof,
)
from ckpt.format.messages.keeping import KeepSteps, StepsKept
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.lending import (
    ColumnLent,
    LendColumn,
    LendMemory,
    MemoryReturned,
    ReturnColumn,
    TakeBackMemory,
)
from ckpt.format.messages.loading import (
    AskMoves,
    ConfirmLoad,
    DamageJudged,
    LoadBegan,
    LoadConfirmed,
    MovesFound,
    ReleasePin,
    ReportDamage,
    Resolve,
    Resolved,
)
from ckpt.format.messages.preempting import (
    GuardsAwaited,
    GuardStanding,
    HoldSteps,
    NoCommonStep,
    StopAt,
)
from ckpt.format.messages.reading import (
    ColumnVerified,
    DocumentData,
    ManifestData,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadDocument,
    ReadManifest,
    ReadRanges,
    VerifyColumn,
)
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    RenewRepair,
    RepairLeased,
    RepairNoted,
    RepairSet,
    SetRepair,
)
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    BoxesCompared,
    Certified,
    Certify,
    ClaimSpace,
    ColumnsLost,
    CommitMembers,
    CompareBoxes,
    HomesRefused,
    OpenPayload,
    PayloadGivenUp,
    PayloadPlanned,
    RequestSpares,
    SpaceStands,
    SparesNamed,
)
from ckpt.format.messages.scrubbing import AskScrub, ScrubState
from ckpt.format.messages.sharing import LeaveReads, NextReads, ReadsShared, ShareReads
from ckpt.format.messages.targets import (
    AskMap,
    Attest,
    Attested,
    ColumnsListed,
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    HoldingsListed,
    KeepMap,
    KeepProtocol,
    LeaseRenewed,
    ListColumns,
    ListHoldings,
    MapKept,
    MapTold,
    ProtocolKept,
    PutDocument,
    RegisterTarget,
    ReleaseReservation,
    RenewLease,
    Reserve,
    Reserved,
    TargetRegistered,
)
from ckpt.format.messages.upgrading import FinishUpgrade, UpgradeNoted
from ckpt.format.messages.writing import (
    AbandonColumn,
    AskPace,
    BeginColumn,
    ColumnAccepted,
    ColumnSealed,
    CreditGranted,
    Fragment,
    SealColumn,
)

Message = (
    ClientHello | ServerHello | ClientProof | ServerProof | Failed | CancelRequest
    | LendMemory | TakeBackMemory | MemoryReturned | LendColumn | ColumnLent | ReturnColumn
    | BeginColumn | ColumnAccepted | Fragment | CreditGranted | SealColumn | ColumnSealed | AbandonColumn | AskPace
    | ReadRanges | RangeData | RangeDamaged | RangesDone | ReadManifest | ManifestData
    | ReadDocument | DocumentData | VerifyColumn | ColumnVerified
    | JoinLaunch | LaunchJoined | OpenPayload | PayloadPlanned | HomesRefused | RequestSpares | SparesNamed
    | Certify | Certified | ColumnsLost | CompareBoxes | BoxesCompared
    | AttemptCommitted | AttemptAborted | TrainerLeft | PayloadGivenUp | CommitMembers
    | Resolve | Resolved | AskMoves | MovesFound | ReleasePin | LoadBegan | ConfirmLoad | LoadConfirmed
    | ShareReads | NextReads | ReadsShared | LeaveReads | ReportDamage | DamageJudged | Ask | Answer | DeleteStep | StepDeleted
    | RegisterTarget | TargetRegistered | RenewLease | LeaseRenewed | Reserve | Reserved | ReleaseReservation
    | Attest | Attested | KeepMap | MapKept | AskMap | MapTold | PutDocument | DocumentStored | DropGeneration | DropColumn | Dropped | ListColumns | ColumnsListed
    | ListHoldings | HoldingsListed
    | OpenStore | TellStored | LeaseDrain | DrainLeased | BeginParts | TakePart | PartTaken
    | RenewDrain | EndDrain | ForgetStore | DrainNoted | TellTrouble
    | ReplaceTarget | TargetReplaced | LabelStep | StepLabeled | KeepSteps | StepsKept | RollBack | RolledBack
    | ChangeTarget | TargetChanged | StepDown | SteppedDown | Ping | Pong | AskScrub | ScrubState
    | LeaseRepair | RepairLeased | RenewRepair | EndRepair | RepairNoted | SetRepair | RepairSet
    | GuardStanding | HoldSteps | StopAt | NoCommonStep | GuardsAwaited
    | FinishUpgrade | UpgradeNoted | KeepProtocol | ProtocolKept | BalanceTargets | TargetsBalanced
    | SpaceStands | ClaimSpace | CoordinatorsNamed
)  # fmt: skip

MESSAGE_TYPES: Final[dict[int, type[Message]]] = {
    1: ClientHello, 2: ServerHello, 3: ClientProof, 4: ServerProof, 5: Failed, 6: CancelRequest,
    7: LendMemory, 8: TakeBackMemory, 9: MemoryReturned, 10: Ping, 11: Pong,
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
    108: TellTrouble, 109: ReplaceTarget, 110: TargetReplaced, 111: LabelStep,
    112: StepLabeled, 113: KeepSteps, 114: StepsKept,
    115: GuardStanding, 116: HoldSteps, 117: StopAt, 118: NoCommonStep, 119: GuardsAwaited,
    120: RollBack, 121: RolledBack, 122: StepDown, 123: SteppedDown, 124: AskMoves, 125: MovesFound,
    126: LeaseRepair, 127: RepairLeased, 128: RenewRepair, 129: EndRepair, 130: RepairNoted,
    131: SetRepair, 132: RepairSet,
    136: AskScrub, 137: ScrubState, 138: ChangeTarget, 139: TargetChanged,
    140: FinishUpgrade, 141: UpgradeNoted, 142: KeepProtocol, 143: ProtocolKept,
    144: BalanceTargets, 145: TargetsBalanced,
    146: ListHoldings, 147: HoldingsListed,
    148: KeepMap, 149: MapKept, 150: AskMap, 151: MapTold,
    152: SpaceStands, 153: ClaimSpace, 154: CoordinatorsNamed,
    155: LendColumn, 156: ColumnLent, 157: ReturnColumn,
}  # fmt: skip
"""Frame type number -> message. A number is never given to another message."""


def asked_again(message: Message) -> Message:
    """The message as it is sent again once its answer was lost: what was to be ended may be gone by
    now.
    """
    match message:
        case DeleteStep() | ForgetStore() | ReplaceTarget():
            return replace(message, repeated=True)
        case _:
            return message
