"""When does the work on a handed-over save begin? A moment later while every processor is wanted.

Ranks that save at one moment copy at one moment, and what the stager of the first to be done takes,
the last one waits for: training goes on when the slowest has copied. Nicer stagers (`Courtesy`)
only take less. Where a processor is free nothing is held back, and nothing for long: what a
training takes afterwards it does not give back.
"""

from __future__ import annotations

import errno
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
NICE: Final = 10
"""A tenth of a trainer's share of the processor, where both want it: a rank that has staged must
slow neither ranks that still copy nor the training that goes on.
"""
_NICEST: Final = 19
_GROUP: Final = Path("/proc/self/autogroup")


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


class Courtesy:
    """From `step_back` on this process is nicer than its trainer, also where the scheduler weighs
    whole sessions, as ours is one. Not before: a first save waits for our start and for its memory.
    """

    def __init__(self, nice: int = NICE) -> None:
        self._nice = min(os.getpriority(os.PRIO_PROCESS, 0) + nice, _NICEST)
        self._group_nice = str(nice)
        self._is_due = self._group_is_due = False

    def step_back(self) -> None:
        """The calling thread does so at once, and all that it starts."""
        if not self._is_due:
            self._is_due = self._group_is_due = True
        self.go_on()

    def go_on(self) -> None:
        """Each thread calls this before it works: one of another time must step back by itself."""
        if not self._is_due:
            return
        if os.getpriority(os.PRIO_PROCESS, 0) < self._nice:
            os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        if self._group_is_due:
            try:
                _GROUP.write_text(self._group_nice)
            except OSError as error:  # Not every kernel has groups of sessions.
                # Whoever has no right for more may do so ten times a second, all users together.
                self._group_is_due = error.errno == errno.EAGAIN
            else:
                self._group_is_due = False
