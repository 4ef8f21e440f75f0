"""The clock of rules by age follows time that passes, and no jump."""

from __future__ import annotations

from ckpt.base.ids import Generation
from ckpt.base.units import US_PER_S
from ckpt.plan.keeping.aging import LOST_S, AgeClock, newest_commit_s

DAY_S = 86_400.0
LONG_AGO_S = 1e9


class Hands:
    """What the clock is shown."""

    def __init__(self, newest_s: float | None, wall_s: float) -> None:
        self._clock = AgeClock(newest_s)
        self._now_us = 7
        self.wall_s = wall_s
        self.read()

    def read(self) -> float:
        return self._clock.now_s(self._now_us, self.wall_s)

    def live(self, seconds: float) -> float:
        """So much time passes, on the wall as well."""
        self._now_us += round(seconds * US_PER_S)
        self.wall_s += seconds
        return self.read()


def test_it_goes_with_a_wall_clock_that_is_right() -> None:
    for newest_s in (None, LONG_AGO_S):
        hands = Hands(newest_s, LONG_AGO_S)
        assert hands.live(10) == hands.wall_s
        assert hands.live(DAY_S) == hands.wall_s


def test_a_jump_ahead_is_followed_at_twice_the_pace_of_time() -> None:
    hands = Hands(LONG_AGO_S, LONG_AGO_S)
    hands.wall_s += DAY_S
    assert hands.read() == LONG_AGO_S
    assert hands.live(100) == LONG_AGO_S + 200
    assert hands.live(DAY_S - 100) == LONG_AGO_S + 2 * DAY_S == hands.wall_s
    assert hands.live(10) == hands.wall_s


def test_a_jump_back_counts_at_once_and_so_does_its_end() -> None:
    hands = Hands(LONG_AGO_S, LONG_AGO_S)
    hands.wall_s -= DAY_S
    assert hands.live(10) == LONG_AGO_S + 10 - DAY_S
    hands.wall_s += DAY_S
    assert hands.live(10) == LONG_AGO_S + 20


def test_one_that_begins_on_a_clock_that_is_ahead_begins_at_the_newest_commit() -> None:
    hands = Hands(LONG_AGO_S, LONG_AGO_S + DAY_S)
    assert hands.live(10) == LONG_AGO_S + 20


def test_a_commit_that_is_dated_ahead_holds_nothing_up() -> None:
    hands = Hands(LONG_AGO_S + DAY_S, LONG_AGO_S)
    assert hands.live(10) == LONG_AGO_S + 10


def test_it_begins_at_the_newest_commit_unless_that_is_of_a_clock_that_had_lost_the_time() -> None:
    one, two = Generation(1, 1), Generation(2, 1)
    assert newest_commit_s([]) is None
    assert newest_commit_s([(two, LONG_AGO_S), (one, LONG_AGO_S + DAY_S)]) == LONG_AGO_S
    assert newest_commit_s([(one, LONG_AGO_S), (two, LONG_AGO_S + DAY_S)]) == LONG_AGO_S + DAY_S
    lost_s = LONG_AGO_S - LOST_S - 1
    assert newest_commit_s([(one, LONG_AGO_S), (two, lost_s)]) == LONG_AGO_S
