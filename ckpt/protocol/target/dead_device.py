"""Does a device that takes nothing give anything still?

    its probe has failed for DEAD_AFTER_US --one file after the other--> one can be read: it gives
                                                `-- none of the first READ_FILES: it is dead

A target that can neither write nor read has nothing of what it said it has, and nobody would make
that again while it goes on to answer for it: its process is to end. Started again on a device that
is back, as after a cable was out, it has all; one that is mounted read-only is served on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import US_PER_S
from ckpt.protocol.target.core import Completion, Core, Entry
from ckpt.protocol.target.disk_events import PASSING_ERRNOS, DiskFailed, ReadAt, ReleaseBulk

DEAD_AFTER_US: Final = 60 * US_PER_S
"""What is back within this is found by its probe."""
READ_FILES: Final = 8
"""One bad sector, or one file that somebody removed, is no dead device."""


class DeadDevice:
    """I hear of probes that failed, and read then. `is_dead` stays as it is found."""

    def __init__(self, core: Core) -> None:
        self.is_dead = False
        self._core = core
        self._is_reading = False
        core.on_probe_failed = self._probe_failed

    def _probe_failed(self) -> None:
        core = self._core
        since_us = core.device.failing_since_us
        if since_us is None or core.now_us - since_us < DEAD_AFTER_US or self._is_reading:
            return
        entries: Iterable[Entry] = chain(core.columns.values(), core.documents.values())
        files = list(islice(entries, READ_FILES))
        if files:
            self._is_reading = True
            self._read(iter(files))

    def _read(self, files: Iterator[Entry]) -> None:
        file = next(files, None)
        if file is None:
            self._is_reading, self.is_dead = False, True
            why = self._core.device.latest
            self._core.report("error", "the device neither takes nor gives anything", why=why)
            return

        def read(event: Completion) -> None:
            self._core.out.append(ReleaseBulk(event.op))
            if _says_nothing(event):
                self._read(files)
            else:
                self._is_reading = False

        op = self._core.expect(read)
        self._core.out.append(ReadAt(op, file.file, 0, PAGE_BYTES, at_rest=True))


def _says_nothing(event: Completion) -> bool:
    """A refusal that is the device's own."""
    if not isinstance(event, DiskFailed):
        return False
    return event.errno_name not in PASSING_ERRNOS and event.errno_name != "ENOENT"
