"""How fast are lost columns made again, and when will that be done?

The rate is a mean over the time in which somebody had something in hand; what lies further back
counts less, by half each HALF_S.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.units import US_PER_S

HALF_S: Final = 60.0
ENOUGH_S: Final = 0.5
"""A shorter time says nothing but chance."""


class RepairRate:
    """I count bytes, and the time that they took."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0
        #: Up to when time has been counted; None before the first.
        self._seen_us: int | None = None

    def passed(self, now_us: int, *, is_working: bool) -> None:
        """Count the time until now, in which nothing, or something, was in hand."""
        seen_us, self._seen_us = self._seen_us, now_us
        if not is_working or seen_us is None:
            return
        seconds = (now_us - seen_us) / US_PER_S
        kept: float = 0.5 ** (seconds / HALF_S)
        self._bytes *= kept
        self._seconds = self._seconds * kept + seconds

    def made(self, count: float) -> None:
        """So many bytes of lost columns follow from what was read."""
        self._bytes += count

    @property
    def bytes_per_s(self) -> float:
        """0 while nothing is known."""
        return self._bytes / self._seconds if self._seconds >= ENOUGH_S else 0.0

    def left_s(self, bytes_left: float) -> float | None:
        """Until so much is made; None while nobody can say."""
        rate = self.bytes_per_s
        return bytes_left / rate if rate > 0 else None
