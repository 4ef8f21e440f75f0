"""A rank's guard: whether a step is its training's last one.

    QUIET   --HoldSteps-->  HOLDING  --StopAt(S)-->  STOPPING
    HOLDING --its training has waited too long, NoCommonStep-->  GIVEN_UP
    QUIET   --StopAt(S) of a step that was let pass, NoCommonStep-->  GIVEN_UP

In QUIET every step passes, and the highest is noted. In HOLDING the training waits, which is how
nobody passes the step that the ranks are about to agree on (ckpt.protocol.coordinator.cluster
.guards). In STOPPING the first step that is not below S is saved. In GIVEN_UP every step passes.

Invariants: a step that passed is never saved; below S nothing is saved, from S on nothing passes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.preempting import (
    GuardsAwaited,
    GuardStanding,
    HoldSteps,
    NoCommonStep,
    StopAt,
)
from ckpt.protocol.events import Report, Ticked

WORD_US: Final = 3 * US_PER_S
"""A message that has not reached the other ranks by then is logged."""


class GuardAnswer(Enum):
    """What a training may do about a step."""

    GO_ON, SAVE, WAIT = "go on", "save", "wait"


class ProcessSignalled(Struct, frozen=True, gc=False):
    """This rank's process got a signal that asks it to end."""

    now_us: int
    signal: str


class GuardJoined(Struct, frozen=True, gc=False):
    """A session with the coordinator, where this rank has joined its launch."""

    now_us: int
    launch: LaunchNumber


class GuardHeard(Struct, frozen=True, gc=False):
    """The coordinator has said this."""

    now_us: int
    message: Message


class TellStanding(Struct, frozen=True, gc=False):
    """Say it to the coordinator, while there is a session; a new one begins with GuardJoined."""

    standing: GuardStanding


GuardEvent = ProcessSignalled | GuardJoined | GuardHeard | Ticked
GuardAction = TellStanding | Report


class RankGuard:
    """I am asked about ascending steps. After WAIT I am asked again when an event was handled."""

    def __init__(self, run: RunName, rank: Rank, world_size: int, hold_us: int) -> None:
        """hold_us: the longest that the training waits for the others."""
        self._run = run
        self._rank = rank
        self._world_size = world_size
        self._hold_us = hold_us
        self._launch: LaunchNumber | None = None
        self.signal = ""
        """What asked this process to end."""
        self.heard_of = ""
        """Who got which signal; for people."""
        self.reached: Step | None = None
        self.holds = False
        self.stop: Step | None = None
        self.saves: Step | None = None
        self.gave_up = ""
        self._awaited: GuardsAwaited | None = None
        #: When this process got its signal, while no other rank has heard of it.
        self._word_since_us: int | None = None
        #: Whether the training waits, and since when, as far as an event has said the time.
        self._waits = False
        self._waits_since_us: int | None = None
        #: What the coordinator knows in the present session. How far we are only counts in a hold.
        self._told: GuardStanding | None = None
        self._actions: list[GuardAction] = []

    @property
    def standing(self) -> GuardStanding | None:
        """None before there is a launch."""
        if self._launch is None:
            return None
        return GuardStanding(
            self._run, self._launch, self._rank, self.signal, self.reached, self.holds,
            self.stop, self.saves, self.gave_up,
        )  # fmt: skip

    def ask(self, step: Step) -> GuardAnswer:
        """May this step pass? Steps below one that passed pass."""
        if self.stop is not None:
            return self._past(step, self.stop)
        if self.reached is None or step > self.reached:
            if self.holds:
                self._waits = True
                return GuardAnswer.WAIT
            self.reached = step
        return GuardAnswer.GO_ON

    def _past(self, step: Step, stop: Step) -> GuardAnswer:
        if step < stop:
            return GuardAnswer.GO_ON
        if self.saves is None:
            self.saves = step
        return GuardAnswer.SAVE

    def handle(self, event: GuardEvent) -> list[GuardAction]:
        """Everything that follows from one event."""
        match event:
            case ProcessSignalled():
                self._signalled(event)
            case GuardJoined():
                self._launch, self._told = event.launch, None
            case GuardHeard():
                self._heard(event.message)
            case Ticked():
                self._ticked(event.now_us)
        self._tell()
        actions, self._actions = self._actions, []
        return actions

    # ----------------------------------------------------------------------- inside

    def _tell(self) -> None:
        standing = self.standing
        if standing is None:
            return
        new = standing if self.holds else replace(standing, reached=None)
        if new != self._told:
            self._told = new
            self._actions.append(TellStanding(standing))

    def _signalled(self, event: ProcessSignalled) -> None:
        if self.signal:
            return  # Once more: everybody knows.
        self.signal = event.signal
        self.heard_of = self.heard_of or f"rank {self._rank} got {event.signal}"
        if self._undecided:
            self._word_since_us = event.now_us
        if self._undecided and self._world_size == 1:
            self.holds = True
            self._stop_at(Step(0 if self.reached is None else self.reached + 1))

    @property
    def _undecided(self) -> bool:
        return self.stop is None and not self.gave_up

    def _heard(self, message: Message) -> None:
        match message:
            case HoldSteps(_, rank, signal) if self._undecided:
                self.holds, self._word_since_us = True, None
                self.heard_of = self.heard_of or f"rank {rank} got {signal or 'a signal'}"
            case StopAt(_, step) if self._undecided:
                self._stop_at(step)
            case NoCommonStep(_, why) if self.stop is None:
                self._give_up(why)
            case NoCommonStep(_, why):
                self._report("error", f"not all ranks end with step {self.saves}: {why}")
            case GuardsAwaited():
                self._awaited = message

    def _stop_at(self, step: Step) -> None:
        self._word_since_us = None
        if self.reached is not None and self.reached >= step:
            self._give_up(f"rank {self._rank} has passed step {step}, where the others stop")
            return
        self.stop, self.holds = step, False

    def _give_up(self, why: str) -> None:
        if self._undecided:
            self.gave_up, self.holds, self._word_since_us = why, False, None
            self._report(
                "error", f"no step that all ranks save together, the training goes on: {why}"
            )

    def _ticked(self, now_us: int) -> None:
        if self._word_since_us is not None and now_us - self._word_since_us >= WORD_US:
            self._word_since_us = None
            self._report("warning", self._why_unheard())
        if not self._waits:
            return
        if self._waits_since_us is None:
            self._waits_since_us = now_us
        elif self._undecided and now_us - self._waits_since_us >= self._hold_us:
            held_s = self._hold_us / US_PER_S
            self._give_up(
                f"rank {self._rank} has waited {held_s:g} s, and some rank did not answer"
            )

    def _why_unheard(self) -> str:
        who = f"rank {self._rank} got {self.signal}, and the other ranks do not know"
        if self._awaited is None or not self._awaited.count:
            return f"{who}: the coordinator is out of reach; they will when it answers"
        named = ", ".join(str(rank) for rank in self._awaited.ranks)
        more = ", ..." if self._awaited.count > len(self._awaited.ranks) else ""
        return f"{who}: {self._awaited.count} of them have no guard (rank {named}{more})"

    def _report(self, level: str, text: str) -> None:
        self._actions.append(Report(level, text, (("run", self._run),)))
