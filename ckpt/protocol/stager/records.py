"""What the stager remembers of each save, of each run's launch,
and of each question it has asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ckpt.base.ids import CheckpointId, LaunchNumber, PayloadId, RunName, Step
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.format.messages.launches import Departure
from ckpt.format.messages.saving import PayloadPlanned, Repeats, SpaceStands
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.stager.events import (
    Outcome,
    PayloadFailed,
    PayloadHandedOver,
    PayloadSealed,
    ReferencesFound,
    SaveFailed,
    SparesWanted,
)

RETRY_US: Final = 2_000_000
RETRY_US_MAX: Final = 16_000_000
STEPS_COUNTED: Final = 64
"""The highest ones; who goes back further cannot say how often it has saved a step."""


class SaveState(Enum):
    """Where a save stands; the drawing is in ckpt.protocol.stager.machine."""

    ASKED = "asked"
    STAGING = "staging"
    OPENING = "opening"
    SENDING = "sending"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class StagerConfig:
    """The stager's limits."""

    half_count: int = 2
    idle_us: int = 60_000_000
    """Without a trainer and with nothing that could still commit, the process stays so long."""
    orphan_us: int = 3_600_000_000
    """Without a trainer and without a coordinator, pending saves are kept so long."""
    asked_alone_us: int = 20_000_000
    """The same once somebody has asked the process to end: a takeover by another coordinator, or a
    local cluster that is started again, takes less; Slurm kills 30 s after its SIGTERM."""
    asked_us: int = 600_000_000
    """Once somebody has asked the process to end, saves get so long, their trainer gone."""
    open_us: int = 60_000_000
    """A payload that only ever hears to retry is given up after this."""
    dial_us: int = 200_000
    """Pause after a failed dial; no two processes of a crowd should have the same one."""
    table_part_bytes: int = FRAME_BULK_BYTES_MAX // 2
    waiting_max: int = 64
    """Saves that may wait for a half."""


class Lifetime:
    """When a stager that nobody needs goes away by itself."""

    def __init__(self, config: StagerConfig) -> None:
        self._config = config
        self._idle_us = config.idle_us
        self._quiet_since_us: int | None = None
        self._alone_since_us: int | None = None
        #: Since when no trainer is there that could still save, and an end is asked for.
        self._ending_since_us: int | None = None
        self._asked = False

    def hasten(self) -> None:
        """Somebody asks it to end: it goes as soon as it is idle, and its saves get less time."""
        self._idle_us, self._asked = 0, True

    def reason_to_end(
        self, now_us: int, trainer: bool, coordinator: bool, idle: bool
    ) -> str | None:
        """None while somebody needs the process."""
        if trainer or not idle:
            self._quiet_since_us = None
        elif self._quiet_since_us is None:
            self._quiet_since_us = now_us
        if trainer or coordinator:
            self._alone_since_us = None
        elif self._alone_since_us is None:
            self._alone_since_us = now_us
        if trainer or not self._asked:
            self._ending_since_us = None
        elif self._ending_since_us is None:
            self._ending_since_us = now_us
        quiet, alone = self._quiet_since_us, self._alone_since_us
        if quiet is not None and now_us - quiet >= self._idle_us:
            return "idle, and the trainer is gone"
        if alone is not None and now_us - alone >= self._config.orphan_us:
            return "neither trainer nor coordinator came back"
        return self._reason_when_asked(now_us)

    def _reason_when_asked(self, now_us: int) -> str | None:
        ending, alone = self._ending_since_us, self._alone_since_us
        if ending is None:
            return None
        if alone is not None and now_us - max(ending, alone) >= self._config.asked_alone_us:
            return "asked to end, and no coordinator is there"
        if now_us - ending >= self._config.asked_us:
            return "asked to end, and its saves take too long"
        return None


@dataclass(slots=True)
class Errand:
    """A question to the coordinator, repeated with backoff and on every new
    session until answered.
    """

    request: int
    session: Session | None = None
    """Where it was asked last; None when it is to be asked."""
    due_us: int = 0
    not_before_us: int = 0
    """The coordinator's own retry-after; it outlives a session."""
    tries: int = 0

    def is_due(self, session: Session, now_us: int) -> bool:
        return now_us >= self.not_before_us and (self.session != session or now_us >= self.due_us)

    def asked(self, session: Session, now_us: int) -> None:
        """Note that it goes out now."""
        if session != self.session:
            # Who did not answer before is not whom this one waits for.
            self.session, self.tries = session, 0
        self.due_us = now_us + min(RETRY_US << min(self.tries, 8), RETRY_US_MAX)
        self.tries += 1

    def renew(self, not_before_us: int = 0) -> None:
        """Ask again, at once or not before a given time."""
        self.session, self.not_before_us, self.tries = None, not_before_us, 0


@dataclass(frozen=True, slots=True)
class LastSave:
    """The newest save that a coordinator has answered."""

    number: int
    step: Step
    at_us: int


class Tries:
    """How often each step was saved in a launch, counted as its coordinators and peers do."""

    def __init__(self) -> None:
        self._counts: dict[Step, int] = {}
        #: Of this step and earlier ones too much is forgotten.
        self._forgotten = -1

    def count(self, step: Step) -> int:
        """One more save of it: which one it is, from 1; 0 when that is not known."""
        if step <= self._forgotten:
            return 0
        self._counts[step] = number = self._counts.get(step, 0) + 1
        if len(self._counts) > STEPS_COUNTED:
            self._forgotten = min(self._counts)
            del self._counts[Step(self._forgotten)]
        return number


@dataclass(slots=True)
class Launched:
    """One run's launch as this rank has joined it."""

    run: RunName
    errand: Errand
    number: LaunchNumber | None = None
    joined_on: Session | None = None
    came_us: int = 0
    """When this launch was joined first."""
    last: LastSave | None = None
    """In this launch; a restarted coordinator learns it from here."""
    references: bool = False
    """Its coordinator understands a payload's homes."""
    counts: bool | None = None
    """Whether `tries` is all that the rank has saved in it, as a coordinator says at its first
    join; never where a save ended that may have been in no attempt."""
    tries: Tries = field(default_factory=Tries)
    error: SaveFailed | None = None
    """This launch can save no more; every later save is refused with it."""
    refused: bool = False
    """Nothing of it is asked any more, also not for earlier saves."""
    left_told_on: Session | None = None
    """Where TrainerLeft was said last."""
    left_told: Departure | None = None
    """What it said."""
    closed: bool = False
    """The store that joined it was closed."""
    space: SpaceStands | None = None
    """What waits on targets for the next save, as the coordinator said last."""
    stands_since_us: int = 0
    """When it said that."""

    def names_space_of(self, plan: PayloadPlanned) -> bool:
        """Whether the plan gives to a save what waits for the next one."""
        if self.space is None:
            return False
        waiting = {place.reservation for place in (*self.space.places, *self.space.spares)}
        return any(place.reservation in waiting for place in (*plan.places, *plan.spares))

    def open_again(self) -> None:
        """Join it once more, under its number: another store saves, and earlier saves go on."""
        self.closed, self.joined_on = False, None
        self.left_told_on = self.left_told = None
        self.errand.renew()


@dataclass(slots=True)
class RankSave:
    """One save from its first wish to its end. Only StagerMachine changes it."""

    number: int
    run: RunName
    step: Step
    open: Errand
    certify: Errand
    give_up: Errand
    spares: Errand
    state: SaveState = SaveState.ASKED
    half: int | None = None
    taken: int | None = None
    """The half that the trainer wrote into before it asked."""
    handed: PayloadHandedOver | None = None
    opening_since_us: int = 0
    undecided: bool = False
    """Whether it refers to anything is not known yet."""
    refers: ReferencesFound | None = None
    """To homes, for good once it is planned."""
    table: Buffer | None = None
    """Of the whole payload."""
    repeats: Repeats | None = None
    plan: PayloadPlanned | None = None
    planned_on: Session | None = None
    """The session on which the coordinator last answered OpenPayload."""
    sealed: PayloadSealed | None = None
    """What is to be certified; None again while columns are streamed again."""
    ever_certified: bool = False
    certified: PayloadSealed | None = None
    """What the coordinator has acknowledged, on this session."""
    failed: PayloadFailed | None = None
    wanted: list[SparesWanted] = field(default_factory=list)
    """Questions of the sender in their order; the first one is asked, answers come one by one."""
    comparing: tuple[Session, int] | None = None
    """Who asked CompareBoxes, and with which request number."""
    outcome: Outcome | None = None
    refused: str = ""
    """Why nothing was staged: it is opened for its peers' sake, so that they hear it."""
    nth: int = 0
    """Its how-many-th save of its step in its launch that is; 0 when it is not known."""
    member: str = ""
    """Of a file its name; it belongs to no launch, and its number comes with the plan."""

    @property
    def payload_bytes(self) -> int:
        """What is sent and stored of it."""
        assert self.handed is not None
        return self.refers.payload_bytes if self.refers is not None else self.handed.payload_bytes

    @property
    def payload(self) -> PayloadId | None:
        return self.plan.payload if self.plan is not None else None

    @property
    def checkpoint(self) -> CheckpointId | None:
        return self.plan.payload.checkpoint if self.plan is not None else None

    @property
    def may_be_refused_homes(self) -> bool:
        """Whether it may have to be opened once more, whole."""
        return self.refers is not None and self.plan is None

    @property
    def pending(self) -> bool:
        """Whether it was handed over or refused, and is neither committed nor aborted."""
        return self.state in (SaveState.OPENING, SaveState.SENDING)
