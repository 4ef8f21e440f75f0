"""How fast is the device without us? O_DIRECT writes of new, preallocated files, synced once at
the end.

Our own writers (one thread for each file, `os.pwrite` without the interpreter's lock), or fio
with the psync engine when it is installed: the better of both is the bound, and the report says
which it was.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.units import MiB, align_up
from ckptbench.figures import gb_per_s

BLOCKS_BYTES: Final = (MiB, 4 * MiB)
FIO_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class DiskRate:
    """One way of writing, and how fast it was."""

    tool: str
    """`own` or `fio`."""
    block_bytes: int
    writers: int
    gb_per_s: float
    cpu_s_per_gb: float
    """Of the writing process; 0 for fio."""


def best_write(directory: Path, total_bytes: int, writers: int) -> DiskRate:
    """The fastest of 1 and 4 MiB blocks, one and `writers` writers, own and fio. Raises Refused
    without O_DIRECT.
    """
    found = [
        write_rate(directory, total_bytes, count, block)
        for block in BLOCKS_BYTES
        for count in sorted({1, writers})
    ]
    if shutil.which("fio"):
        found += [
            rate
            for block in BLOCKS_BYTES
            for count in sorted({1, writers})
            if (rate := _fio_rate(directory, total_bytes, count, block)) is not None
        ]
    return max(found, key=lambda rate: rate.gb_per_s)


def repeat_write(directory: Path, total_bytes: int, like: DiskRate) -> DiskRate:
    """The same way of writing once more."""
    if like.tool == "fio":
        rate = _fio_rate(directory, total_bytes, like.writers, like.block_bytes)
        if rate is not None:
            return rate
    return write_rate(directory, total_bytes, like.writers, like.block_bytes)


def write_rate(directory: Path, total_bytes: int, writers: int, block_bytes: int) -> DiskRate:
    """Write `total_bytes` over `writers` new files; preallocation and memory are not counted."""
    per_file = align_up(total_bytes // writers, block_bytes)
    paths = [directory / f"raw-{number}" for number in range(writers)]
    memory = mmap.mmap(-1, block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"\x5a" * block_bytes)
    descriptors: list[int] = []
    try:
        for path in paths:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT | os.O_CLOEXEC
            try:
                descriptors.append(os.open(path, flags, 0o600))
            except OSError as error:
                raise Refused(f"no O_DIRECT in {directory}: {error.strerror}") from None
            os.posix_fallocate(descriptors[-1], 0, per_file)
        wall_s, cpu = _write_all(descriptors, memoryview(memory), per_file)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        for path in paths:
            path.unlink(missing_ok=True)
    moved = per_file * writers
    return DiskRate("own", block_bytes, writers, gb_per_s(moved, wall_s), cpu / moved * 1e9)


def _write_all(descriptors: list[int], block: memoryview, per_file: int) -> tuple[float, float]:
    """Wall and CPU seconds of all writers together, from the moment that all stand ready."""
    gate = threading.Barrier(len(descriptors) + 1)

    def write(descriptor: int) -> None:
        gate.wait()
        for offset in range(0, per_file, len(block)):
            os.pwrite(descriptor, block, offset)
        os.fsync(descriptor)

    with ThreadPoolExecutor(len(descriptors)) as pool:
        jobs = [pool.submit(write, descriptor) for descriptor in descriptors]
        cpu = time.process_time()
        gate.wait()
        begun = time.monotonic()
        for job in jobs:
            job.result()
        return time.monotonic() - begun, time.process_time() - cpu


def _fio_rate(directory: Path, total_bytes: int, writers: int, block_bytes: int) -> DiskRate | None:
    """fio's figure for the same; None when it does not work here."""
    command = [
        "fio", "--name=raw", f"--directory={directory}", "--rw=write", "--direct=1",
        "--ioengine=psync", f"--bs={block_bytes}", f"--size={total_bytes // writers}",
        f"--numjobs={writers}", "--end_fsync=1", "--group_reporting", "--output-format=json",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=FIO_TIMEOUT_S, check=True)
        write = json.loads(done.stdout)["jobs"][0]["write"]
        return DiskRate("fio", block_bytes, writers, write["bw_bytes"] / 1e9, 0.0)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError):
        return None
    finally:
        for path in directory.glob("raw.*"):
            with suppress(OSError):
                path.unlink()


def write_file(path: Path, total_bytes: int) -> None:
    """A file of real blocks around the page cache, to be read back."""
    block = mmap.mmap(-1, MiB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(os.urandom(4096) * (MiB // 4096))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    try:
        for offset in range(0, total_bytes, MiB):
            os.pwrite(descriptor, block, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
