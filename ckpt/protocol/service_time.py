"""How long one server takes for what it is given, however many wait: no queue is in it.

Of operations that are under way together each is charged from the end of the one before it, as in
any single server. What is under way counts as it grows, so that a server that hangs shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ckpt.base.units import US_PER_S, KiB

MEMORY_US: Final = US_PER_S
"""Whoever holds one calls `fade` this often, so that changes of a server are noticed."""
WRITE_BYTES_MIN: Final = 256 * KiB
"""A shorter write counts as one of so many bytes: most of its cost is its own."""
BUSY_US_MIN: Final = US_PER_S // 10
"""Nothing is said of a server that was busy for less, and did less than a unit."""
HANG_US: Final = US_PER_S
"""A server that has something to do and ends nothing for this long hangs."""


@dataclass(slots=True)
class ServiceTime:
    """One kind of work, in units of `unit`."""

    unit: int
    #: Given to the device and not answered.
    _open_count: int = 0
    #: While something is open: since when the device works on what ends next.
    _since_us: int = 0
    #: Busy time and work done, both fading.
    _busy_us: int = 0
    _done: int = 0

    def began(self, now_us: int) -> None:
        """Note that one more operation is under way."""
        if not self._open_count:
            self._since_us = now_us
        self._open_count += 1

    def ended(self, now_us: int, amount: int) -> None:
        """Note that one of them was answered; `amount` is 0 if it failed."""
        self._busy_us += now_us - self._since_us
        self._since_us = now_us
        self._done += amount
        self._open_count -= 1

    def given_up(self) -> None:
        """Note that one of them is no longer waited for; that is no sign of life."""
        self._open_count -= 1

    def worked_elsewhere(self, now_us: int) -> None:
        """Note that the device did something else until now."""
        self._since_us = now_us

    def excuse(self, gap_us: int) -> None:
        """Excuse a time in which nobody was there to hear what had ended."""
        self._since_us += gap_us

    def fade(self) -> None:
        """Once each MEMORY_US."""
        self._busy_us //= 2
        self._done //= 2

    def hangs(self, now_us: int) -> bool:
        """Whether it has something to do and ends nothing."""
        return self._open_count > 0 and now_us - self._since_us >= HANG_US

    def still_us(self, now_us: int) -> int | None:
        """For how long nothing has ended; None when nothing is under way."""
        return now_us - self._since_us if self._open_count else None

    def unit_us(self, now_us: int) -> int:
        """Microseconds for one unit; of less than a unit, for as much as there was. 0: too little
        was seen to say. What hangs for HANG_US takes at least so long, whatever was done before.
        """
        under_way_us = now_us - self._since_us if self._open_count else 0
        busy_us = self._busy_us + under_way_us
        if self._done < self.unit and busy_us < BUSY_US_MIN:
            return 0
        hangs_us = under_way_us if self.hangs(now_us) else 0
        return max(hangs_us, busy_us * self.unit // max(self.unit, self._done))
