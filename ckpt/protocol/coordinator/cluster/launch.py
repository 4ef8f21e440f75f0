"""One start of a run: the processes that hold its ranks, and what these handed over last.

`launches.py` says which launch a process belongs to, and which of them may still save.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ckpt.base.ids import LaunchNumber, Rank, Step
from ckpt.protocol.coordinator.cluster.guards import LaunchGuards
from ckpt.protocol.coordinator.cluster.seats import LONG_AGO_US, LaunchedRank
from ckpt.protocol.events import Session


@dataclass(frozen=True, slots=True)
class Saved:
    """What a rank handed over last."""

    process: str
    step: Step
    at_us: int


@dataclass(slots=True)
class Launch:
    """One start of a run."""

    number: LaunchNumber
    key: str | None
    world_size: int
    members: dict[Rank, LaunchedRank] = field(default_factory=dict)
    readers: set[Session] = field(default_factory=set)
    """Of processes that only load, whoever holds their ranks."""
    closed: bool = False
    """Known from its attempts or from a rank that came back alone: nobody knows its processes, so
    nobody new joins it without its key."""
    numbered: bool = True
    """The catalog has its number, or is about to. A catalog that was made from the targets knows
    neither number nor key."""
    unwritten: int = 0
    """Entries about it that are on their way to the catalog."""
    saved: dict[Rank, Saved] = field(default_factory=dict)
    """The last payload that each rank has handed over."""
    all_saved: bool = False
    """It has committed a checkpoint."""
    counted: set[Rank] | None = None
    """Whose first stager has come, while one that comes has missed no attempt; None afterwards."""
    guards: LaunchGuards = field(init=False)
    """Of its ranks' trainings; they agree where to stop."""

    def __post_init__(self) -> None:
        self.guards = LaunchGuards(self.world_size)

    @property
    def live(self) -> bool:
        return bool(self.readers) or any(member.live for member in self.members.values())

    @property
    def is_spoken_for(self) -> bool:
        """Whether some process of it is connected, also one that has closed its store."""
        return any(member.sessions for member in self.members.values())

    def away_since_us(self, rank: Rank) -> int | None:
        """Since when the stager of a rank is away that never announced it; None for others."""
        member = self.members.get(rank)
        if member is None or member.left or not member.watched:
            return None
        return member.away_since_us

    def unwatched_since_us(self, rank: Rank) -> int | None:
        """Since when a rank that came has neither an open store nor a stager: it trains, or it is
        gone. None for others. All have come where a checkpoint was committed: one that is not known
        had no stager left to join again when the coordinator restarted.
        """
        member = self.members.get(rank)
        if member is None:
            return LONG_AGO_US if self.all_saved else None
        if member.left or member.watched:
            return None
        return member.away_since_us

    def left_us(self, rank: Rank) -> int | None:
        """When the rank's stager said that its trainer has ended; None while it has not, and once
        another process holds the rank.
        """
        member = self.members.get(rank)
        return member.left_us if member is not None else None

    def joined_us(self, rank: Rank) -> int:
        """When the rank's process came; LONG_AGO_US if that is not known."""
        member = self.members.get(rank)
        return member.joined_us if member is not None else LONG_AGO_US

    def are_two_starts(self, early: tuple[Rank, str], late: tuple[Rank, str]) -> bool:
        """Whether the early rank's process had ended when the late one's came, under one key, and
        one of their ranks has had two processes. Ranks that never came before may be started one
        after the other.
        """
        before, after = self.members.get(early[0]), self.members.get(late[0])
        if before is None or after is None:
            return False
        came_again = after.came_again or before.process != early[1]
        return came_again and before.life(early[1]).is_before(after.life(late[1]))

    def handed_over(self, rank: Rank, saved: Saved, *, again: bool) -> None:
        """A rank's payload is here; `again` when that is reported to a restarted coordinator, which
        knows the right time only from what the process said when it joined.
        """
        known = self.saved.get(rank)
        if not again or known is None or known.process != saved.process:
            self.saved[rank] = saved

    def told_saved(self, rank: Rank, saved: Saved) -> None:
        """What a process says that it handed over last; it may be known here, or its other stager
        may know better.
        """
        known = self.saved.get(rank)
        if (
            known is None
            or known.process != saved.process
            or (known.step != saved.step and known.at_us < saved.at_us)
        ):
            self.saved[rank] = saved

    def is_past(self, rank: Rank, step: Step, before_us: int) -> bool:
        """Whether the rank's process had handed over this step, or a later one, before that time,
        and nothing since.
        """
        saved, member = self.saved.get(rank), self.members.get(rank)
        if saved is None or member is None or saved.process != member.process:
            return False
        return saved.step >= step and saved.at_us < before_us

    def has_saved(self, rank: Rank) -> bool:
        """Whether this rank is past what it loads first."""
        return self.all_saved or rank in self.saved


@dataclass(slots=True)
class Run:
    """The launches of one run, oldest first."""

    launches: dict[LaunchNumber, Launch] = field(default_factory=dict)
    renumbered: dict[LaunchNumber, LaunchNumber] = field(default_factory=dict)
    """Numbers that some ranks may still say, of launches that are in `launches` under another."""
    begun: LaunchNumber = LaunchNumber(0)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is connected: no reader, no process of a rank, no stager."""
        return not any(one.readers or one.is_spoken_for for one in self.launches.values())
