"""A small file that a target keeps beside its columns: written whole, the old one or the new one.

staging/NAME-N write, sync --rename--> NAME --sync of the directory--> it is on stable storage
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ckpt.protocol.target.core import Core
from ckpt.protocol.target.disk_events import (
    DiskFailed,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from ckpt.protocol.target.space import Reservations


class NoteFile:
    """I write one, one version at a time; the owner keeps what it says."""

    def __init__(self, core: Core, reservations: Reservations, file: str, what: str) -> None:
        """`what`: for people."""
        self._core = core
        self._reservations = reservations
        self._file = file
        self._what = what
        self.is_writing = False

    def write(self, data: bytes, then: Callable[[bool], None]) -> None:
        """`then` hears whether it is on stable storage. A failure is reported, and leaves no file
        on its way.
        """
        assert not self.is_writing
        self.is_writing = True
        aside = self._reservations.new_file(self._file)

        def written(failure: DiskFailed | None) -> None:
            self.is_writing = False
            if failure is not None:
                self._core.report("warning", f"{self._what} fails", error=failure.errno_name)
                self._core.chain([partial(RemoveFile, file=aside)], lambda _: None)
            then(failure is None)

        self._core.chain(
            [
                partial(WriteAt, file=aside, offset=0, data=data),
                partial(SyncFile, file=aside),
                partial(RenameFile, old=aside, new=self._file),
                partial(SyncDirectory, directory=""),
            ],
            written,
        )
