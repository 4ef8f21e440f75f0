"""What a target asks of its disk is done; a probe tells whether the device takes writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpt.aio.disk import SMALL_READ_BYTES, RealDisk
from ckpt.aio.disk_actions import perform
from ckpt.protocol.events import Buffer
from ckpt.protocol.target.disk_events import (
    DiskDone,
    DiskFailed,
    ProbeFile,
    SyncDirectory,
    SyncFile,
    WriteAt,
)

WRITTEN = b"what was written"


def failure(disk: RealDisk, operation: int, data: bytes = WRITTEN) -> DiskFailed:
    """Of a probe, which leaves no file and no memory of the pool."""
    failed = perform(disk, ProbeFile(operation, "probe", data), 5)
    assert isinstance(failed, DiskFailed)
    assert (failed.op, failed.kind) == (operation, "probe")
    assert disk.list_directory("") == []
    assert disk.pool_used_bytes == 0
    return failed


@pytest.mark.parametrize("data", [WRITTEN, WRITTEN * SMALL_READ_BYTES])
def test_a_probe_that_reads_back_something_else_has_failed(tmp_path: Path, data: bytes) -> None:
    """As of a device that says that it wrote."""
    lies = [True]

    def write(descriptor: int, data: Buffer, offset: int) -> int:
        return os.pwrite(descriptor, bytes(len(data)) if lies else data, offset)

    disk = RealDisk(tmp_path, write=write)
    assert failure(disk, 1, data).errno_name == "EIO"
    lies.clear()
    assert perform(disk, ProbeFile(2, "probe", data), 6) == DiskDone(6, 2)
    assert disk.list_directory("") == []
    disk.close()


def test_a_probe_whose_sync_fails_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is synced is what it wrote."""
    sizes: list[int] = []

    def fails(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        raise OSError(errno.EDQUOT, "no room for it after all")

    monkeypatch.setattr(os, "fsync", fails)
    disk = RealDisk(tmp_path)
    assert failure(disk, 3).errno_name == "EDQUOT"
    assert sizes == [len(WRITTEN)]
    disk.close()


def test_what_a_target_asks_to_be_synced_is_synced_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    disk = RealDisk(tmp_path)
    disk.make_directory("a")
    monkeypatch.setattr(os, "fsync", recorded)
    assert perform(disk, WriteAt(1, "a/x", 0, WRITTEN), 5) == DiskDone(5, 1)
    assert perform(disk, SyncFile(2, "a/x"), 5) == DiskDone(5, 2)
    assert perform(disk, SyncDirectory(3, "a"), 5) == DiskDone(5, 3)
    assert synced == [f"{tmp_path}/a/x", f"{tmp_path}/a"]
    disk.close()
