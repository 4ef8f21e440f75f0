"""A file that is there whole or not at all: written aside, synced, renamed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from ckpt.aio.durable import is_there, make_directories, remove_empty, sync_names
from ckpt.base.errors import Refused
from ckpt.format.checksum import Buffer
from ckpt_client.exchange.claims import FileClaim, aside_of


class WholeFile:
    """A file that stays only if `complete` was called, however the block was left."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        """Raises Refused for what is there and is no file: a rename would replace it, for root even
        /dev/null.
        """
        if is_there(path) and not path.is_file():
            raise Refused(f"{path} is there and is no file: only a file is replaced")
        self.path = path
        self._mode = mode
        self._is_named = False

    def __enter__(self) -> Self:
        """Raises Busy while another process writes it."""
        self._made = make_directories(self.path.parent)
        claim = FileClaim(aside_of(self.path), self.path, self._mode)
        self._aside = claim.path
        self._file = os.fdopen(claim.descriptor, "wb")
        self._file.truncate(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_named:
            return
        self._aside.unlink(missing_ok=True)
        with suppress(OSError):  # A full disk, which does not take the last bytes either.
            self._file.close()
        remove_empty(self._made)

    def write(self, data: Buffer) -> None:
        """Append."""
        self._file.write(data)

    def finish(self) -> None:
        """Nothing more is written: make it durable, aside. From here on only a FolderClaim keeps
        others away from it.
        """
        self._sync()
        self._file.close()

    def complete(self) -> None:
        """Make it visible, durable before and after."""
        if not self._file.closed:
            self._sync()
        self._aside.rename(self.path)
        self._is_named = True
        self._file.close()
        sync_names(self.path.parent)

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
