"""How much of a file the kernel holds in memory, seen from outside."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from ckpt.aio.lending import address_of
from ckpt.base.limits import PAGE_BYTES


def pages_cached(path: Path) -> int:
    """Pages of the file that are in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // PAGE_BYTES)
        resident = (ctypes.c_ubyte * pages)()
        with memoryview(mapped) as view:
            address = ctypes.c_void_p(address_of(view))
            assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(mapped)), resident) == 0
        return sum(each & 1 for each in resident)


def forget_cached(path: Path) -> bool:
    """Whether the file system let them go; one that is memory itself cannot."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return pages_cached(path) == 0
