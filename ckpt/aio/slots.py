"""Memory that bulks land in: one mapping, handed out from a free list.

Goals: no first touch on the path of remote data (0.5 s/GB), page alignment for O_DIRECT, a bound on
what all peers together can make a daemon hold.

Plan: one private anonymous mapping with huge pages, cut into units; a slot is a run of units, found
first-fit among the free runs, which are kept in ascending order and merged when a slot comes back:
what is in use stays at the beginning, and of a pool that is not touched ahead the rest is never
backed by memory.

Invariants: free runs are disjoint, ascending and never adjacent; a unit is in exactly one free run
or one slot. Slots come from the free runs and never from an index that wraps: a ring slot reused
while an out-of-order completion still owned it corrupts silently.

Warning: who holds slots must give them back without waiting for further bulks, else a full pool
stays full. Credits keep that promise: never grant more than the pool holds.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from ckpt.base.limits import FRAME_BULK_BYTES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, MiB, align_up

SLOT_UNIT_BYTES: Final = 64 * KiB
_HUGE_PAGE_BYTES: Final = 2 * MiB


class Slot:
    """A piece of the pool; `view` is exactly what was asked for."""

    __slots__ = ("_first", "_pool", "_units", "view")

    def __init__(self, pool: SlotPool, first: int, units: int, view: memoryview) -> None:
        self._pool: SlotPool | None = pool
        self._first = first
        self._units = units
        self.view = view

    def release(self) -> None:
        """Give the memory back, exactly once, from any thread.

        Nobody may touch `view` afterwards.
        """
        pool, self._pool = self._pool, None
        assert pool is not None, "a slot is released once"
        pool.give_back(self._first, self._units)


class SlotPool:
    """I own `total_bytes` of memory. Slots may be taken and released from any thread.

    ahead: touch all of it now, else each page as it is first used.
    """

    def __init__(
        self, total_bytes: int, *, unit_bytes: int = SLOT_UNIT_BYTES, ahead: bool = False
    ) -> None:
        assert unit_bytes % PAGE_BYTES == 0
        assert total_bytes >= FRAME_BULK_BYTES_MAX, (
            "the largest bulk must fit, or its peer waits for ever"
        )
        self.unit_bytes = unit_bytes
        self.total_bytes = align_up(total_bytes, unit_bytes)
        self._memory = (touched_memory if ahead else untouched_memory)(self.total_bytes)
        self._view = memoryview(self._memory)
        self._lock = threading.Lock()
        #: (first unit, unit count) of what is free; ascending, never adjacent. Under the lock.
        self._free = [(0, self.total_bytes // unit_bytes)]
        #: Whom to tell that a slot came back; called on the releasing thread, without the lock.
        self._listeners: list[Callable[[], None]] = []

    def take(self, size: int) -> Slot | None:
        """A slot of `size` bytes (1 to FRAME_BULK_BYTES_MAX), or None when no free
        run is long enough.
        """
        assert 0 < size <= self.total_bytes
        units = -(-size // self.unit_bytes)
        with self._lock:
            for index, (first, count) in enumerate(self._free):
                if count >= units:
                    if count == units:
                        del self._free[index]
                    else:
                        self._free[index] = (first + units, count - units)
                    break
            else:
                return None
        start = first * self.unit_bytes
        return Slot(self, first, units, self._view[start : start + size])

    def give_back(self, first: int, units: int) -> None:
        """Only `Slot.release` calls this."""
        with self._lock:
            index = bisect_left(self._free, (first, 0))
            if index < len(self._free) and self._free[index][0] == first + units:
                units += self._free.pop(index)[1]
            if index > 0 and sum(self._free[index - 1]) == first:
                index -= 1
                first, before = self._free.pop(index)
                units += before
            self._free.insert(index, (first, units))
        for listener in self._listeners:
            listener()

    @property
    def free_bytes(self) -> int:
        """Bytes that no slot holds now."""
        with self._lock:
            return sum(count for _, count in self._free) * self.unit_bytes

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each release, on the releasing thread."""
        self._listeners = [*self._listeners, listener]

    def unlisten(self, listener: Callable[[], None]) -> None:
        """The opposite of `listen`."""
        self._listeners = [each for each in self._listeners if each != listener]


def touched_memory(size: int) -> mmap.mmap:
    """Private memory with huge pages where there are any, every page touched."""
    memory = untouched_memory(size)
    for offset in range(0, size, PAGE_BYTES):
        memory[offset] = 0
    return memory


def untouched_memory(size: int) -> mmap.mmap:
    """Private memory with huge pages where there are any, which come as they are touched."""
    memory = mmap.mmap(
        -1, align_up(size, _HUGE_PAGE_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without transparent huge pages says EINVAL; small pages do as well.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
