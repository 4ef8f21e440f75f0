"""The catalog's file: who may open it, how, and what it means when it cannot be opened."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Final

from ckpt.base.errors import Busy, CkptError, Corrupt, NoSpace, Unavailable
from ckptd.directory import open_lock

LOCK_NAME: Final = "coordinator.lock"

_KEPT_FROM_USE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


def lock_directory(directory: Path) -> int:
    """A descriptor that holds the lock as long as it is open. Raises Busy, Refused, NoSpace."""
    descriptor = open_lock(directory / LOCK_NAME)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Busy(f"another coordinator works on {directory}") from None
    return descriptor


def connect(path: Path) -> sqlite3.Connection:
    """Open or make the file, as durable as an acknowledged commit must be. Raises as `unusable`."""
    # The writer's thread takes the connection over from the one that opened it: never both at once.
    try:
        connection = sqlite3.connect(
            path, check_same_thread=False, isolation_level="IMMEDIATE", timeout=5.0
        )
    except sqlite3.DatabaseError as error:
        raise unusable(path.parent, error) from error
    try:
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {setting}")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise unusable(path.parent, error) from error
    return connection


def unusable(directory: Path, error: sqlite3.Error) -> CkptError:
    """A catalog that is damaged is another thing than one that its disk keeps from being used."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return NoSpace(f"no room for the catalog in {directory}: {error}", hint="make room there")
    if code in _KEPT_FROM_USE:
        return Unavailable(
            f"the catalog in {directory} cannot be used: {error}",
            hint="look at the disk, its permissions, and who else has the file open",
        )
    return Corrupt(
        f"the catalog in {directory} is unreadable: {error}",
        hint=f"make it again from the targets: ckpt catalog rebuild {directory}"
        " (with --targets where they run on other machines)",
    )
