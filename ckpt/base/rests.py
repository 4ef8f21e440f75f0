"""Rests between tries: each twice the one before, up to a longest one, and drawn between half and
all of that, so that a crowd which failed at one moment does not come back at one moment.

Source: "equal jitter" in M. Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

from collections.abc import Callable

Draw = Callable[[], float]
"""A random number from 0 to 1."""


def shortened(rest_s: float, draw: Draw) -> float:
    """Seconds between half of `rest_s` and all of it."""
    return rest_s * (0.5 + draw() / 2)


class Rests:
    """The rests of one who tries again and again."""

    def __init__(self, first_s: float, last_s: float, draw: Draw) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._draw = draw
        #: The next rest before it is shortened.
        self._length_s = first_s

    def next_s(self, *, at_least_s: float = 0.0) -> float:
        """Seconds to rest now; a longer rest that was asked for is shortened as well."""
        rest_s = shortened(max(self._length_s, at_least_s), self._draw)
        self._length_s = min(self._last_s, 2 * self._length_s)
        return rest_s

    def begin_again(self) -> None:
        """A try succeeded: the next rest is a first one."""
        self._length_s = self._first_s
