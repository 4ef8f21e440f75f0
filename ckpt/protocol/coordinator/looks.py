"""Before the tier lets a drained step go: does the store still have it? Its workers look.

    may_go --not known--> due: asked with each renewal --stands--> may go, for FRESH_US
                                                       --gone----> misses, until it is there again
                                                       --no word for PATIENCE_US--> may go

What a store has is known from its worker's last look, and somebody may have deleted it since. A
store that does not answer holds no save up for longer than that: what it had was read back there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ckpt.base.ids import CheckpointId
from ckpt.base.units import US_PER_S

FRESH_US = 60 * US_PER_S
"""How long the word that a step is there counts, and a question without a reason is kept."""
PATIENCE_US = 30 * US_PER_S
ASKED_MAX = 64
"""At once: of so many a worker can say within a few seconds whether they are there."""


@dataclass(slots=True)
class _Look:
    asked_us: int
    """Since when there is no word."""
    wanted_us: int
    """When somebody wanted to know last."""
    stands_us: int | None = None
    gone: bool = False


class Looks:
    """I keep what workers of one store were asked to look for, and what they said."""

    def __init__(self) -> None:
        self._looks: dict[CheckpointId, _Look] = {}

    def may_go(self, id: CheckpointId, now_us: int) -> bool:
        """Whether the tier need not keep it on account of this store; else it is asked for."""
        look = self._looks.setdefault(id, _Look(now_us, now_us))
        look.wanted_us = now_us
        if look.stands_us is None:
            return now_us - look.asked_us >= PATIENCE_US
        if now_us - look.stands_us < FRESH_US:
            return True
        look.asked_us, look.stands_us = now_us, None
        return False

    def misses(self, id: CheckpointId) -> bool:
        """Whether it was not there when a worker looked last."""
        return id in self._looks and self._looks[id].gone

    def due(self, now_us: int) -> tuple[CheckpointId, ...]:
        """What to look for now: of what somebody still wants to know, what is not known."""
        for id, look in list(self._looks.items()):
            if now_us - look.wanted_us >= FRESH_US:
                del self._looks[id]
        waiting = [id for id, look in self._looks.items() if look.stands_us is None]
        return tuple(waiting[:ASKED_MAX])

    def heard(
        self, stands: Collection[CheckpointId], gone: Collection[CheckpointId], now_us: int
    ) -> None:
        """A worker has looked; of what nobody asked for it says nothing."""
        for id in self._looks.keys() & {*stands, *gone}:
            look = self._looks[id]
            look.gone = id in gone
            look.stands_us = None if look.gone else now_us
