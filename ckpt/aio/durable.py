"""Small files and names that are there after a power loss."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_NOTHING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_UNSYNCED: Final = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP)


def sync_directory(directory: Path | str) -> None:
    """What was made, renamed or linked in it stays so."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_names(directory: Path) -> None:
    """The same of a directory of the user's, as far as it can be had: what may be written and not
    be read cannot be opened for it, and some file systems sync no directory.
    """
    try:
        sync_directory(directory)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise


def is_there(path: Path) -> bool:
    """Whether something has that name. Raises OSError where the device does not say: what is made
    because nothing seemed to be there would take its place. Path.exists says no then, from Python
    3.14 on.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return False
    except ValueError:  # No file has such a name.
        return False
    return True


def make_directories(directory: Path, mode: int = 0o777) -> list[Path]:
    """Make it, with what is missing above it, unless it is there. What is made stays, each.

    Returns what was missing, the outermost first.

    Raises OSError, FileExistsError where something else has the name.
    """
    missing = []
    for one in (directory, *directory.parents):
        if is_there(one):
            break
        missing.append(one)
    for one in reversed(missing):
        with suppress(FileExistsError):
            one.mkdir(mode)
        sync_names(one.parent)
    directory.mkdir(mode, exist_ok=True)
    return missing[::-1]


def remove_empty(made: Sequence[Path]) -> None:
    """Take away what `make_directories` made and nobody has put anything into."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def sync_tree(directory: Path) -> None:
    """Every file and directory in it, and itself, as they are now. Raises OSError."""
    for folder, _, files in os.walk(directory):
        for name in files:
            _sync(Path(folder, name), os.O_RDONLY)
        sync_names(Path(folder))


def write_aside(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically and durably: aside, sync, rename, sync the directory.

    Raises OSError; then the file is as it was, and nothing is left aside.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _sync(path: Path | str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
