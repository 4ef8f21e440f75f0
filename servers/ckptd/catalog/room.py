"""What does a catalog's file do on a disk that others have filled? It keeps a little room for the
next start, whose term has to be durable, and waits with all that comes after it.

A start that finds no room cuts a step off the reserve and tries again. So a coordinator can begin
RESERVE_BYTES / STEP_BYTES times, or more often, while not one byte is free; it then has those who
only read. The reserve is made whole when there is room.

SQLite knows a disk that is full. A user's quota that is used up, and a limit of a file's size, it
takes for a disk that fails: the system is asked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ckpt.base.errors import NoSpace
from ckpt.base.units import KiB, MiB

RESERVE_NAME: Final = "catalog.reserve"
RESERVE_BYTES: Final = MiB
STEP_BYTES: Final = 128 * KiB
LOOK_S: Final = 0.5
"""So often is tried what found no room."""
PROBE_BYTES: Final = 4 * KiB
_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "make room on the disk of {}",
    errno.EDQUOT: "remove files of this user's on the disk of {}, or raise the quota",
    errno.EFBIG: "raise the coordinator's limit of a file's size (ulimit -f, prlimit --fsize)",
}


def shortage(directory: Path, error: BaseException) -> OSError | None:
    """What the system says, if nothing is wrong but that there is no room for a file of SQLite's in
    this directory; the transaction is as if it never was.
    """
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code != sqlite3.SQLITE_IOERR_WRITE:
        return None
    try:
        largest = max(
            (path.stat().st_size for path in directory.glob("catalog.sqlite*")), default=0
        )
        with tempfile.TemporaryFile(dir=directory) as probe:
            os.pwrite(probe.fileno(), bytes(PROBE_BYTES), largest)
    except OSError as refused:
        return refused if refused.errno in _REMEDIES else None
    return None


def no_room(directory: Path, said: OSError) -> NoSpace:
    """What is said while that is so."""
    text = f"the disk of {directory} has no room for the catalog"
    if said.errno != errno.ENOSPC:
        text = f"{text}: {said.strerror}"
    return NoSpace(text, hint=f"{remedy(directory, said)}; what waits is then stored")


def remedy(directory: Path, said: OSError) -> str:
    """Against a shortage."""
    return _REMEDIES[said.errno or 0].format(directory)


def keep_reserve(directory: Path) -> None:
    """Make it whole, where there is room for that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / RESERVE_NAME, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_blocks * 512 < RESERVE_BYTES:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)


def give_reserve(directory: Path) -> bool:
    """Give a step of it back to the disk; False when nothing is left of it."""
    path = directory / RESERVE_NAME
    try:
        size = path.stat().st_size
        if size:
            os.truncate(path, max(0, size - STEP_BYTES))
    except OSError:
        return False
    return size > 0


assert RESERVE_BYTES % STEP_BYTES == 0, "each start gets a whole step"
