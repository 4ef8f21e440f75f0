"""Perform the disk actions that a target's machine asks for, on whatever Disk there is."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from typing import Final

from ckpt.aio.disk import Disk
from ckpt.protocol.events import Buffer
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    DiskFailed,
    Preallocate,
    ProbeFile,
    ReadAt,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteAt,
)


def perform(disk: Disk, action: DiskAction, now_us: int) -> DiskDone | DiskFailed:
    """Do one action at once. Removing what is not there counts as done."""
    data: Buffer = b""
    try:
        match action:
            case WriteAt(file=file, offset=offset, data=source):
                disk.write_at(file, offset, source)
            case ReadAt(file=file, offset=offset, length=length, at_rest=at_rest):
                data = disk.read_at(file, offset, length, at_rest=at_rest)
            case SyncFile(file=file):
                disk.sync_file(file)
            case RenameFile(old=old, new=new):
                disk.rename_file(old, new)
            case SyncDirectory(directory=directory):
                disk.sync_directory(directory)
            case Preallocate(file=file, bytes_count=bytes_count):
                disk.preallocate(file, bytes_count)
            case TruncateFile(file=file, bytes_count=bytes_count):
                disk.truncate_file(file, bytes_count)
            case RemoveFile(file=file):
                with contextlib.suppress(FileNotFoundError):
                    disk.remove_file(file)
            case ProbeFile(file=file, data=wanted):
                _probe(disk, file, wanted)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        text = os.strerror(error.errno or errno.EIO)
        return DiskFailed(now_us, action.op, name, text, _KINDS[type(action)])
    return DiskDone(now_us, action.op, data)


_KINDS: Final[Mapping[type[DiskAction], str]] = {
    WriteAt: "write", TruncateFile: "write", ReadAt: "read", SyncFile: "sync",
    SyncDirectory: "sync", Preallocate: "create", RenameFile: "create", RemoveFile: "remove",
    ProbeFile: "probe",
}  # fmt: skip


def _probe(disk: Disk, file: str, wanted: bytes) -> None:
    """A small file's whole life. Raises OSError, EIO also for what does not read back the same."""
    try:
        disk.write_at(file, 0, wanted)
        disk.sync_file(file)
        found = disk.read_at(file, 0, len(wanted))
        same = bytes(found) == wanted
        disk.release(found)
        if not same:
            raise OSError(errno.EIO, "it does not read back what was written")
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove_file(file)
        raise
    disk.remove_file(file)
