"""Has what stores the catalog room for more? While it has none, nothing that begins is taken in.

What is under way waits: its tickets are stored in their order, once there is room. What would begin
with a ticket is refused as `no_space`, ahead of all that it would hold: an attempt, a launch
without a key, a change that somebody asks for. What only reads goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.errors import NoSpace
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget, DeleteStep, LabelStep, ReplaceTarget, RollBack
from ckpt.format.messages.keeping import KeepSteps
from ckpt.format.messages.repairs import SetRepair
from ckpt.format.messages.upgrading import FinishUpgrade


@dataclass(frozen=True, slots=True)
class RoomSeen:
    """Event: the catalog's tickets wait for room; or no more, with an empty `full`."""

    now_us: int
    full: str = ""
    """What says that there is none, and what it is."""
    hint: str = ""


def no_room(cluster: str, seen: RoomSeen) -> NoSpace | None:
    """What is said to who comes; None where there is room."""
    if not seen.full:
        return None
    text = f"the catalog of cluster {cluster} takes nothing more: {seen.full}"
    return NoSpace(text, hint=seen.hint)


def changes_catalog(message: Message) -> bool:
    """Whether somebody asks for a change that is to be durable ahead of its answer."""
    match message:
        case RollBack() | KeepSteps() | ChangeTarget() | FinishUpgrade():
            return not message.dry_run
        case _:
            return isinstance(message, DeleteStep | LabelStep | ReplaceTarget | SetRepair)
