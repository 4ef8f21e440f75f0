"""Does the device take writes now? A page is written, synced and removed every PROBE_US.

    resting --tick, PROBE_US passed--> asked --all answered--> resting, and it is known
                                         | nothing for OVERDUE_US: it hangs

A full device counts as one that takes writes: what it holds is served, and a save that it refuses
hears so. The probe queues after all other syncs, so that it waits as they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import US_PER_S
from ckpt.protocol.target.core import STAGING
from ckpt.protocol.target.disk_events import (
    FULL_ERRNOS,
    DiskAction,
    DiskDone,
    DiskFailed,
    RemoveFile,
    SyncFile,
    WriteAt,
)

PROBE_OP: Final = 0
"""The number of all operations of mine; a machine's own begin at 1."""
PROBE_US: Final = 2 * US_PER_S
OVERDUE_US: Final = 20 * US_PER_S
"""Patience: a sync of a large column may come before it."""

_FILE: Final = f"{STAGING}/probe"


class DiskProbe:
    """I ask by `put`, which performs actions in order; their results come to `answered`."""

    def __init__(self, put: Callable[[DiskAction], None]) -> None:
        self._put = put
        #: When the probe under way was asked; None between probes.
        self._asked_us: int | None = None
        #: Its operations that are not answered yet.
        self._open_count = 0
        #: Whether one of its operations was refused, for another reason than a full disk.
        self._failed = False
        #: What the last whole probe found; False before the first.
        self._took_writes = False
        #: When the next probe is due.
        self._next_us = 0

    def tick(self, now_us: int) -> None:
        """Probe when it is time."""
        if self._asked_us is not None or now_us < self._next_us:
            return
        self._asked_us, self._failed = now_us, False
        actions: tuple[DiskAction, ...] = (
            WriteAt(PROBE_OP, _FILE, 0, bytes(PAGE_BYTES)),
            SyncFile(PROBE_OP, _FILE),
            RemoveFile(PROBE_OP, _FILE),
        )
        self._open_count = len(actions)
        for action in actions:
            self._put(action)

    def answered(self, event: DiskDone | DiskFailed) -> None:
        """One of my operations was performed."""
        assert self._open_count > 0
        assert self._asked_us is not None
        self._open_count -= 1
        if isinstance(event, DiskFailed) and event.errno_name not in FULL_ERRNOS:
            self._failed = True
        if not self._open_count:
            self._took_writes = not self._failed
            self._next_us = self._asked_us + PROBE_US
            self._asked_us = None

    def takes_writes(self, now_us: int) -> bool:
        """Whether the device takes writes, as far as is known; False before the first probe has
        ended.
        """
        overdue = self._asked_us is not None and now_us - self._asked_us > OVERDUE_US
        return self._took_writes and not overdue
