"""What does a catalog's file do on a disk that others have filled? It keeps a little room for the
next start, whose term has to be durable, and waits with all that comes after it.

A start that finds no room cuts a step off the reserve and tries again. So a coordinator can begin
RESERVE_BYTES / STEP_BYTES times, or more often, while not one byte is free; it then has those who
only read. The reserve is made whole when there is room.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from ckpt.base.errors import NoSpace
from ckpt.base.units import KiB, MiB

RESERVE_NAME: Final = "catalog.reserve"
RESERVE_BYTES: Final = MiB
STEP_BYTES: Final = 128 * KiB
LOOK_S: Final = 0.5
"""So often is tried what found no room."""


def is_full(error: BaseException) -> bool:
    """Whether nothing is wrong but that the disk has no room; the transaction is as if it never
    was.
    """
    return (
        isinstance(error, sqlite3.Error)
        and getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_FULL
    )


def no_room(directory: Path) -> NoSpace:
    """What is said while that is so."""
    return NoSpace(
        f"the disk of {directory} has no room for the catalog",
        hint=f"make room on the disk of {directory}; what waits is then stored",
    )


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
