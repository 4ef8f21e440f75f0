"""Who serves a target's directory? One process: it holds `lock`, in which its number stands.

A device that has become read-only is served all the same, since what it holds can be read: the lock
that an earlier process has made there can be held as it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.disk import leads_to
from ckpt.base.errors import Busy
from ckptd.directory import open_lock, take_lock

LOCK_NAME: Final = "lock"


class DirectoryLock:
    """I hold the lock until I am closed."""

    def __init__(self, directory: Path) -> None:
        """Raises Busy when another process holds it; Refused, NoSpace where none can be made."""
        self._path = directory / LOCK_NAME
        self._descriptor = _opened(self._path)
        try:
            take_lock(self._descriptor, self._path)
        except BlockingIOError:
            os.close(self._descriptor)
            raise Busy(
                f"another process serves {directory}",
                hint="one `ckptd target` per directory; stop the other or name another directory",
            ) from None
        with suppress(OSError):  # It is for people: a full or read-only device does without.
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def is_in_place(self) -> bool:
        """Whether the directory's name leads to what is locked: not once it was removed or moved,
        or something is mounted over it.
        """
        return leads_to(self._path, self._descriptor)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def close(self) -> None:
        os.close(self._descriptor)


def _opened(path: Path) -> int:
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        if is_read_only:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # Not there, or not to be opened: the next line says why.
        return open_lock(path)
    return open_lock(path)
