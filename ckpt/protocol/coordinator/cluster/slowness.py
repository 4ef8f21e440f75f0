"""Which targets are a last choice, because saves found them slow beside their peers?

    noted while nothing is known        a last choice for SLOW_US, then tried again
    noted again, within SLOW_LAST_US    for SLOW_FACTOR times as long as the last time,
    of the end of that                  SLOW_LAST_US at most
    noted while it is a last choice     for as long from now on

To try a device that is slow and does not fail costs the burst that does it; to pass over one that
is well costs the share of one target in many. So one that is slow whenever it is tried is tried
ever more rarely, also where saves are further apart than the first pause. Small documents need only
a few targets: for them it is a last choice all that time, since it is the least loaded, so that
they would be the first to find it slow again, and all ranks wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ckpt.base.units import US_PER_S

SLOW_US: Final = 60 * US_PER_S
SLOW_FACTOR: Final = 4
SLOW_LAST_US: Final = 3600 * US_PER_S


@dataclass(slots=True)
class Slowness:
    """Of one target, as its current boot showed itself."""

    until_us: int = 0
    #: The last pause; 0: none yet.
    _pause_us: int = 0

    def holds(self, now_us: int) -> bool:
        """Whether other targets come before it."""
        return now_us < self.until_us

    def is_doubted(self, now_us: int) -> bool:
        """Whether it is a last choice, or was one and may well be found slow again."""
        return self._pause_us > 0 and now_us < self.until_us + SLOW_LAST_US

    def noted(self, now_us: int) -> None:
        """Note that a save went on without it, or elsewhere. All ranks of a burst report that."""
        if not self._pause_us or now_us >= self.until_us + SLOW_LAST_US:
            self._pause_us = SLOW_US
        elif not self.holds(now_us):
            self._pause_us = min(SLOW_FACTOR * self._pause_us, SLOW_LAST_US)
        self.until_us = now_us + self._pause_us
