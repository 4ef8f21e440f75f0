"""One start of a run: the processes that hold its ranks, and what these handed over last.

`launches.py` says which launch a process belongs to, and which of them may still save.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import LaunchNumber, Rank, Step
from ckpt.protocol.coordinator.cluster.guards import LaunchGuards
from ckpt.protocol.events import Session

LONG_AGO_US: Final = -(1 << 62)
"""Earlier than every time that is known."""


@dataclass(frozen=True, slots=True)
class Life:
    """Of a process, in microseconds of the coordinator's clock."""

    came_us: int
    """LONG_AGO_US when that is not known."""
    ended_us: int | None
    """None while nobody said that it has."""

    def is_before(self, other: Life) -> bool:
        """Whether it had ended when the other came."""
        return self.ended_us is not None and self.ended_us <= other.came_us


@dataclass(frozen=True, slots=True)
class Former:
    """Who held a rank before its process."""

    process: str
    life: Life


@dataclass(slots=True)
class LaunchedRank:
    """One rank's process in a launch."""

    process: str
    former: Former | None = None
    sessions: set[Session] = field(default_factory=set)
    """Connections that joined as this process: the trainer's own and its stagers'."""
    stagers: set[Session] = field(default_factory=set)
    """Those of stagers, one for each store that saves or did so lately."""
    closed: set[Session] = field(default_factory=set)
    """Connections of stagers whose store was closed; saves may still finish there."""
    joined_us: int = LONG_AGO_US
    """When it came; LONG_AGO_US when that is not known."""
    left_us: int | None = None
    """When a stager said that its process has ended; the stager may still finish saves."""
    watched: bool = False
    """A stager has joined for it, and did not say that it leaves: it reports the process's end."""
    away_since_us: int | None = None
    """When the last session ended; None while there is one."""

    @property
    def left(self) -> bool:
        return self.left_us is not None

    @property
    def came_again(self) -> bool:
        """Whether another process held the rank before."""
        return self.former is not None

    def life(self, process: str) -> Life:
        """Of the rank's process of that name. One that is neither the present nor the former one
        had ended when the former one came.
        """
        if process == self.process:
            return Life(self.joined_us, self.left_us)
        if self.former is None:
            return Life(LONG_AGO_US, None)
        if process == self.former.process:
            return self.former.life
        return Life(LONG_AGO_US, self.former.life.came_us)

    def as_former(self, now_us: int) -> Former:
        """Its process, whose place another one takes now."""
        known = (at for at in (self.left_us, self.away_since_us) if at is not None)
        return Former(self.process, Life(self.joined_us, min(known, default=now_us)))

    @property
    def here(self) -> bool:
        """Whether it has not ended, and somebody is connected who would report that."""
        return bool(self.sessions) and not self.left

    @property
    def live(self) -> bool:
        """Whether it has a store open: then no other process may take its place."""
        return bool(self.sessions - self.closed) and not self.left

    def joined(self, session: Session, *, from_stager: bool) -> None:
        """Note that it speaks here, and has a store open as far as is known."""
        if session not in self.sessions:
            self.left_us = None  # A stager that had reported its end reports it again.
        self.sessions.add(session)
        self.closed.discard(session)
        self.away_since_us = None
        if from_stager:
            self.stagers.add(session)
            self.watched = True

    def came(self, at_us: int) -> None:
        """It says when it came; of what its connections say the earliest counts."""
        known = self.joined_us != LONG_AGO_US
        self.joined_us = min(self.joined_us, at_us) if known else at_us

    def store_closed(self, session: Session, *, unwatched: bool) -> None:
        """The process lives; nobody watches it once its last stager has left."""
        self.closed.add(session)
        if unwatched:
            self.stagers.discard(session)
            self.watched = bool(self.stagers)

    def session_ended(self, session: Session, now_us: int) -> None:
        """Nothing more is heard from there."""
        for sessions in (self.sessions, self.stagers, self.closed):
            sessions.discard(session)
        if not self.sessions:
            self.away_since_us = now_us


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

    def is_beside(self, other: Rank, rank: Rank) -> bool:
        """Whether a rank's process is here that came after the former one of `rank` had ended: then
        both are of one start, where all ranks start again under one key.
        """
        member, peer = self.members.get(rank), self.members.get(other)
        if member is None or member.former is None or peer is None or not peer.here:
            return False
        return member.former.life.is_before(Life(peer.joined_us, None))

    def starts_again(self, rank: Rank) -> bool:
        """Whether the rank's process has taken another one's place, beside which nobody was who is
        still here: it has not started again alone.
        """
        member = self.members.get(rank)
        if member is None or not member.came_again:
            return False
        others = (one for one, peer in self.members.items() if one != rank and peer.here)
        return all(self.is_beside(one, rank) for one in others)

    def process(self, rank: Rank) -> str:
        """Who holds the rank; empty when nobody is known to."""
        member = self.members.get(rank)
        return "" if member is None else member.process

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
