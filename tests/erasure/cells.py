"""Cells for the tests: made from a seed, held in memory with guards around it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ckpt.erasure import matrix
from ckpt.erasure.code import Code

GUARD_BYTES = 64
_GUARD = b"\xa5" * GUARD_BYTES


class GuardedCell:
    """A writable cell between two guards that nobody may touch."""

    def __init__(self, length: int, shift: int = 0) -> None:
        self._memory = bytearray(_GUARD + b"\xee" * (length + shift) + _GUARD)
        self._begin = GUARD_BYTES + shift
        self.view = memoryview(self._memory)[self._begin : self._begin + length]

    def is_intact(self) -> bool:
        """Whether everything around the cell is as it was."""
        before = self._memory[: self._begin]
        after = self._memory[self._begin + len(self.view) :]
        return before == _GUARD + b"\xee" * (self._begin - GUARD_BYTES) and after == _GUARD


def data_cells(code: Code, length: int, seed: int = 0) -> list[bytes]:
    """k cells of random bytes; equal arguments give equal cells."""
    source = random.Random(f"{code} {length} {seed}")
    return [source.randbytes(length) for _ in range(code.k)]


def parity_by_tables(code: Code, data: Sequence[bytes]) -> list[bytes]:
    """The definition: the coding matrix times the data, in plain Python."""
    return [matrix.combine(row, data) for row in matrix.coding_matrix(code)[code.k :]]


def views(cells: Sequence[bytes]) -> list[memoryview]:
    """Read-only views, as of an arena that the encoder may not write."""
    return [memoryview(cell) for cell in cells]
