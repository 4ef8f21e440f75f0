"""Who makes columns again reads and writes beside saves and loads: within a share, and after them.

Workers hear from the coordinator how fast they may go, half a second after somebody began to save
or to load (docs/repair.md). A target sees that at once: while others read or write here, what all
its workers together are read stays within what the coordinator has said that a target gives then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.protocol.events import Session
from ckpt.protocol.target.core import Core

AHEAD_US: Final = 200_000
"""Time without a read that may be made up for at once: ticks are that far apart."""


class Workers:
    """I know which sessions are workers', and whether they may read now."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sessions: set[Session] = set()
        #: No worker reads before it while others are here.
        self._free_us = 0
        self.bytes_per_s = 0
        """The share; 0: nothing was said, and there is no bound."""
        self.writing: Callable[[], Iterable[Session]] = tuple
        """Sessions that write columns, each as often as it does. The machine sets it."""

    def opened(self, session: Session) -> None:
        """Note a worker's session."""
        self._sessions.add(session)

    def closed(self, session: Session) -> None:
        """Note the end of anybody's session."""
        self._sessions.discard(session)

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def are_beside_writers(self) -> bool:
        """Whether somebody else writes columns here."""
        return any(session not in self._sessions for session in self.writing())

    def may_read(self, session: Session) -> bool:
        """Whether it is a worker's, and may read while others are here."""
        is_free = not self.bytes_per_s or self._core.now_us >= self._free_us
        return session in self._sessions and is_free

    def read(self, size: int) -> None:
        """Note that so many bytes are read for a worker while others are here."""
        if self.bytes_per_s:
            begins_us = max(self._free_us, self._core.now_us - AHEAD_US)
            self._free_us = begins_us + size * US_PER_S // self.bytes_per_s
