"""Is the directory still there that a target began in?

One that was removed or moved under its process, or over which something was mounted, has nothing
that the target said it has. Its process would go on to answer for it, and nobody would make again
what is gone: so it ends. Started again it knows what is there. So it does when one of the folders
of what it keeps went, and when its device neither takes nor gives anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.base.errors import CkptError
from ckpt.protocol.target.core import COLUMNS, DOCUMENTS
from ckptd.log import Reporter
from ckptd.target.directory_lock import DirectoryLock
from ckptd.target.identity import FILE_NAME

LOOK_S: Final = 1.0
FIRST_LOOK_S: Final = 0.05
FOLDERS: Final = (COLUMNS, DOCUMENTS)


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
        #: Which folder each was when it was seen first.
        self._folders: dict[str, int] = {}
        self._next: asyncio.TimerHandle | None = None
        self._why: CkptError | None = None
        #: Whether the device is; the target's machine says so once it is there.
        self._is_dead: Callable[[], bool] = lambda: False

    def ask(self, is_device_dead: Callable[[], bool]) -> None:
        """From now on look at that as well."""
        self._is_dead = is_device_dead

    def start(self) -> None:
        # Soon, until the target has made its folders: only what was seen can be missed.
        seen = len(self._folders) == len(FOLDERS)
        rest_s = LOOK_S if seen else FIRST_LOOK_S
        self._next = asyncio.get_running_loop().call_later(rest_s, self._look)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def check(self) -> None:
        """Raises CkptError if the directory was the reason to stop."""
        if self._why is not None:
            raise self._why

    def _look(self) -> None:
        if self._is_dead():
            self._why = _dead(self._directory)
            self._report("error", "device is dead", {"directory": str(self._directory)})
            self._stop()
            return
        if self._lock.is_in_place():
            gone = next(filter(self._has_gone, FOLDERS), None)
            if gone is None:
                self.start()
                return
            self._why = _folder_gone(self._directory / gone)
            self._report("error", "folder is gone", {"directory": str(self._directory / gone)})
            self._stop()
            return
        is_alone = not is_there(self._lock.path) and is_there(self._directory / FILE_NAME)
        self._why = _unlocked(self._lock.path) if is_alone else _gone(self._directory)
        what = "lock is gone" if is_alone else "directory is gone"
        self._report("error", what, {"directory": str(self._directory)})
        self._stop()

    def _has_gone(self, folder: str) -> bool:
        """Not before it was there; what the device does not say now is another's business."""
        try:
            number = (self._directory / folder).stat().st_ino
        except FileNotFoundError:
            return folder in self._folders
        except OSError:
            return False
        return self._folders.setdefault(folder, number) != number


def _dead(directory: Path) -> CkptError:
    return CkptError(
        f"the device of {directory} neither takes nor gives anything",
        hint="mend or replace it and start the target again; what it had is made again elsewhere",
    )


def _folder_gone(folder: Path) -> CkptError:
    return CkptError(
        f"{folder} is gone: it was removed or moved, or something is mounted over it",
        hint="bring it back if it is anywhere, and start the target again; what it had there is"
        " made again elsewhere",
    )


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
