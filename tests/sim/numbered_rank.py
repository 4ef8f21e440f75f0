"""A rank of a job that loads one step again and again, by its number or as the newest: some of its
loads are those that all ranks do, some it does alone (decision 0017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckpt.base.ids import CheckpointId, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.loading import ConfirmLoad, LoadBegan, Resolve
from tests.sim.clockwork import Clockwork
from tests.sim.load_nodes import WAIT_US, LoadingRank, LoadJob
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles
from tests.sim.reader_node import CRASHED


@dataclass(frozen=True, slots=True)
class Load:
    """One line of a rank's script."""

    together: int | None
    """Which of the loads that all ranks do; None for one of its own."""
    by_number: bool
    rest_us: int
    """Before it."""


class NumberedRank(LoadingRank):
    """I go through my script; my first load that fails ends me, as it would end a job."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], job: LoadJob, rank: int, step: Step,
        script: Sequence[Load], may_begin: Callable[[int], bool],
    ) -> None:  # fmt: skip
        """may_begin: whether the ranks may do this one of their common loads now."""
        super().__init__(clock, network, oracles, coordinator, target_of, job, rank)
        self.held: dict[int, CheckpointId] = {}
        """What it got in each of the common loads."""
        self._step = step
        self._script = list(script)
        self._may_begin = may_begin
        self._confirmed = 0
        self._resting = True

    @property
    def common_done(self) -> int:
        """Of the common loads."""
        return len(self.held)

    def start(self) -> None:
        super().start()
        self._clock.after(self._script[0].rest_us, self._next_load)

    # ----------------------------------------------------------------------- its script

    def _next_load(self) -> None:
        if self.outcome is not None:
            return
        together = self._script[0].together
        if together is not None and not self._may_begin(together):
            self._clock.after(1_000, self._next_load)
            return
        self._resting, self._since_us = False, self._clock.now_us
        if self._coordinator_session is None:
            self._dial_coordinator()
        else:
            self._go_on()

    def _end(self, outcome: str) -> None:
        if outcome == "read" and self.outcome is None:
            done = self._script.pop(0)
            assert self.loaded is not None
            if done.together is not None:
                self.held[done.together] = self.loaded
            self._confirmed += 1
            if self._script:
                self._resting = True
                self._anew()
                self._clock.after(self._script[0].rest_us, self._next_load)
                return
        super()._end(outcome)

    # ----------------------------------------------------------------------- what it says

    def _go_on(self) -> None:
        if not self._resting:
            super()._go_on()

    def _tell(self, message: Message) -> None:
        super()._tell(self._as_asked(message))

    def _as_asked(self, message: Message) -> Message:
        """The same by its number."""
        if not self._script or not self._script[0].by_number:
            return message
        turn, step = self._confirmed + 1, self._step
        match message:
            case Resolve(run, _, launch, rank, world_size):
                return Resolve(run, step, launch, rank, world_size, WAIT_US, turn=turn)
            case LoadBegan(run, launch, rank):
                return LoadBegan(run, launch, rank, turn, step)
            case ConfirmLoad(run, launch, rank, _, checkpoint, timeout_us):
                return ConfirmLoad(run, launch, rank, turn, checkpoint, timeout_us, step)
        return message


def is_alive(rank: NumberedRank) -> bool:
    """It goes on with its script."""
    return rank.outcome is None or rank.outcome not in (CRASHED, "lost", "unavailable", "not_found")
