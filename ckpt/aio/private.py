"""Files and directories of this user alone, whatever the umask: 0600 and 0700.

What names, catalogs and logs tell is nobody else's business, and who may write them may forge them.
A directory that a person has made may be a mount point, or have other uses: it stays as it is; what
we make in it is closed.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.durable import make_directories

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OTHERS: Final = 0o077


def keep_private() -> None:
    """Whatever this process and its children make from now on is for this user alone, also what a
    library makes, such as the files beside an SQLite database. Only a program's main calls this.
    """
    os.umask(_OTHERS)


def make_private_directory(directory: Path) -> None:
    """Make it, with what is missing above it, unless it is there. Raises OSError."""
    make_directories(directory, DIRECTORY_MODE)


def tighten(paths: Iterable[Path]) -> list[Path]:
    """Take from others what they may do with these, where they are this user's; those that were
    open. A symbolic link is left, with what it leads to.
    """
    tightened = []
    for path in paths:
        with suppress(OSError):  # It went meanwhile, or its file system knows no modes.
            found = path.lstat()
            ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
            if ours and found.st_mode & _OTHERS:
                path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
                tightened.append(path)
    return tightened


def user_name(number: int) -> str:
    """The name of a user, for people; the number where no list of users knows it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
