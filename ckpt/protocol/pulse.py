"""Is who leads still at work, or does only its machine answer?

A process that stands still (SIGSTOP, a paused machine, a network that swallows all) keeps its
connections: whoever waits for its answer would wait as long, while another one has long taken its
place. So who was asked something and says nothing is pinged, and given up when it does not even
answer that; the search then finds who leads.

    quiet --asked--> waiting --PING_AFTER_US of silence--> pinged --GIVE_UP_US more--> given up
      ^                 |                                    |
      +---- heard ------+------------------------------------+

While its owner expects something, being heard begins the waiting again. Only where several
coordinators are known: alone, nobody else could answer.

Whoever leads and turns for less than once in GIVE_UP_US loses its lease as well.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ckpt.base.units import US_PER_S

PING_AFTER_US: Final = US_PER_S
GIVE_UP_US: Final = 2 * US_PER_S


class Beat(Enum):
    """What to do now."""

    NOTHING = "nothing"
    PING = "ping"
    GIVE_UP = "give up"


class Pulse:
    """I watch one session."""

    def __init__(self) -> None:
        #: Silent since then, although it was asked; None: it was not.
        self._since_us: int | None = None
        self._pinged_us: int | None = None
        self._expects = False

    def asked(self, now_us: int) -> None:
        """Note that something was sent."""
        if self._since_us is None:
            self._since_us = now_us

    def heard(self, now_us: int) -> None:
        """Note that bytes have come."""
        self._pinged_us = None
        self._since_us = now_us if self._expects else None

    def expect(self, now_us: int, something: bool) -> None:
        """Say whether its owner waits for an answer that may take long."""
        self._expects = something
        if something:
            self.asked(now_us)

    @property
    def due_us(self) -> int | None:
        """When `beat` next has something to do."""
        if self._pinged_us is not None:
            return self._pinged_us + GIVE_UP_US
        return None if self._since_us is None else self._since_us + PING_AFTER_US

    def beat(self, now_us: int) -> Beat:
        """Time passes: say what to do now."""
        due_us = self.due_us
        if due_us is None or now_us < due_us:
            return Beat.NOTHING
        if self._pinged_us is not None:
            return Beat.GIVE_UP
        self._pinged_us = now_us
        return Beat.PING
