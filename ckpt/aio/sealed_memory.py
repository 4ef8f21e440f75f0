"""Memory that processes of one host share: a memfd of a size that nobody can change.

Huge pages: a memfd takes them by itself only where `transparent_hugepage/shmem_enabled` says so,
which is `never` by default. MADV_COLLAPSE (Linux 6.1) gives them regardless and needs no right, but
the mapping's address must be a huge page's. A kernel without it, or memory in pieces too small,
leaves small pages, which do as well. One huge page that is dear (`first_touch` knows why) makes all
that follow small.

Sketch, CPU s/GB on this class of machine, 4 KiB pages and 2 MiB: allocating and mapping 0.47 and
0.09, O_DIRECT from or into it, which pins each page, 0.06 and 0.02, copies 0.09 and 0.08.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import Final

from ckpt.base.units import MiB, align_down

HUGE_PAGE_BYTES: Final = 2 * MiB
DEAR_NS: Final = 1_000_000
"""CPU time of one huge page from which on small ones are cheaper: they take 650 us."""
_MADV_REMOVE: Final = 9
_MADV_POPULATE_WRITE: Final = 23
_MADV_COLLAPSE: Final = 25
_MAP_FIXED: Final = 0x10
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memory(name: str, size: int, *, present: bool) -> tuple[int, memoryview]:
    """A memfd of `size` bytes whose size cannot change, and a writable mapping of it.

    `present`: every page is allocated now, in huge pages where there are any. Raises OSError where
    there is no memory.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        view = mapped(descriptor, size)
        if present:
            _fill(descriptor, view)
        return descriptor, view
    except OSError:
        os.close(descriptor)
        raise


def mapped(descriptor: int, size: int, *, writable: bool = True) -> memoryview:
    """The first `size` bytes of a memfd, mapped where huge pages can be. Raises OSError.

    It goes with the last view of it.
    """
    # The memfd takes the place of anonymous memory, whose owner unmaps both: mmap.mmap itself
    # knows no addresses.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    place = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    start = -address % HUGE_PAGE_BYTES
    protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _mmap(address + start, max(size, 1), protection, flags, descriptor, 0) != address + start:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    view = memoryview(place)[start : start + size]
    return view if writable else view.toreadonly()


def populate(view: memoryview) -> None:
    """Fault in all pages of what `mapped` gave, writable; without the interpreter's lock."""
    advise(view, _MADV_POPULATE_WRITE, len(view))


def discard(view: memoryview) -> None:
    """Give all pages of what `mapped` gave, writable, back to the system: they read as zeros."""
    advise(view, _MADV_REMOVE, len(view))


def _fill(descriptor: int, view: memoryview) -> None:
    """Allocate all its pages, in huge ones while these are cheap. Raises OSError."""
    for offset in range(0, align_down(len(view), HUGE_PAGE_BYTES), HUGE_PAGE_BYTES):
        if _collapse_ns(view[offset : offset + HUGE_PAGE_BYTES]) >= DEAR_NS:
            break
    # What did not collapse, for whatever reason.
    os.posix_fallocate(descriptor, 0, len(view))
    populate(view)


def _collapse_ns(part: memoryview) -> int:
    """One huge page: its CPU time, in which waiting for a core does not count."""
    begin = time.thread_time_ns()
    part[0] = 0  # Only what has a page in it collapses.
    advise(part, _MADV_COLLAPSE, len(part))
    return time.thread_time_ns() - begin


def advise(view: memoryview, advice: int, size: int) -> None:
    """Advice for the first `size` bytes, given without the interpreter's lock. A kernel that does
    not know it says EINVAL, and does without."""
    _madvise(ctypes.addressof(ctypes.c_char.from_buffer(view)), size, advice)


def _function(name: str, *kinds: type, answer: type) -> Callable[..., int]:
    """Of the C library; it runs without the interpreter's lock."""
    function: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes, function.restype = kinds, answer  # type: ignore[attr-defined]
    return function


_mmap: Final = _function("mmap", c_void_p, c_size_t, c_int, c_int, c_int, c_long, answer=c_void_p)
_madvise: Final = _function("madvise", c_void_p, c_size_t, c_int, answer=c_int)
