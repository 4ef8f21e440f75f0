"""Memory for parity cells: a few reused slots that stay warm in cache.

First touch is the dearest thing there is: the mapping is made once, and the slot given back last is
taken first. It is sealed memory, which targets of this host read where it lies.

Slots come from a free list, never from a running index: a cell whose send completes out of order
must not be overwritten by a later stripe.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from ckpt.aio.lending import Lendable
from ckpt.aio.sealed_memory import discard, sealed_memory
from ckpt.base.limits import CELL_BYTES_DEFAULT, PAGE_BYTES
from ckpt.base.units import MiB, align_up

RING_BYTES: Final = 32 * MiB
RING_STRIPES_MIN: Final = 2
"""Stripes of parity that it holds at least: one is sent while the next is encoded."""


class ParityRing:
    """`slot_count` slots of `slot_bytes`. Taken by the encode thread, given back by any."""

    def __init__(self, slot_bytes: int, slot_count: int) -> None:
        assert slot_bytes > 0
        assert slot_count > 0
        self.slot_bytes = slot_bytes
        self.slot_count = slot_count
        size = align_up(slot_bytes * slot_count, PAGE_BYTES)
        self._descriptor, self._view = sealed_memory("ckpt-parity", size, present=False)
        self.lendable = Lendable.of(self._descriptor, self._view)
        #: Free slots, the warmest last. Under `_lock`.
        self._free = list(range(slot_count - 1, -1, -1))
        #: Whether a slot was taken since the memory was given back. Under `_lock`.
        self._touched = False
        self._lock = threading.Lock()

    def serves(self, cell_bytes: int, parity_count: int) -> bool:
        """Whether it holds enough stripes with so many parity cells of this size."""
        enough = self.slot_count >= RING_STRIPES_MIN * parity_count
        return enough and self.slot_bytes >= cell_bytes

    def take(self, count: int) -> list[int] | None:
        """So many slots, or None when fewer are free; never a part of them."""
        with self._lock:
            if len(self._free) < count:
                return None
            taken = self._free[len(self._free) - count :]
            del self._free[len(self._free) - count :]
            self._touched = True
            return taken

    def give(self, slot: int) -> None:
        """Free a slot whose bytes are no longer needed."""
        with self._lock:
            assert slot not in self._free, "a slot is given back once"
            self._free.append(slot)

    @property
    def free_count(self) -> int:
        """Slots that nobody has, at a glance."""
        return len(self._free)

    def rest(self) -> None:
        """Give the memory back to the system, unless a slot is taken: the next use touches it."""
        with self._lock:
            if self._touched and len(self._free) == self.slot_count:
                discard(self._view)
                self._touched = False

    def close(self) -> None:
        """Lend it no more; the memory goes with its last slot."""
        os.close(self._descriptor)

    def view(self, slot: int, size: int) -> memoryview:
        """The first `size` bytes of a slot."""
        assert size <= self.slot_bytes
        begin = slot * self.slot_bytes
        return self._view[begin : begin + size]


def ring_for(cell_bytes: int, parity_count: int) -> ParityRing:
    """The ring of a pass for stripes with so many parity cells: RING_BYTES, more only where these
    hold fewer than RING_STRIPES_MIN of the largest stripes; touched as it is used.
    """
    slot_bytes = max(cell_bytes, CELL_BYTES_DEFAULT)
    slot_count = max(RING_BYTES // slot_bytes, RING_STRIPES_MIN * parity_count)
    return ParityRing(slot_bytes, slot_count)
