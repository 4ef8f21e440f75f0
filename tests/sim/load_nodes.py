"""The ranks of a launch that load together: each joins, resolves the newest step, reads its own
payload, and asks before it returns whether all load this one (decision 0006).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckpt.base.ids import CheckpointId, LaunchNumber, PayloadId, Rank, RunName, TargetId
from ckpt.format.index.pages import IndexPayload
from ckpt.format.messages import Message
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.loading import (
    ConfirmLoad,
    DamageJudged,
    LoadBegan,
    LoadConfirmed,
    ReportDamage,
    Resolve,
    Resolved,
)
from ckpt.protocol.events import Send, Session
from ckpt.protocol.reader import events as re
from tests.sim.clockwork import Clockwork
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles
from tests.sim.reader_node import ReaderNode

WAIT_US = 4_000_000
"""A load's own timeout: for the resolution, for its peers, for targets that are away."""
RETRY_US = 200_000


@dataclass(frozen=True, slots=True)
class LoadJob:
    """A start of the run that loads."""

    run: RunName
    key: str
    world_size: int


class LoadingRank(ReaderNode):
    """I end with `read` only when the coordinator has confirmed what I hold."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], job: LoadJob, rank: int,
    ) -> None:  # fmt: skip
        super().__init__(clock, network, oracles, coordinator, target_of, job.run, rank)
        self.name = f"{job.key}/{rank}"
        self.job = job
        self.rank = Rank(rank)
        self.started = False
        self.loaded: CheckpointId | None = None
        """Read whole and not confirmed yet, or confirmed."""
        self._launch: LaunchNumber | None = None
        self._turn = 0
        self._since_us = 0
        #: What a coordinator is to judge; asked again on every session until it has.
        self._damaged: ReportDamage | None = None

    def start(self) -> None:
        self.started, self._since_us = True, self._clock.now_us
        super().start()

    # ----------------------------------------------------------------------- what it says

    def _ask_coordinator(self, session: Session) -> None:
        self._coordinator_session = session
        job, number = self.job, self._launch
        join = JoinLaunch(job.run, job.key, self.rank, job.world_size, self.name, number)
        self._tell(join)

    def _tell(self, message: Message) -> None:
        if self._coordinator_session is not None:
            self._network.send(Send(self._coordinator_session, next(self._requests), message))

    def _go_on(self) -> None:
        """On a new session, and after every answer: the next question."""
        if self.outcome is not None or self._launch is None:
            return
        job = self.job
        if self._damaged is not None:
            self._tell(self._damaged)
        elif self._record is None:
            self._tell(
                Resolve(
                    job.run, None, self._launch, self.rank, job.world_size, WAIT_US,
                    turn=self._turn,
                )
            )  # fmt: skip
        elif self.loaded is not None:
            self._tell(
                ConfirmLoad(
                    job.run, self._launch, self.rank, self._turn, self.loaded, WAIT_US
                )
            )  # fmt: skip

    def session_closed(self, session: Session) -> None:
        mine = session == self._coordinator_session
        super().session_closed(session)
        if mine and self._record is not None and self.outcome is None:
            self._dial_coordinator()

    # ----------------------------------------------------------------------- what it hears

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        match message:
            case LaunchJoined(number, turn):
                if self._launch is None:
                    self._launch, self._turn = number, turn
                self._go_on()
            case DamageJudged(proved) if self._damaged is not None:
                self._damaged = None
                if proved:
                    self._anew()
                else:
                    self._later("unavailable")
            case LoadConfirmed(superseded) if self.loaded is not None:
                if superseded:
                    self._anew()
                else:
                    self._end("read")
            case Resolved() if self._record is None and self._launch is not None:
                self._tell(LoadBegan(self.job.run, self._launch, self.rank, self._turn))
                super().received(session, request, message, bulk)
            case _:
                super().received(session, request, message, bulk)

    def _anew(self) -> None:
        """What was resolved does not count any more."""
        self._record, self.loaded, self._damaged = None, None, None
        self._readings.clear()
        self._asked.clear()
        self._go_on()

    def _later(self, code: str) -> None:
        """Out of reach for now: as long as the load's own timeout lasts, it is tried again."""
        if self._clock.now_us - self._since_us >= WAIT_US:
            self._end(code)
            return
        self._readings.clear()
        self._asked.clear()
        self._clock.after(RETRY_US, self._anew_if_waiting)

    def _anew_if_waiting(self) -> None:
        if self.outcome is None and self.loaded is None and not self._readings:
            self._anew()

    # ----------------------------------------------------------------------- reading

    def _wanted(self, payloads: tuple[IndexPayload, ...]) -> tuple[IndexPayload, ...]:
        return tuple(payload for payload in payloads if payload.rank == self.rank)

    def _next_index_copy(self) -> None:
        if self._record is None:
            return
        if not self._index_from:
            anyone = PayloadId(self._record.info.checkpoint, self.rank)
            self._damaged = ReportDamage(anyone, "no copy of the index is whole", index=True)
            self._go_on()
            return
        super()._next_index_copy()

    def _failed(self, id: PayloadId, action: re.ReadFailed) -> None:
        if action.damaged:
            self._damaged = ReportDamage(id, "too few good columns")
            self._go_on()
        else:
            self._later(action.code)

    def _conclude(self) -> None:
        if self._readings and all(r.machine.done for r in self._readings.values()):
            assert self._record is not None
            self.loaded = self._record.info.checkpoint
            self._go_on()
