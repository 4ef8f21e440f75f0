"""Who writes here? A file aside that its writer holds locked: the lock ends with the process.

    .NAME.part     a file being written; .export.part: a whole folder is
                   A long name has its digest here instead
    locked         its writer lives: another one is refused
    not locked     what a killed one left: the next one writes over it

Where the file system has no locks (Lustre without -o flock), names are of one process each: two
exports do not mix their bytes, and what a killed one left stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from ckpt.aio.durable import make_directories, remove_empty
from ckpt.base.errors import Busy
from ckpt.format.checksum import xxh3_128

PART: Final = ".part"
FOLDER: Final = f".export{PART}"
CLAIM_TRIES: Final = 64
"""Claims that end between opening and locking them."""
_ASIDE_BYTES_MAX: Final = 246
"""Of 255 that a name may have; one that no lock holds gets nine more."""
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCKLESS: Final = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


def aside_of(path: Path) -> Path:
    """Where what becomes this file is written."""
    aside = f".{path.name}{PART}"
    if len(os.fsencode(aside)) > _ASIDE_BYTES_MAX:
        aside = f".{xxh3_128(os.fsencode(path.name)).hex()}{PART}"
    return path.with_name(aside)


class FileClaim:
    """A file of this process's alone, as long as `descriptor` is open."""

    def __init__(self, path: Path, what: Path, mode: int = 0o666) -> None:
        """`what`: what is written meanwhile. Raises Busy, OSError."""
        for _ in range(CLAIM_TRIES):
            self.descriptor = os.open(path, _OPEN, mode)
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self.descriptor)
                if error.errno in _LOCKLESS:
                    path.unlink(missing_ok=True)
                    path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
                    self.descriptor = os.open(path, _OPEN | os.O_EXCL, mode)
                    break
                if error.errno != errno.EWOULDBLOCK:
                    raise
                raise Busy(
                    f"another process is writing {what}",
                    hint="wait for its end, or name another place",
                ) from None
            if _is_at(self.descriptor, path):
                break
            os.close(self.descriptor)  # Its writer has just given it its name, or removed it.
        else:
            raise Busy(f"others who write {what} come and go", hint="try again")
        self.path = path


class FolderClaim:
    """A folder into which this process alone exports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Something of it is in the folder that would have to go; then the claim stays to say so.
        self._is_half = False

    def __enter__(self) -> Self:
        """Raises Busy, OSError."""
        self._made = make_directories(self._folder)
        self._claim = FileClaim(self._folder / FOLDER, self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._is_half:
                with suppress(OSError):
                    self.path.unlink(missing_ok=True)
                remove_empty(self._made)  # Nothing came of it.
        finally:
            os.close(self._claim.descriptor)

    @property
    def path(self) -> Path:
        """Of the claim itself, in the folder."""
        return self._claim.path

    @property
    def is_marked(self) -> bool:
        """Whether one that was killed had marked it."""
        return os.fstat(self._claim.descriptor).st_size > 0

    def mark(self) -> None:
        """Until `settle`, what is in the folder is a half of this export. Raises OSError."""
        os.pwrite(self._claim.descriptor, b"export\n", 0)
        os.fsync(self._claim.descriptor)
        self._is_half = True

    def settle(self) -> None:
        """It is whole, or all of it is gone."""
        self._is_half = False


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
