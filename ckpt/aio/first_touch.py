"""Memory that a load fills for the first time, touched ahead of the bytes.

The first touch of new memory costs more than what is read into it. Huge pages take a quarter of the
time of small ones, but not always: in a virtual machine whose host takes free memory back ("free
page reporting"), whole free huge pages are what the host has taken, and having one again costs ten
times what small pages of memory that was in use just before cost. No setting says which it is, and
it changes within seconds: so it is measured, page by page.

Sketch, CPU s/GB, the host's memory there and taken back: huge pages 0.09 and up to 2.6; small ones
0.32 (0.42 by a fault for each) and 0.5 to 2.4.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import time
from contextlib import suppress
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ckpt.aio.sealed_memory import DEAR_NS, HUGE_PAGE_BYTES, advise, populate
from ckpt.base.units import KiB, MiB

AnyArray = npt.NDArray[np.generic]

FRESH_BYTES_MIN: Final = 4 * MiB
"""Arrays below are the allocator's: a huge page would belong to others as well."""
TOUCHED_BYTES_MIN: Final = 512 * KiB
"""Arrays below are touched as they are filled: with 128 KiB each, nothing was won."""
_MADV_HUGEPAGE: Final = 14
_MADV_NOHUGEPAGE: Final = 15


class FirstTouch:
    """I make arrays and, while entered, touch their memory in the order in which I made them.

    May be entered again, for the arrays made since.
    """

    def __init__(self) -> None:
        #: Whole pages, and whether they may be huge.
        self._made: list[tuple[memoryview, bool]] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> AnyArray:
        """A C-contiguous, writable array, not filled."""
        size = math.prod(shape) * dtype.itemsize
        if size < FRESH_BYTES_MIN:
            array = np.empty(shape, dtype)
            if size >= TOUCHED_BYTES_MIN:
                self._made.append((_whole_pages(array), False))
            return array
        view = _fresh(size)
        self._made.append((view, True))
        return np.frombuffer(view, np.uint8).view(dtype).reshape(shape)

    def __enter__(self) -> Self:
        # For less no thread is worth its start.
        if sum(len(view) for view, _ in self._made) >= FRESH_BYTES_MIN:
            self._is_over.clear()
            self._thread = threading.Thread(
                target=self._touch, name="ckpt-first-touch", daemon=True
            )
            try:
                # Without it the memory is touched as it is filled.
                with suppress(RuntimeError):
                    self._thread.start()
            except BaseException:  # A Ctrl-C: nobody will leave what was not entered.
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None
        self._made.clear()

    def _touch(self) -> None:
        huge = True
        for view, is_fresh in self._made:
            for start in range(0, len(view), HUGE_PAGE_BYTES):
                if self._is_over.is_set():
                    return
                part = view[start : start + HUGE_PAGE_BYTES]
                if is_fresh:
                    huge = _touch(part, huge=huge)
                else:
                    populate(part)


class TouchedMemory:
    """I make memory that is touched, in huge pages while they are cheap. From any thread."""

    def __init__(self) -> None:
        self._huge = True

    def make(self, size: int) -> memoryview:
        """So many bytes, FRESH_BYTES_MIN at least."""
        view = _fresh(size)
        for start in range(0, size, HUGE_PAGE_BYTES):
            self._huge = _touch(view[start : start + HUGE_PAGE_BYTES], huge=self._huge)
        return view


def _fresh(size: int) -> memoryview:
    """Private memory from a huge page's address on, in small pages until somebody says else."""
    place = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(place)) % HUGE_PAGE_BYTES
    view = memoryview(place)[start : start + size]
    advise(view, _MADV_NOHUGEPAGE, size)
    return view


def _whole_pages(array: AnyArray) -> memoryview:
    """Those that are the array's alone."""
    start, size = array.ctypes.data, array.nbytes
    view = array.reshape(-1).view(np.uint8).data
    return view[-start % mmap.PAGESIZE : size - (start + size) % mmap.PAGESIZE]


def _touch(part: memoryview, *, huge: bool) -> bool:
    """Touch it, whole in a huge page if these are cheap: whether they are, as far as known now."""
    if huge and len(part) == HUGE_PAGE_BYTES:
        return _touch_huge(part) < DEAR_NS
    populate(part)
    return huge


def _touch_huge(part: memoryview) -> int:
    """CPU time, ns: what the host does to have the memory counts, waiting for a core does not."""
    advise(part, _MADV_HUGEPAGE, len(part))
    begin = time.thread_time_ns()
    populate(part)
    return time.thread_time_ns() - begin
