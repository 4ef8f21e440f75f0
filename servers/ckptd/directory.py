"""A daemon's own directory: made at its start, or why it cannot be."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.aio.private import make_private_directory, tighten, user_name
from ckpt.base.errors import CkptError, NoSpace, Refused
from ckpt.base.printable import UTF_8_HINT, printable
from ckpt.base.system_errors import LOCKS_REMEDY
from ckptd.log import Reporter

NAMES_SHOWN_MAX: Final = 8
TARGET_FILE_NAME: Final = "target.toml"
CLUSTER_FILE_NAME: Final = "cluster.toml"
"""Of the cluster of one machine, whose directory this is."""
CLUSTER_ID_NAME: Final = "cluster.id"
"""Beside a catalog, so that its loss is noticed: a new one is of the same cluster, and targets
prove it old. Without this file a new cluster would seem to begin.
"""
#: What only a coordinator makes in its directory, or a local cluster.
_COORDINATORS: Final = ("catalog.sqlite", "coordinator.lock", CLUSTER_FILE_NAME)
#: What daemons make in their directory. What lies deeper is inside directories of these names.
_OURS: Final = (
    *("catalog.sqlite*", CLUSTER_FILE_NAME, "ready.json", "metrics.token", "lock", "*.lock"),
    *(
        "backups",
        "backups/*",
        TARGET_FILE_NAME,
        "term",
        "catalog",
        "socket",
        "columns",
        "aside",
        "staging",
        "documents",
    ),
    *("logs", "logs/*.log", "targets", "targets/*"),
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def make_directory(directory: Path) -> None:
    """Make it for this user alone, with what stands above it, unless it is there. Raises Refused,
    NoSpace.
    """
    _check_text(directory)
    try:
        make_private_directory(directory)
    except OSError as error:
        raise _not_made(directory, error) from None


def check_owner(directory: Path) -> None:
    """Raises Refused where another user's daemon has begun: of what root makes there, this user
    could read nothing any more. Whose a new file is says the file system: some give all to one
    user.
    """
    check_open(directory)
    begun = [directory / name for name in (*_COORDINATORS, TARGET_FILE_NAME)]
    owners = {path.stat().st_uid for path in begun if is_there(path)}
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            ours = os.fstat(probe.fileno()).st_uid
    except OSError:  # Full, or it takes no writes, and is read all the same.
        ours = os.geteuid()
    if owners and ours not in owners:
        raise _of_another(directory, owners.pop(), ours)


def check_open(directory: Path) -> None:
    """Raises Refused where this user may not look for a file: it is another user's."""
    try:
        os.lstat(directory / TARGET_FILE_NAME)
    except PermissionError as error:
        nearest = next(one for one in (directory, *directory.parents) if os.path.lexists(one))
        owner, ours = nearest.lstat().st_uid, os.geteuid()
        if owner == ours:
            raise Refused(f"no access to {nearest}: {error.strerror}") from None
        raise _of_another(nearest, owner, ours) from None
    except OSError:
        return


def _of_another(directory: Path, owner: int, ours: int) -> Refused:
    name = user_name(owner)
    return Refused(
        f"{directory} belongs to user {name}, this is {user_name(ours)}",
        hint=f"run it as {name}; to hand it over, stop it and chown -R all of it",
    )


def is_coordinators(directory: Path) -> bool:
    """Whether a coordinator or a local cluster has begun there."""
    return any(os.path.lexists(directory / name) for name in _COORDINATORS)


def target_around(directory: Path) -> Path | None:
    """The nearest directory of a target: itself, or one that it is inside of."""
    place = directory.resolve()
    return next(
        (one for one in (place, *place.parents) if os.path.lexists(one / TARGET_FILE_NAME)), None
    )


def check_no_target(directory: Path) -> None:
    """Raises Refused where a coordinator or a local cluster would begin among a target's files.
    What has begun there under an earlier version goes on.
    """
    around = None if is_coordinators(directory) else target_around(directory)
    if around is not None:
        inside = "is" if around == directory.resolve() else f"is inside {around},"
        raise Refused(
            f"{directory} {inside} the directory of a target", hint="name a directory of its own"
        )


def _check_text(directory: Path) -> None:
    """Raises Refused for bytes that are no text here: peers are sent the path as text."""
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise Refused(
            f"the name of {printable(str(directory))} is no text in {sys.getfilesystemencoding()}",
            hint=UTF_8_HINT,
        ) from None


def close_to_others(directory: Path, report: Reporter) -> None:
    """Tighten what daemons before this one, with another umask, have left open in their directory,
    and say so. The directory itself is its owner's: only warned about where others can write.
    """
    opened = tighten(path for name in _OURS for path in directory.glob(name))
    if opened:
        names = " ".join(str(path.relative_to(directory)) for path in opened[:NAMES_SHOWN_MAX])
        text = "files were open to other users: they are this user's alone now"
        report("warning", text, {"directory": str(directory), "count": len(opened), "names": names})
    if directory.stat().st_mode & 0o022:
        text = "other users can write into the directory: chmod 700 it"
        report("warning", text, {"directory": str(directory)})


def open_lock(path: Path) -> int:
    """The descriptor of a file that exists to be locked. Raises Refused, NoSpace."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_made(path, error) from None


def take_lock(descriptor: int, path: Path) -> None:
    """Hold the lock while this is open. Raises BlockingIOError where somebody else does, Refused
    where nobody can.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        os.close(descriptor)
        raise Refused(f"cannot lock {path}: {error.strerror}", hint=LOCKS_REMEDY) from None


def _not_made(path: Path, error: OSError) -> CkptError:
    reason = "a file is there" if isinstance(error, FileExistsError) else error.strerror
    return (NoSpace if error.errno in _FULL else Refused)(f"cannot make {path}: {reason}")
