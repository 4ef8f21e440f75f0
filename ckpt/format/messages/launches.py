"""How the ranks of one start of a run come to the coordinator, and how they leave."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step


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
    """Of this rank's next resolution of "newest"; see ckpt.protocol.coordinator.reading.rounds."""
    references: bool = False
    """This coordinator understands OpenPayload's homes, and tables that refer to them."""
    by_number: bool = False
    """It holds a launch together also where its ranks ask for a step by its number."""
    guards: bool = False
    """This coordinator understands GuardStanding."""
    claims: bool = False
    """It understands ClaimSpace."""
    counts: bool = False
    """It understands OpenPayload's `nth`, and knows that this stager is its rank's first in this
    launch, of which the rank has missed no attempt: so the stager can count."""


class Departure(Enum):
    """How a trainer left: its process has ended; it closed its store and lives, its end will be
    reported; or the same, but nobody will report it, because the idle stager goes."""

    ENDED, CLOSED, UNWATCHED = "ended", "closed", "unwatched"


class TrainerLeft(Struct, frozen=True, gc=False):
    """A stager lost its trainer; sent again when `how` changes, and on every new session."""

    run: RunName
    launch: LaunchNumber
    rank: Rank
    process: str
    how: Departure = Departure.ENDED
