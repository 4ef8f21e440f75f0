"""Whole files around the page cache: what is written or proved once needs no copy in it.

    part, part, ... --copied--> block (aligned, used again) --O_DIRECT--> device
    device --O_DIRECT--> block --CRC-32--> checksum

The first touch of a page of the cache costs 1.7 to 2.5 CPU s/GB on a virtual machine, a copy into a
warm block 0.1. Where the file system takes no O_DIRECT, the same goes through the cache.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from ckpt.aio.slots import touched_memory
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB, align_down, align_up
from ckpt.format.checksum import Buffer, crc32

BLOCK_BYTES: Final = 4 * MiB


class AlignedBlock:
    """Aligned memory of BLOCK_BYTES."""

    def __init__(self) -> None:
        self.memory = np.frombuffer(touched_memory(BLOCK_BYTES), np.uint8)
        self.view = self.memory.data


class Blocks:
    """A few blocks that are lent and come back; any thread."""

    def __init__(self) -> None:
        self._free: list[AlignedBlock] = []

    def take(self) -> AlignedBlock:
        try:
            return self._free.pop()
        except IndexError:
            return AlignedBlock()

    def give_back(self, block: AlignedBlock) -> None:
        self._free.append(block)


class DirectWriter:
    """I append to an open, empty file; I own a block until `close`."""

    def __init__(self, descriptor: int, blocks: Blocks) -> None:
        """Raises MemoryError, OSError where there is no memory for a block."""
        self._descriptor = descriptor
        self._blocks = blocks
        self._block = blocks.take()
        self._filled = 0

    def write(self, data: Buffer) -> None:
        """Raises OSError."""
        source = np.frombuffer(data, np.uint8)
        while len(source):
            count = min(len(source), BLOCK_BYTES - self._filled)
            self._block.memory[self._filled : self._filled + count] = source[:count]
            self._filled += count
            source = source[count:]
            if self._filled == BLOCK_BYTES:
                set_direct(self._descriptor, True)
                self._flush()

    def finish(self) -> None:
        """Write the rest, whose length is no multiple of a page, through the cache."""
        set_direct(self._descriptor, False)
        self._flush()

    def close(self) -> None:
        """Close the file; nothing more can be written."""
        self._blocks.give_back(self._block)

    def _flush(self) -> None:
        view = self._block.view[: self._filled]
        self._filled = 0
        while len(view):
            try:
                written = os.write(self._descriptor, view)
            except OSError:
                if not is_direct(self._descriptor):
                    raise
                set_direct(self._descriptor, False)  # This file system wants another alignment.
                continue
            view = view[written:]
            if written % PAGE_BYTES:
                set_direct(self._descriptor, False)


def checksum(path: Path, blocks: Blocks, wait_turn: Callable[[], None]) -> tuple[int, int]:
    """Length and CRC-32 of a file, from the device. Raises OSError."""
    block = blocks.take()
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        set_direct(descriptor, True)
        length = crc = 0
        while True:
            wait_turn()
            try:
                count = os.preadv(descriptor, [block.view], length)
            except OSError:
                if not is_direct(descriptor):
                    raise
                set_direct(descriptor, False)
                continue
            crc, length = crc32(block.view[:count], crc), length + count
            if not count:
                return length, crc
            if count % PAGE_BYTES:
                set_direct(descriptor, False)  # The end: what comes, if anything, is not aligned.
    finally:
        blocks.give_back(block)
        if descriptor >= 0:
            os.close(descriptor)


def read_range(path: Path, start: int, end: int) -> memoryview:
    """Bytes [start, end) of a file, fewer when it ends before, in memory of their own. Raises
    OSError."""
    first, size = align_down(start, PAGE_BYTES), align_up(end, PAGE_BYTES)
    size -= first
    raw = np.empty(size + PAGE_BYTES, np.uint8)
    skipped = -raw.ctypes.data % PAGE_BYTES
    view = raw.data[skipped : skipped + size]
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_direct(descriptor, True)
        filled = 0
        while filled < end - first:
            try:
                count = os.preadv(descriptor, [view[filled:]], first + filled)
            except OSError:
                if not is_direct(descriptor):
                    raise
                set_direct(descriptor, False)
                continue
            if not count:
                break
            filled += count
            if count % PAGE_BYTES:
                set_direct(descriptor, False)
    finally:
        os.close(descriptor)
    return view[start - first : min(filled, end - first)].toreadonly()


def is_direct(descriptor: int) -> bool:
    """Whether the file bypasses the page cache."""
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def set_direct(descriptor: int, wanted: bool) -> None:
    """Bypass the page cache from now on, if the file system can, or use it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
