"""Is a file that somebody else writes still what it was when its header was read?

    see: which file, its size, its times ──> every read of it: still the same? else ChangedMeanwhile

It is read, never mapped: whoever cuts a file that is mapped ends the process that reads it
(SIGBUS). And whoever writes it meanwhile would have it taken in half old, half new: a mix that
nobody ever saved. What somebody writes through a mapping leaves other times only later: that may
not be seen.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from ckpt.base.errors import Busy, CkptError, NotFound, Refused
from ckpt.base.system_errors import system_error
from ckpt.base.units import MiB
from ckpt.objects.source import Array

Stamp = tuple[int, int, int, int, int]
"""(device, inode, bytes, mtime ns, ctime ns)."""
TICK_NS: Final = 20_000_000
"""Two writes within one tick of the kernel's clock, at most 10 ms, leave the same times."""
READ_BYTES_MAX: Final = 64 * MiB
"""Of one call, so that a Ctrl-C is heard."""


_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Who opens a pipe waits for nobody."""


class ChangedMeanwhile(Busy):
    """Somebody wrote a file while it was taken in; nothing of it is kept."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """One file, as it was when it was seen."""

    path: Path
    stamp: Stamp

    @classmethod
    def see(cls, path: Path) -> Self:
        """Look at it before anything of it is read. Raises NotFound, Refused for what is no file,
        CkptError.
        """
        try:
            found = _looked_at(path)
        except FileNotFoundError:
            raise NotFound(f"there is no {path}") from None
        except OSError as error:
            raise _unreadable(path, error) from None
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{path} is no file")
        stamp = _stamp(found)
        # What is written from here on must leave other times than what was written before.
        if abs(time.time_ns() - max(stamp[3:])) < TICK_NS:
            time.sleep(TICK_NS / 1e9)
        return cls(path, stamp)

    @property
    def size(self) -> int:
        """In bytes, when it was seen."""
        return self.stamp[2]

    def check(self) -> None:
        """Raises ChangedMeanwhile unless this path still leads to the same file, unchanged."""
        try:
            now = _stamp(_looked_at(self.path))
        except FileNotFoundError:
            raise changed(self.path) from None
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if now != self.stamp:
            raise changed(self.path)

    def opened(self) -> OpenFile:
        """Open it to be read; close it. Raises ChangedMeanwhile, CkptError."""
        return OpenFile(self)


class OpenFile:
    """I read bytes of one file, all of them as it was when it was seen."""

    def __init__(self, seen: SeenFile) -> None:
        self._seen = seen
        try:
            self._descriptor = os.open(seen.path, _OPEN)
        except FileNotFoundError:
            raise changed(seen.path) from None
        except OSError as error:
            raise _unreadable(seen.path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def fill(self, start: int, memory: Array) -> None:
        """Read the bytes from `start` on into C-contiguous memory; `check` before they are used.
        Raises ChangedMeanwhile where the file ends, CkptError.
        """
        view = memory.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            part = view[done : done + READ_BYTES_MAX]
            try:
                count = os.preadv(self._descriptor, [part], start + done)
            except OSError as error:
                raise _unreadable(self._seen.path, error) from None
            if count == 0:
                raise changed(self._seen.path)
            done += count

    def check(self) -> None:
        """Raises ChangedMeanwhile unless all that was read is of the file as it was seen."""
        if _stamp(os.fstat(self._descriptor)) != self._seen.stamp:
            raise changed(self._seen.path)
        self._seen.check()


def changed(path: Path) -> ChangedMeanwhile:
    """The error that says so."""
    return ChangedMeanwhile(
        f"{path} was changed while it was read: nothing of it is kept",
        hint="let who writes it end, and take it in again",
    )


def check_all(files: Sequence[SeenFile]) -> None:
    """`SeenFile.check` of each."""
    for file in files:
        file.check()


def _looked_at(path: Path) -> os.stat_result:
    """Opened, not only asked for: what a client of NFS remembers of a file is old until then."""
    descriptor = os.open(path, _OPEN)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _unreadable(path: Path, error: OSError) -> CkptError:
    rights = "this user needs the right to read it" if isinstance(error, PermissionError) else ""
    return system_error(f"cannot read {path}", error, hint=rights)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
