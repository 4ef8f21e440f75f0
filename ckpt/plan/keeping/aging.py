"""What time is it for rules by age? A wall clock that jumps must not take steps away.

    ceiling  begins where the newest commit is dated, goes on with time that really passes, and
             follows a wall clock that is ahead of it at twice that pace
    age      is reckoned at the wall clock, at the ceiling where that is earlier

So a clock that is a day ahead is believed after a day; until then more stays, as it does while a
clock is late. After a time in which no coordinator ran the ceiling is late by as much.

A commit has the wall clock's date, for people, and where that is not believed the age clock's as
well: the next coordinator begins there, not where a wrong clock was. Nor where one was that was
late by weeks, as after a battery went empty: what is dated right would not age before that caught
up.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ckpt.base.ids import Generation
from ckpt.base.units import US_PER_S

CATCH_UP: Final = 2
"""So much faster than time passes the ceiling follows a wall clock that is ahead of it."""
DOUBT_S: Final = 3600.0
"""A wall clock that is ahead by less is as good as right: ages are days."""
LOST_S: Final = 7 * 86_400.0
"""A wall clock that is late by more has lost the time; by less, it is caught up with soon."""


def newest_commit_s(dated: Collection[tuple[Generation, float]]) -> float | None:
    """When the newest commit was, by the clocks that dated them all; None without any."""
    if not dated:
        return None
    newest, latest = max(dated)[1], max(at_s for _, at_s in dated)
    return latest if latest - newest > LOST_S else newest


class AgeClock:
    """I belong to one coordinator, which asks me at each tick; between two I cannot notice a
    jump.
    """

    def __init__(self, newest_s: float | None) -> None:
        """newest_s: when the newest commit was, by the wall clock of then; None without any."""
        self._ceiling_s = newest_s
        #: When I was asked last; None before.
        self._asked_us: int | None = None

    def doubted_s(self, now_us: int, wall_s: float) -> float | None:
        """`now_s`, where it is far from the wall clock; else None."""
        now_s = self.now_s(now_us, wall_s)
        return now_s if wall_s - now_s > DOUBT_S else None

    def now_s(self, now_us: int, wall_s: float) -> float:
        """now_us: of a clock that only goes on."""
        if self._ceiling_s is None:
            self._ceiling_s = wall_s
        if self._asked_us is not None:
            passed_s = (now_us - self._asked_us) / US_PER_S
            ahead_s = wall_s - self._ceiling_s
            self._ceiling_s += min(max(ahead_s, passed_s), CATCH_UP * passed_s)
        self._asked_us = now_us
        return min(wall_s, self._ceiling_s)
