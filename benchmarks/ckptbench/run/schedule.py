"""Which loops does a job have, and which of them count? Pure: the time is an argument.

warmups   so many loops first
ramp_time loops that begin in it; the runtime begins after it
loops     then so many, and with time_based as many as begin before runtime is over
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ckptbench.job.options import JobOptions


class Loop(Enum):
    """What comes next."""

    WARM = "warm"
    """A loop that does not count."""
    COUNTED = "counted"
    END = "end"


@dataclass(slots=True)
class Schedule:
    """I say what the next loop is; tell me when one that counts was thrown away."""

    options: JobOptions
    begun: int = 0
    """Loops so far, thrown-away ones too."""
    counted: int = 0

    def following(self, elapsed_s: float) -> Loop:
        """What to do at this time since the first loop began."""
        options = self.options
        measured_s = elapsed_s - options.ramp_time
        if self.begun < options.warmups or measured_s < 0:
            self.begun += 1
            return Loop.WARM
        over = bool(options.runtime) and measured_s >= options.runtime
        enough = self.counted >= options.loops
        if (over and (enough or not options.time_based)) or (enough and not options.time_based):
            return Loop.END if self.counted else self._count()
        return self._count()

    def discard(self) -> None:
        """The last counted loop is to be done again."""
        self.counted -= 1

    def _count(self) -> Loop:
        self.begun += 1
        self.counted += 1
        return Loop.COUNTED


def pause_s(options: JobOptions, direction: str, rank_bytes: int, taken_s: float) -> float:
    """How long ranks rest before the next loop: thinktime, or longer to keep below rate=."""
    read, write = options.rate
    rate = read if direction == "read" else write
    paced = rank_bytes / rate - taken_s if rate else 0.0
    return max(options.thinktime, paced, 0.0)
