"""Which roles may say which message to a coordinator: the table that it goes by.

All roles prove the same secret, so this keeps nobody out who has it: it keeps a peer that took one
door for another, or one that is mistaken, from changing what is not its business. Whoever says what
its role may not is refused, and nothing has changed.

    stager   saves, in the launch that it has joined
    reader   a trainer or a tool that loads, names and deletes steps, and says what stays
    admin    the same, and what an operator decides
    drain    a worker: of object stores, or of repair
    target   presents itself, renews its lease, and answers what it is asked
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ckpt.base.errors import Refused
from ckpt.format.messages import Message
from ckpt.format.messages.asking import (
    Ask,
    ChangeTarget,
    DeleteStep,
    LabelStep,
    ReplaceTarget,
    RollBack,
    StepDown,
)
from ckpt.format.messages.balancing import BalanceTargets
from ckpt.format.messages.drains import (
    BeginParts,
    EndDrain,
    ForgetStore,
    LeaseDrain,
    OpenStore,
    RenewDrain,
    TakePart,
    TellStored,
    TellTrouble,
)
from ckpt.format.messages.hello import Role
from ckpt.format.messages.keeping import KeepSteps
from ckpt.format.messages.launches import JoinLaunch, TrainerLeft
from ckpt.format.messages.loading import (
    AskMoves,
    ConfirmLoad,
    LoadBegan,
    ReleasePin,
    ReportDamage,
    Resolve,
)
from ckpt.format.messages.preempting import GuardStanding
from ckpt.format.messages.repairs import EndRepair, LeaseRepair, RenewRepair, SetRepair
from ckpt.format.messages.saving import (
    BoxesCompared,
    Certify,
    ClaimSpace,
    CommitMembers,
    OpenPayload,
    PayloadGivenUp,
    RequestSpares,
)
from ckpt.format.messages.sharing import LeaveReads, NextReads, ShareReads
from ckpt.format.messages.targets import RegisterTarget, RenewLease
from ckpt.format.messages.upgrading import FinishUpgrade

_STAGERS: Final = frozenset({Role.STAGER})
_PEOPLE: Final = frozenset({Role.READER, Role.ADMIN})
_LAUNCHED: Final = _PEOPLE | _STAGERS
_READING: Final = _PEOPLE | {Role.DRAIN}
_OPERATORS: Final = frozenset({Role.ADMIN})
_WORKERS: Final = frozenset({Role.DRAIN})
_TARGETS: Final = frozenset({Role.TARGET})

TO_COORDINATOR: Final[Mapping[type[Message], frozenset[Role]]] = {
    RegisterTarget: _TARGETS, RenewLease: _TARGETS,
    JoinLaunch: _LAUNCHED, GuardStanding: _LAUNCHED,
    TrainerLeft: _STAGERS, OpenPayload: _STAGERS, RequestSpares: _STAGERS, Certify: _STAGERS,
    BoxesCompared: _STAGERS, PayloadGivenUp: _STAGERS, CommitMembers: _LAUNCHED,
    ClaimSpace: _STAGERS,
    Resolve: _READING, AskMoves: _READING, ReleasePin: _READING, ReportDamage: _READING,
    LoadBegan: _PEOPLE, ConfirmLoad: _PEOPLE,
    ShareReads: _PEOPLE, NextReads: _PEOPLE, LeaveReads: _PEOPLE,
    Ask: _READING,
    LabelStep: _PEOPLE, DeleteStep: _PEOPLE, RollBack: _PEOPLE, KeepSteps: _PEOPLE,
    ReplaceTarget: _OPERATORS, ChangeTarget: _OPERATORS, BalanceTargets: _OPERATORS,
    SetRepair: _OPERATORS, FinishUpgrade: _OPERATORS, ForgetStore: _OPERATORS,
    StepDown: _OPERATORS,
    OpenStore: _WORKERS, TellStored: _WORKERS, TellTrouble: _WORKERS, LeaseDrain: _WORKERS,
    BeginParts: _WORKERS, TakePart: _WORKERS, RenewDrain: _WORKERS, EndDrain: _WORKERS,
    LeaseRepair: _WORKERS, RenewRepair: _WORKERS, EndRepair: _WORKERS,
}  # fmt: skip
"""Of all that is said to a coordinator, but answers to its own questions."""


def refusal(role: Role, message: Message) -> Refused | None:
    """Why a coordinator does not hear that from a peer of that role; None when it does, and for
    what a target may say as an answer.
    """
    name, allowed = type(message).__name__, TO_COORDINATOR.get(type(message))
    if allowed is None and role is not Role.TARGET:
        return Refused(f"{name} is nothing that is said to a coordinator")
    if allowed is None or role in allowed:
        return None
    named = " or ".join(sorted(each.value for each in allowed))
    return Refused(f"{name} is not said in the role {role.value}, but as {named}")
