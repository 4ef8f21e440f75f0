"""`python -m ckptbench.bench_target …`: the daemon of `ckptd target` itself, with a disk that is
watched.

Every file that reaches `columns/`, and every sync of that directory, is noted with the monotonic
clock in the file that $CKPTBENCH_OBSERVED names: a column is sealed when the sync after its
rename is done. So the clock of a burst stops at the last seal and not at the commit that follows.

With CKPTBENCH_DISCARD=1 fragments are dropped after the daemon has verified them, and nothing is
preallocated, unless the file $CKPTBENCH_KEEP exists: that is how a burst is measured without a
disk, and how the byte compare at its end still has something to read.

The file that $CKPTBENCH_SLOW names says how many times as long the disk takes: whoever writes there
slows a real device under a daemon that runs.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Final

import ckptd.target.daemon
from ckpt.aio.collector import end_uncollected
from ckpt.aio.disk import DiskSpace, RealDisk
from ckpt.base.units import KiB, TiB
from ckpt.format.checksum import Buffer
from ckpt.protocol.target.core import COLUMNS

OBSERVED_NAME: Final = "CKPTBENCH_OBSERVED"
DISCARD_NAME: Final = "CKPTBENCH_DISCARD"
KEEP_NAME: Final = "CKPTBENCH_KEEP"
SLOW_NAME: Final = "CKPTBENCH_SLOW"

FRAGMENT_BYTES_MIN: Final = 64 * KiB
"""Smaller writes are headers, trailers and documents (or the last fragments of a payload): these
are kept.
"""


_SLOWNESS: Final = struct.Struct("=d")


def write_slowness(path: Path, times: float) -> None:
    """For the process that has it mapped: 1.0 as fast as it is."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _SLOWNESS.pack(times), 0)
    finally:
        os.close(descriptor)


class WatchedDisk(RealDisk):
    """The real disk; I write one line when columns have become durable: nanoseconds and how
    many.
    """

    _renamed = 0
    _log = -1

    @cached_property
    def _slowness(self) -> mmap.mmap:
        """Looked at without a system call, so that a disk that is not slow pays nothing."""
        with open(os.environ[SLOW_NAME], "rb") as file:
            return mmap.mmap(file.fileno(), _SLOWNESS.size, access=mmap.ACCESS_READ)

    def _lag(self, begun_s: float) -> None:
        """What began then has taken as long as it does on a device that is so many times slower."""
        (times,) = _SLOWNESS.unpack_from(self._slowness)
        if times > 1.0:
            time.sleep((times - 1.0) * (time.perf_counter() - begun_s))

    def write_at(self, file: str, offset: int, data: Buffer) -> None:
        begun_s = time.perf_counter()
        super().write_at(file, offset, data)
        self._lag(begun_s)

    def sync_file(self, file: str) -> None:
        begun_s = time.perf_counter()
        super().sync_file(file)
        self._lag(begun_s)

    def rename_file(self, old: str, new: str) -> None:
        begun_s = time.perf_counter()
        super().rename_file(old, new)
        self._lag(begun_s)
        if new.startswith(f"{COLUMNS}/"):
            self._renamed += 1

    def sync_directory(self, directory: str) -> None:
        renamed, begun_s = self._renamed, time.perf_counter()
        super().sync_directory(directory)
        self._lag(begun_s)
        if directory == COLUMNS and renamed:
            self._renamed -= renamed
            if self._log < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._log = os.open(os.environ[OBSERVED_NAME], flags, 0o600)
            os.write(self._log, b"%d %d\n" % (time.monotonic_ns(), renamed))


class DiscardingDisk(WatchedDisk):
    """I keep names, headers and trailers; fragments go nowhere.

    Whether a file's fragments are kept is asked once, with its first: a look for each would be
    counted as the daemon's work.
    """

    @cached_property
    def _kept(self) -> dict[str, bool]:
        """By file that is being written."""
        return {}

    def preallocate(self, file: str, bytes_count: int) -> None:
        super().preallocate(file, 0)
        if bytes_count:
            os.truncate(self._path(file), bytes_count)

    def write_at(self, file: str, offset: int, data: Buffer) -> None:
        if len(data) < FRAGMENT_BYTES_MIN or self._keeps(file):
            super().write_at(file, offset, data)

    def rename_file(self, old: str, new: str) -> None:
        super().rename_file(old, new)
        self._kept.pop(old, None)

    def _keeps(self, file: str) -> bool:
        if file not in self._kept:
            self._kept[file] = os.path.exists(os.environ[KEEP_NAME])
        return self._kept[file]

    def space(self) -> DiskSpace:
        return DiskSpace(TiB, TiB)


def read_observed(path: Path) -> list[tuple[int, int]]:
    """(monotonic nanoseconds, columns made durable) in order; empty before the first."""
    if not path.exists():
        return []
    lines = (line.split() for line in path.read_text().splitlines())
    return [(int(when), int(count)) for when, count in lines]


def main() -> int:
    """`ckptd target` with the watched disk in the place of the real one."""
    end_uncollected()
    disk = DiscardingDisk if os.environ.get(DISCARD_NAME) == "1" else WatchedDisk
    # A class is not assigned to otherwise.
    setattr(ckptd.target.daemon, "RealDisk", disk)  # noqa: B010
    return ckptd.target.daemon.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
