"""Is the directory still there that a target began in?

One that was removed or moved under its process, or over which something was mounted, has nothing
that the target said it has. Its process would go on to answer for it, and nobody would make again
what is gone: so it ends. Started again it knows what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ckpt.aio.disk import DirectoryLock
from ckpt.base.errors import CkptError
from ckptd.log import Reporter
from ckptd.target.identity import FILE_NAME

LOOK_S: Final = 1.0


class DirectoryWatch:
    """I look at one directory, on the loop's thread. After the daemon has stopped, `check` raises
    the reason if I stopped it.
    """

    def __init__(
        self, lock: DirectoryLock, directory: Path, report: Reporter, stop: Callable[[], None]
    ) -> None:
        self._lock = lock
        self._directory = directory
        self._report = report
        self._stop = stop
        self._next: asyncio.TimerHandle | None = None
        self._why: CkptError | None = None

    def start(self) -> None:
        self._next = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def check(self) -> None:
        """Raises CkptError if the directory was the reason to stop."""
        if self._why is not None:
            raise self._why

    def _look(self) -> None:
        if self._lock.is_in_place():
            self.start()
            return
        is_alone = not self._lock.path.exists() and (self._directory / FILE_NAME).exists()
        self._why = _unlocked(self._lock.path) if is_alone else _gone(self._directory)
        what = "lock is gone" if is_alone else "directory is gone"
        self._report("error", what, {"directory": str(self._directory)})
        self._stop()


def _unlocked(lock: Path) -> CkptError:
    return CkptError(
        f"{lock} was removed: a second process could serve the directory as well",
        hint="start the target again, which makes it again; all else is as it was",
    )


def _gone(directory: Path) -> CkptError:
    return CkptError(
        f"{directory} is gone: it was removed or moved, or something is mounted over it",
        hint="bring it back and start the target again; when it is gone for good start the target"
        " on an empty one, then: ckpt target replace ID",
    )
