"""One resolution that all ranks of a launch share: who reads it, who has it, whether it stands.

`rounds.py` says when it can no longer change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import CkptError, Lost, Refused
from ckpt.base.ids import CheckpointId, Rank, Step, check_checkpoint
from ckpt.base.units import counted
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.loading import ConfirmLoad, check_turn
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.launch import Launch
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.events import Session
from ckpt.protocol.losses import loss_reason

RANKS_NAMED_MAX = 8


def check_load(launch: Launch | None, rank: Rank | None, turn: int) -> None:
    """Raises Refused for a turn that cannot be, and for a rank that the launch does not have: it
    would count as one of its own.
    """
    check_turn(turn)
    if launch is not None and rank is not None and not 0 <= rank < launch.world_size:
        ranks = counted(launch.world_size, "rank")
        raise Refused(f"rank {rank} does not fit launch {launch.number} of {ranks}")


def check_loaded(message: ConfirmLoad) -> None:
    """Raises Refused for what is no checkpoint of the run and the step that were asked for. What an
    object store has need not be known here.
    """
    id = check_checkpoint(message.checkpoint)
    if id.run != message.run or message.step not in (None, id.step):
        step = "" if message.step is None else f"@{message.step}"
        raise Refused(f"{id} is not of {message.run}{step}")


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """A rank that has loaded and waits until it may return what it loaded."""

    session: Session
    request: int
    rank: Rank
    turn: int
    until_us: int


@dataclass(slots=True, eq=False)
class Round:
    """One resolution that all ranks of a launch share."""

    launch: Launch
    turn: int
    id: CheckpointId
    chosen: KeptCheckpoint | None
    """None for what was settled before a restart and is deleted."""
    by_number: bool = False
    """It was asked for by its step's number, which has one round at a time."""
    skipped: tuple[str, ...] = ()
    """Sent to every rank, not only to the one that found the damage."""
    pin: int = 0
    """For the ranks that are still to come."""
    until_us: int = 0
    ranks: set[Rank] = field(default_factory=set)
    """Who has taken it."""
    loading: dict[Rank, Session] = field(default_factory=dict)
    """Ranks that read it and have not yet reported how that ended."""
    confirming: list[LoadedRank] = field(default_factory=list)
    """Ranks that have loaded it and wait until they may return it."""
    due_us: int = 0
    """None of them waits no longer before this."""
    confirmed: set[Rank] = field(default_factory=set)
    """Ranks that may return it, as far as this coordinator knows."""
    from_store: bool = False
    """The ranks read it from an object store: its damage here ends nothing."""
    settling: bool = False
    """It can no longer be changed: the catalog's entry is on its way, or durable."""
    settled: bool = False
    """The catalog's entry is durable: who has loaded it may return it."""
    recovered: bool = False
    """A restart found it."""
    counts: dict[Rank, int] = field(default_factory=dict)
    """By number: how many loads of the step each rank has had confirmed."""
    told: dict[Rank, int] = field(default_factory=dict)
    """By number: for which of its loads each rank had this round as the answer."""
    #: As `not_at` has answered last, until something of it changes.
    _not_at: tuple[int, frozenset[Rank]] | None = None

    @property
    def step(self) -> Step | None:
        """The step that the ranks asked for; None when they asked for the newest."""
        return self.id.step if self.by_number else None

    def tell(self, rank: Rank, turn: int) -> None:
        """By number: the rank has this round as the answer for that one of its loads."""
        self.told[rank] = turn
        self._not_at = None

    def confirm(self, rank: Rank, turn: int) -> None:
        """The rank may return it, for that one of its loads where it was asked for by number."""
        self.confirmed.add(rank)
        self.counts[rank] = max(self.counts.get(rank, 0), turn)
        self._not_at = None

    def not_at(self, count: int) -> frozenset[Rank]:
        """By number: ranks of the launch whose next load is not the one after so many. Asked after
        each event while ranks come for that: looked at once.
        """
        if self._not_at is None or self._not_at[0] != count:
            unknown = count if self.recovered else 0
            ranks = map(Rank, range(self.launch.world_size))
            odd = (
                rank
                for rank in ranks
                if self.counts.get(rank, unknown) != count or self.told.get(rank, count) > count
            )
            self._not_at = count, frozenset(odd)
        return self._not_at[1]

    def is_due(self, now_us: int) -> bool:
        """Whether one of those who wait, of whom there are some, has waited for as long as it
        wants to. Looked at after each event: not at all of them each time.
        """
        if now_us < self.due_us:
            return False
        self.due_us = min(each.until_us for each in self.confirming)
        return self.due_us <= now_us

    @property
    def stands(self) -> bool:
        """It can be read, or can no longer be changed."""
        return self.settling or self.is_readable

    @property
    def is_readable(self) -> bool:
        if self.chosen is None:
            return self.from_store
        is_lost = self.chosen.state is RowState.DAMAGED
        return self.chosen.state is RowState.COMMITTED or (is_lost and self.from_store)

    @property
    def is_complete(self) -> bool:
        return len(self.ranks) >= self.launch.world_size

    @property
    def is_of_files(self) -> bool:
        return self.chosen is not None and self.chosen.info.launch == NO_LAUNCH

    @property
    def is_abandoned(self) -> bool:
        return not self.launch.live

    @property
    def why_not(self) -> str:
        """Why it cannot be read any more, or not here."""
        if self.chosen is None and self.from_store:
            return f"{self.id} is in an object store only"
        if self.chosen is None or self.chosen.state is RowState.TOMBSTONED:
            return f"{self.id} is deleted"
        return f"{self.id} is lost ({loss_reason(self.id, self.chosen.reason)})"

    def mix(self, older: CheckpointId | None) -> CkptError:
        """The error for a rank that can have neither this step nor, without a mix, another."""
        known = sorted(self.confirmed)
        named = ", ".join(map(str, known[:RANKS_NAMED_MAX]))
        more = ", ..." if len(known) > RANKS_NAMED_MAX else ""
        whose = f"ranks {named}{more} of this launch have" if known else "this launch has"
        none = "no other generation" if self.by_number else "no older step"
        other = none if older is None else str(older)
        two = "generations" if self.by_number else "steps"
        together = "load it on all ranks at once, or " if self.by_number else ""
        return Lost(
            f"{self.why_not}, and {whose} loaded it already: with {other} on the others, two "
            f"{two} would meet in one job",
            hint=f"{together}end all ranks and start them again: a new launch resolves to {other}",
        )


@dataclass(frozen=True, slots=True)
class Served:
    """What a rank's processes have taken of "newest"."""

    process: str
    """The last one that took a turn."""
    next_turn: int
    """After the last turn taken."""
    first_turn: int
    """The turn after the last one that processes before it had taken."""

    def turn_of_process(self, process: str) -> int:
        """The turn at which that one begins or has begun; it holds the rank now."""
        return self.first_turn if process == self.process else self.next_turn

    def taken(self, turn: int, process: str) -> Served:
        """After this process has taken a turn."""
        first = self.turn_of_process(process)
        return Served(process, max(self.next_turn, turn + 1), first)


NOT_SERVED: Final = Served("", 1, 1)
