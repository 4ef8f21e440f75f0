"""How all ranks of a launch agree on the step that they save and end at."""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step


class GuardStanding(Struct, frozen=True, gc=False):
    """All that a rank's guard knows: said when it is made, at each change, in each new session."""

    run: RunName
    launch: LaunchNumber
    rank: Rank
    signal: str = ""
    """What this rank's process got that asks it to end, `SIGTERM` say; empty while nothing came."""
    reached: Step | None = None
    """The highest step that it let its training pass."""
    holds: bool = False
    """It lets none pass above that before it hears StopAt."""
    stop: Step | None = None
    """As StopAt said."""
    saves: Step | None = None
    """The step that its training saves, as the last one."""
    gave_up: str = ""
    """Why it stops nowhere; it holds no longer."""
    closed: bool = False
    """The guard is gone: its training has ended."""


class HoldSteps(Struct, frozen=True, gc=False):
    """A rank's process is to end: let no step pass, and say how far you are."""

    run: RunName
    rank: Rank
    """Whose."""
    signal: str


class StopAt(Struct, frozen=True, gc=False):
    """The first step that is not below this one is everybody's last. No rank has passed it."""

    run: RunName
    step: Step


class NoCommonStep(Struct, frozen=True, gc=False):
    """The ranks will not stop at one step."""

    run: RunName
    why: str


class GuardsAwaited(Struct, frozen=True, gc=False):
    """To a rank that got a signal: these have no guard, so nothing can be agreed."""

    run: RunName
    ranks: tuple[Rank, ...]
    """The first few."""
    count: int
