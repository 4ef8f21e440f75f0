"""When does the work on a handed-over save begin? A moment later while every processor is wanted.

Ranks that save at one moment copy at one moment, and what the stager of the first to be done takes,
the last one waits for: training goes on when the slowest has copied. Nicer stagers (`__main__`)
only take less. Where a processor is free nothing is held back, and nothing for long: what a
training takes afterwards it does not give back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt_client.stager.wire import HandOver

HOLD_US_MAX: Final = 50_000
"""Ranks that began together finish within less, whatever they copy."""
LOOK_MS: Final = 5
LOADAVG: Final = Path("/proc/loadavg")


def is_crowded(loadavg: Path = LOADAVG, cpu_count: int = os.cpu_count() or 1) -> bool:
    """Whether the host has at least as many runnable tasks as processors, without this one. False
    on a host that does not say.
    """
    with suppress(OSError, ValueError, IndexError):
        running, _, _ = loadavg.read_text().split()[3].partition("/")
        return int(running) - 1 >= cpu_count
    return False


class CrowdPatience:
    """I keep one save that was handed over. Ask me every LOOK_MS while I keep one."""

    def __init__(self, crowded: Callable[[], bool] = is_crowded) -> None:
        self._crowded = crowded
        self._kept: HandOver | None = None
        self._until_us = 0

    @property
    def keeps(self) -> bool:
        return self._kept is not None

    def keep(self, packet: HandOver, now_us: int) -> None:
        """I kept none."""
        assert self._kept is None
        self._kept, self._until_us = packet, now_us + HOLD_US_MAX

    def due(self, now_us: int) -> HandOver | None:
        """What is to begin now, once."""
        if self._kept is not None and (now_us >= self._until_us or not self._crowded()):
            return self.end()
        return None

    def end(self) -> HandOver | None:
        """It begins, whatever the time."""
        kept, self._kept = self._kept, None
        return kept
