"""The catalog's file: who may open it, how, and what it means when it cannot be opened."""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there, sync_directory, write_aside
from ckpt.base.errors import Busy, CkptError, Corrupt, NoSpace, Refused, Unavailable
from ckpt.base.system_errors import system_error
from ckptd.catalog.room import remedy, shortage
from ckptd.directory import CLUSTER_FILE_NAME, CLUSTER_ID_NAME, make_directory, open_lock, take_lock

LOCK_NAME: Final = "coordinator.lock"

DAMAGED: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What is raised for a file that is no catalog; the second where SQLite's words are no text."""
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
        take_lock(descriptor, directory / LOCK_NAME)
    except BlockingIOError:
        os.close(descriptor)
        raise Busy(
            f"another coordinator works on {directory}",
            hint="end it first; to copy its catalog while it runs, ask it: ckpt catalog backup"
            " --store ckpt://HOST:PORT, without DIR",
        ) from None
    return descriptor


def kept_cluster(directory: Path, insisted: str | None) -> str | None:
    """The id of the cluster whose catalogs lie here; None when it is not known yet.

    Raises Refused when the caller insists on another one, and Corrupt for what is no id.
    """
    path = directory / CLUSTER_ID_NAME
    hint = f"put its own back, or run: {mending_command(directory)}"
    try:
        kept = path.read_bytes().strip().decode()
    except FileNotFoundError:
        return insisted
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        kept = ""
    if not kept:
        raise Corrupt(f"{path} is unreadable", hint=hint)
    if insisted is not None and kept != insisted:
        local = directory / CLUSTER_FILE_NAME
        changed = f"put back what was changed, {local} or {path}"
        raise Refused(
            f"{directory} is of cluster {kept}, not {insisted}",
            hint=changed if is_there(local) else hint,
        )
    return kept


def keep_cluster(directory: Path, cluster: str) -> None:
    """Durable on return, and written only where it is news. Raises Refused when it cannot be."""
    path = directory / CLUSTER_ID_NAME
    try:
        if not is_there(path) or path.read_bytes().strip() != cluster.encode():
            write_aside(path, f"{cluster}\n".encode())
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from None


def connect(path: Path) -> sqlite3.Connection:
    """Open or make the file, as durable as an acknowledged commit must be. Raises as `unusable`."""
    # The writer's thread takes the connection over from the one that opened it: never both at once.
    try:
        connection = sqlite3.connect(
            path, check_same_thread=False, isolation_level="IMMEDIATE", timeout=5.0
        )
    except DAMAGED as error:
        raise unusable(path.parent, error) from error
    try:
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {setting}")
    except DAMAGED as error:
        connection.close()
        raise unusable(path.parent, error) from error
    return connection


def copy_catalog(connection: sqlite3.Connection, path: Path) -> None:
    """A whole catalog in a file of its own, durable on return. Raises Refused, NoSpace, or as
    `unusable`.

    It appears under its name when it is complete; one that stands there is replaced.
    """
    make_directory(path.parent)
    aside = path.with_name(f"{path.name}.new")
    try:
        aside.unlink(missing_ok=True)
        os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection.execute("VACUUM INTO ?", (str(aside),))
        descriptor = os.open(aside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.rename(path)
        sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        if isinstance(error, sqlite3.DatabaseError):
            raise unusable(path.parent, error, what=str(path)) from error
        if isinstance(error, OSError):
            refused = Refused(f"cannot write {path}: {error.strerror}")
            known = system_error(f"cannot write {path}", error)
            raise (known if isinstance(known, NoSpace) else refused) from None
        raise


def unusable(directory: Path, error: Exception, *, what: str = "") -> CkptError:
    """The error that tells a damaged catalog from one that its disk keeps from being used, in one
    line: whoever asks why a daemon ended reads its last one.

    `what` names another file than the catalog in `directory`.
    """
    what = what or f"the catalog in {directory}"
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    text = " ".join(str(error).split())
    said = shortage(directory, error)
    if said is not None:
        return NoSpace(f"no room for {what}: {said.strerror}", hint=remedy(directory, said))
    if code in _KEPT_FROM_USE:
        return Unavailable(
            f"{what} cannot be used: {text}",
            hint="look at the disk, its permissions, and who else has the file open",
        )
    return Corrupt(
        f"{what} is unreadable: {text}",
        hint=f"run: {mending_command(directory)}",
    )


def mending_command(directory: Path, targets: str = "HOST:PORT ...") -> str:
    """Makes a catalog of what the targets hold, which `targets` names by their addresses.

    A local cluster is stopped first, and its targets are found by it. Elsewhere targets run on.
    """
    quoted = shlex.quote(str(directory.absolute()))
    if is_there(directory / CLUSTER_FILE_NAME):
        return f"ckpt local stop {quoted} && ckpt catalog rebuild {quoted}"
    return f"ckpt catalog rebuild {quoted} --targets '{targets}'"
