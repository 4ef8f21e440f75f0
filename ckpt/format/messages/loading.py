"""How a reader learns which generation to read and where, and says what it met there.

What is resolved is pinned until it is released. The ranks of one launch load one generation.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.ids import (
    BootId,
    CheckpointId,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.saving import CommitInfo

TURN_MAX: Final = (1 << 31) - 1
"""Nobody loads that often in one launch."""


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
    """Which of the launch's resolutions is asked for; the same turn always gets the same answer. By
    number: the count of the process's confirmed loads of this step, including this one.
    """
    stored: bool = False
    """The reader can read object stores: what is not to be had here, whole there, may be named."""
    away: bool = False
    """It asked its targets in vain: a store that has the generation must be named now."""
    only: Generation | None = None
    """It continues to read what was confirmed: no other generation will do."""
    for_repair: bool = False
    """With `only`, of who makes its columns again: also one that is deleted, and stays for later
    ones that refer to it, and whatever else of it is lost."""


class TargetAddress(Struct, frozen=True, gc=False):
    """Where to read."""

    target: TargetId
    boot: BootId
    address: str
    unix: str = ""


class Whereabouts(Struct, frozen=True, gc=False):
    """What of a generation lies elsewhere than its index and its record say."""

    generation: Generation
    pages: tuple[int, ...] = ()
    """Of ranks (ckpt.format.documents.moves) of which columns do, ascending; `AskMoves` tells."""
    indexes: tuple[TargetId, ...] = ()
    """Who has a copy of its index now, when the record's targets do not all have theirs."""


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
    """Commit records of the generations that hold bytes of it; `targets` has their holders."""
    moved: tuple[Whereabouts, ...] = ()
    """Of it and of those, which have any."""


class AskMoves(Struct, frozen=True, gc=False):
    """Where are the columns of these ranks that have moved? What is asked for is pinned."""

    checkpoint: CheckpointId
    page: int


class MovesFound(Struct, frozen=True, gc=False):
    """Bulk: the encoded page (ckpt.format.documents.moves), as of now."""


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
    """All ranks of the launch load it, for good; or, with a reason, they do not: ask again."""

    superseded: str = ""


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


def check_turn(turn: int) -> None:
    """Raises Refused for what is no count of loads."""
    if not 0 <= turn <= TURN_MAX:
        raise Refused(f"turn {turn} of a launch's loads: 0 to {TURN_MAX} are allowed")
