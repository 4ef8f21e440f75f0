"""How fast was lost redundancy made again, when that was last measured? The next coordinator knows.

    columns made of k others --NOTE_BYTES of them; nothing is in hand, or NOTE_US later--> noted

What is copied, since it only moves, says nothing: it is read alone. A little says nothing either,
and is not noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ckpt.base.units import US_PER_S, MiB
from ckpt.format.messages.repairs import RepairMeasured
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.repairing.rate import RepairRate
from ckpt.protocol.coordinator.repairing.ruling import RepairRuling

NOTE_BYTES: Final = 64 * MiB
"""Less says nothing but chance."""
NOTE_US: Final = 60 * US_PER_S
"""While it goes on it is noted so often."""


class RebuildMeter:
    """I measure, and note it in the catalog."""

    def __init__(self, desk: Desk, ruling: RepairRuling, wall_s: Callable[[], float]) -> None:
        self._desk = desk
        self._ruling = ruling
        self._wall_s = wall_s
        self._rate = RepairRate()
        #: Bytes of columns since the last note.
        self._bytes = 0.0
        #: When the first of these was made.
        self._since_us = 0

    def made(self, count: float) -> None:
        """So many bytes of lost columns follow from what was read."""
        if not self._bytes:
            self._since_us = self._desk.now_us
        self._rate.made(count)
        self._bytes += count

    def passed(self, *, is_working: bool) -> None:
        """Note the time until now, in which lost columns were made, or not."""
        now_us = self._desk.now_us
        self._rate.passed(now_us, is_working=is_working)
        is_due = not is_working or now_us - self._since_us >= NOTE_US
        if not is_due or self._bytes < NOTE_BYTES or self._desk.full is not None:
            return
        bytes_per_s = self._rate.bytes_per_s
        if bytes_per_s > 0:
            self._bytes = 0.0
            self._ruling.measured(RepairMeasured(bytes_per_s, self._wall_s()))
