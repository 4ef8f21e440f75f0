"""What the thread that syncs answers the loop, and when it says it was done."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ckpt.aio.clock import now_us
from ckpt.aio.disk import RealDisk
from ckpt.base.limits import PAGE_BYTES
from ckpt.protocol.target.disk_events import DiskDone, DiskFailed, ReadAt, SyncFile
from ckptd.target.disk_worker import DiskWorker


class SlowDisk(RealDisk):
    """Each sync says when it was done."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.synced_us: list[int] = []

    def sync_file(self, file: str) -> None:
        began = now_us()
        super().sync_file(file)
        while now_us() - began < 2000:
            super().sync_file(file)
        self.synced_us.append(now_us())


async def answers_of(disk: RealDisk, *actions: SyncFile | ReadAt) -> list[DiskDone | DiskFailed]:
    """Performed by a worker, in order."""
    found: list[DiskDone | DiskFailed] = []
    worker = DiskWorker(disk, found.append)
    for action in actions:
        worker.put(action)
    await worker.rest()
    worker.end()
    return found


def test_an_answer_is_of_when_it_was_done(tmp_path: Path) -> None:
    """A machine that hears of a slow sync as of its begin takes it for a quick one."""
    (tmp_path / "x").write_bytes(bytes(PAGE_BYTES))
    disk = SlowDisk(tmp_path)
    done, failed = asyncio.run(answers_of(disk, SyncFile(1, "x"), ReadAt(2, "none", 0, PAGE_BYTES)))
    assert isinstance(done, DiskDone)
    assert isinstance(failed, DiskFailed)
    assert disk.synced_us[0] <= done.now_us <= failed.now_us
    disk.close()
