"""Which process holds a rank of a launch, who is connected for it, and when it came and ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

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
