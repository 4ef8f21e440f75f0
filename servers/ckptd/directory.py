"""A daemon's own directory: made at its start, or why it cannot be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from ckpt.base.errors import CkptError, NoSpace, Refused

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def make_directory(directory: Path, *, mode: int = 0o777) -> None:
    """Make it, with what stands above it, unless it is there. Raises Refused, NoSpace."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(directory, error) from None


def open_lock(path: Path) -> int:
    """The descriptor of a file that exists to be locked. Raises Refused, NoSpace."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_made(path, error) from None


def _not_made(path: Path, error: OSError) -> CkptError:
    reason = "a file is there" if isinstance(error, FileExistsError) else error.strerror
    return (NoSpace if error.errno in _FULL else Refused)(f"cannot make {path}: {reason}")
