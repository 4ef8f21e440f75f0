"""A file that is there whole or not at all: written aside, synced, renamed."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from ckpt.aio.durable import make_directories, sync_names
from ckpt.base.errors import Refused
from ckpt.format.checksum import Buffer


class WholeFile:
    """A file that stays only if `complete` was called, however the block was left."""

    def __init__(self, path: Path) -> None:
        """Raises Refused for what is there and is no file: a rename would replace it, for root even
        /dev/null.
        """
        if path.exists() and not path.is_file():
            raise Refused(f"{path} is there and is no file: only a file is replaced")
        self.path = path
        self._aside = path.with_name(f".{path.name}.part-{os.getpid()}")

    def __enter__(self) -> Self:
        make_directories(self.path.parent)
        self._file = self._aside.open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._aside.unlink(missing_ok=True)

    def write(self, data: Buffer) -> None:
        """Append."""
        self._file.write(data)

    def finish(self) -> None:
        """Nothing more is written: make it durable, aside."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def complete(self) -> None:
        """Make it visible, durable before and after."""
        if not self._file.closed:
            self.finish()
        self._aside.rename(self.path)
        sync_names(self.path.parent)
