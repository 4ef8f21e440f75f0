"""Where all ranks of a launch stop, when the process of one of them is to end.

Every rank's training asks its guard at each step whether that is the last one. The answer must be
the same on all ranks, which are not at the same step, so nobody hears where to stop before
everybody has promised to let no step pass:

    QUIET    --a rank got a signal, all ranks have a guard: HoldSteps to all-->    HOLDING
    HOLDING  --all hold: StopAt, one above all that any of them let pass, to all-->  AGREED
    any      --a rank gave up, or ranks save different steps: NoCommonStep to all--> FAILED

A rank's guard answers from a thread of its own, whatever its training does, so that ranks which
wait for each other in the middle of a step still come to an end of this. Nothing here is durable:
guards say all they know in each new session, and a coordinator that starts again goes on from that.

Invariants: StopAt is said only when all ranks hold, or to go on with one that was said before;
where a launch stops never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Final

from ckpt.base.ids import Rank, Step
from ckpt.format.messages.preempting import (
    GuardsAwaited,
    GuardStanding,
    HoldSteps,
    NoCommonStep,
    StopAt,
)
from ckpt.protocol.events import Session

AWAITED_NAMED_MAX: Final = 8
LOOKED_AT_MAX: Final = 64
"""Ranks among which those are looked for that never had a guard."""

ToGuard = HoldSteps | StopAt | NoCommonStep | GuardsAwaited
Outgoing = tuple[Session, ToGuard]


class Agreement(Enum):
    """How far the ranks are; the drawing is above."""

    QUIET, HOLDING, AGREED, FAILED = "quiet", "holding", "agreed", "failed"


@dataclass(slots=True)
class _Guard:
    """One rank's, as it was heard last."""

    session: Session
    standing: GuardStanding


class LaunchGuards:
    """The guards of one launch. What I return is to be sent, in order.

    One that speaks costs the same however many there are, but for two times when I speak to all.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.state = Agreement.QUIET
        self.stop: Step | None = None
        self._why = ""
        self._guards: dict[Rank, _Guard] = {}
        #: Ranks that have ever had a guard, all below `_first` among them.
        self._ever: set[Rank] = set()
        self._first = Rank(0)
        #: Those of them whose guard has gone, the longest gone first.
        self._gone: dict[Rank, None] = {}
        #: Ranks whose process got a signal, and which; also those whose guard has gone since.
        self._signalled: dict[Rank, str] = {}
        self._holding: set[Rank] = set()
        #: The first rank that was heard to save, and its step.
        self._saves: tuple[Rank, Step] | None = None

    def heard(self, session: Session, standing: GuardStanding) -> list[Outgoing]:
        """Handle a guard's report of its state."""
        self._note(session, standing)
        if standing.closed:
            return []
        before = self.state
        self._advance(standing)
        if self.state is not before:
            return [due for rank in sorted(self._guards) for due in self._due(rank)]
        return self._due(standing.rank)

    def gone(self, session: Session, rank: Rank) -> None:
        """Note that nothing more is heard in that session; the guard may come back in another
        one.
        """
        guard = self._guards.get(rank)
        if guard is not None and guard.session == session:
            del self._guards[rank]
            self._holding.discard(rank)
            self._gone[rank] = None

    def absorb(self, other: LaunchGuards) -> None:
        """The same launch, under another number; what follows is sent when the next one speaks."""
        for guard in other._guards.values():
            self._note(guard.session, guard.standing)
        if self.state is Agreement.QUIET:
            self.state, self.stop, self._why = other.state, other.stop, other._why

    # ----------------------------------------------------------------------- inside

    def _note(self, session: Session, standing: GuardStanding) -> None:
        rank = standing.rank
        self._ever.add(rank)
        self._gone.pop(rank, None)
        self._guards[rank] = _Guard(session, standing)
        if standing.signal:
            self._signalled[rank] = standing.signal
        if standing.holds:
            self._holding.add(rank)
        else:
            self._holding.discard(rank)
        if standing.closed:
            self.gone(session, rank)

    def _advance(self, standing: GuardStanding) -> None:
        why = standing.gave_up or self._contradicts(standing)
        if why and self.state is not Agreement.FAILED:
            self.state, self._why = Agreement.FAILED, why
        if self.state in (Agreement.AGREED, Agreement.FAILED):
            return
        if standing.stop is not None:
            # A coordinator before this one said so when all held.
            self.state, self.stop = Agreement.AGREED, standing.stop
            return
        if self.state is Agreement.QUIET and self._is_to_hold():
            self.state = Agreement.HOLDING
        if self.state is Agreement.HOLDING and len(self._holding) == self._world_size:
            reached = [guard.standing.reached for guard in self._guards.values()]
            highest = max((step for step in reached if step is not None), default=-1)
            self.state, self.stop = Agreement.AGREED, Step(highest + 1)

    def _is_to_hold(self) -> bool:
        """Some rank got a signal, or holds because one did, and all can be asked."""
        return bool(self._signalled or self._holding) and len(self._guards) == self._world_size

    def _contradicts(self, standing: GuardStanding) -> str:
        """Why ranks do not end with one step; empty while they do."""
        rank, stop, saves = standing.rank, standing.stop, standing.saves
        if None not in (stop, self.stop) and stop != self.stop:
            return f"rank {rank} stops at step {stop}, others at step {self.stop}"
        if saves is None:
            return ""
        if self._saves is None:
            self._saves = (rank, saves)
        first, step = self._saves
        if step == saves:
            return ""
        return (
            f"rank {first} saves step {step} and rank {rank} step {saves}: "
            "all ranks must ask about the same steps"
        )

    def _due(self, rank: Rank) -> list[Outgoing]:
        """What this guard does not know yet."""
        guard = self._guards.get(rank)
        if guard is None:
            return []
        message = self._message(guard.standing)
        return [] if message is None else [(guard.session, message)]

    def _message(self, standing: GuardStanding) -> ToGuard | None:
        run = standing.run
        match self.state:
            case Agreement.FAILED if not standing.gave_up:
                return NoCommonStep(run, self._why)
            case Agreement.AGREED if standing.stop is None:
                assert self.stop is not None
                return StopAt(run, self.stop)
            case Agreement.HOLDING if not standing.holds:
                rank, signal = next(iter(self._signalled.items()), (standing.rank, ""))
                return HoldSteps(run, rank, signal)
            case Agreement.QUIET if standing.signal:
                return self._awaited(standing)
        return None

    def _awaited(self, standing: GuardStanding) -> GuardsAwaited:
        """The first few that are not far apart: all ranks may ask at once, and a launch says itself
        how many it has.
        """
        while self._first in self._ever:
            self._first = Rank(self._first + 1)
        near = range(self._first, min(self._world_size, self._first + LOOKED_AT_MAX))
        never = (rank for rank in map(Rank, near) if rank not in self._ever)
        named = tuple(islice(chain(never, self._gone), AWAITED_NAMED_MAX))
        return GuardsAwaited(standing.run, named, self._world_size - len(self._guards))
