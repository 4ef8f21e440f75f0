"""Memory of one thread for the chunks that it has in hand: faulted in once, used again.

First touch of fresh memory costs ten times what a copy of it does (0.5 to 0.8 CPU s/GB here).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from ckpt.aio.slots import touched_memory
from ckpt.base.units import align_up
from ckpt.objects.chunks import Bytes

ALIGN_BYTES: Final = 64


class Arenas:
    """Arenas of one size that are lent and come back; any thread."""

    def __init__(self) -> None:
        self._free: list[Arena] = []

    @contextmanager
    def lent(self, size: int) -> Iterator[Arena]:
        """One for as long as the block lasts."""
        try:
            arena = self._free.pop()
        except IndexError:
            arena = Arena(size)
        try:
            yield arena
        finally:
            self._free.append(arena)


class Arena:
    """I hand out memory until `reset`, which makes all of it free again."""

    def __init__(self, size: int) -> None:
        self._memory = np.frombuffer(touched_memory(size), np.uint8)
        self._used = 0

    def take(self, size: int) -> Bytes:
        """Bytes with whatever they held before; fresh ones when no room is left."""
        start, self._used = self._used, self._used + align_up(size, ALIGN_BYTES)
        if self._used > len(self._memory):
            return np.empty(size, np.uint8)
        return self._memory[start : start + size]

    def reset(self) -> None:
        """Make all memory free again: nobody may need what was taken from it."""
        self._used = 0
