"""How long may a shell leave its machine alone?

Parts look at their timers when Ticked comes; most do not say when the next one is due. So a machine
with nothing under way is woken less and less often after the last thing that happened:

    something happens --a tick--> Ticked --a tick--> ... --an eighth of the time since--> Ticked

A timer that began with it is late by an eighth of its length, and by REST_US at most.
"""

from __future__ import annotations

from typing import Final

REST_US: Final = 500_000
"""Longest pause between two ticks."""
PART_OF_QUIET: Final = 8


class Resting:
    """Of one machine."""

    def __init__(self) -> None:
        self.stirred_us = 0
        """When something happened last."""

    def rest_us(self, now_us: int, tick_us: int, due_us: int | None = None) -> int:
        """From now to the next Ticked, at least `tick_us`. `due_us`: when something known is."""
        rest_us = min(REST_US, (now_us - self.stirred_us) // PART_OF_QUIET)
        if due_us is not None:
            rest_us = min(rest_us, due_us - now_us)
        return max(tick_us, rest_us)
