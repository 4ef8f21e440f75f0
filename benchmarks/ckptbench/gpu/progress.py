"""What `ckptbench gpu` says while it measures: what it does, and how long that takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from ckpt.base.units import format_seconds


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"ckptbench: {text}\n")
    sys.stderr.flush()


class RoundProgress:
    """I say how far a measurement is."""

    def __init__(
        self, say: Callable[[str], None] = say, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.say = say
        self._now_s = now_s

    def rounds(self, what: str, count: int) -> Iterator[int]:
        """0 to count, each said as it begins, and what is left by the mean of those before; round 0
        does not count.
        """
        begun_s = self._now_s()
        for number in range(1 + count):
            left = "which does not count"
            if number:
                each_s = (self._now_s() - begun_s) / number
                left = f"about {format_seconds(each_s * (1 + count - number))} left"
            self.say(f"{what}: round {number} of {count}, {left}")
            yield number
