"""Writes of fragments and reads: in the loop while the device is quick, otherwise in a thread.

    start--> IN A THREAD --QUICK_COUNT answers in a row, each within QUICK_US--> IN THE LOOP
                  ^------------- held up for HELD_US between two ticks ------------------'

A hop to a thread costs more than a quick write does. But a loop that waits for a device answers
nobody and renews no lease: where every write takes half a second, healthy targets were taken for
dead. The thread does one after another, as the loop does, and beside the one that syncs.
"""

from __future__ import annotations

from typing import Final

from ckpt.aio.clock import now_us
from ckpt.aio.disk import Disk
from ckpt.aio.disk_actions import perform
from ckpt.base.limits import BEAT_US
from ckpt.protocol.target.disk_events import DiskAction, DiskDone, DiskFailed, ReadAt, WriteAt
from ckptd.target.disk_worker import DiskWorker, Done

HELD_US: Final = BEAT_US
"""A sender hears of its target so often. A process that was not scheduled for a moment is no slow
device."""
QUICK_US: Final = 25_000
QUICK_COUNT: Final = 16


class Transfers:
    """I belong to the loop; `answered` hears there what the thread has done."""

    def __init__(self, disk: Disk, answered: Done) -> None:
        self._disk = disk
        self._worker = DiskWorker(disk, answered, self._took)
        self.in_thread = True
        """The device is slow, or nobody knows yet."""
        #: For how long the loop was held up since the last tick.
        self._held_us = 0
        #: The last answers of the thread that came soon.
        self._quick_count = 0

    def do(self, action: WriteAt | ReadAt) -> DiskDone | DiskFailed | None:
        """Its answer; None if that comes to `answered`."""
        if self.in_thread:
            self._worker.put(action)
            return None
        began_us = now_us()
        answer = perform(self._disk, action, began_us)
        self._held_us += now_us() - began_us
        if self._held_us >= HELD_US:
            self.in_thread, self._quick_count = True, 0
        return answer

    def tick(self) -> None:
        """The loop has its turn: it is not held up."""
        self._held_us = 0

    @property
    def is_idle(self) -> bool:
        return self._worker.is_idle

    async def rest(self) -> None:
        """Wait until all that was given to the thread is answered."""
        await self._worker.rest()

    def end(self) -> None:
        """End the thread, which has nothing to do."""
        self._worker.end()

    # ----------------------------------------------------------------------- inside

    def _took(self, _action: DiskAction, took_us: int) -> None:
        self._quick_count = self._quick_count + 1 if took_us <= QUICK_US else 0
        if self._quick_count >= QUICK_COUNT:
            self.in_thread, self._held_us = False, 0
