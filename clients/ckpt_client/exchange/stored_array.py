"""An array whose bytes lie in one piece of a file, in C order: read a box at a time, never held."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from ckpt.base.units import MiB
from ckpt.objects.source import Array
from ckpt_client.exchange.arrays import Elements, box
from ckpt_client.exchange.seen_file import SeenFile

ROWS_BYTES_MAX: Final = 8 * MiB
"""Memory for rows of which only a part is wanted."""


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array in a file."""

    name: str
    file: SeenFile
    dtype: str
    """Ours."""
    shape: tuple[int, ...]
    start: int
    """Of its bytes in the file."""
    end: int

    def opened(self) -> Elements:
        return StoredElements(self)


class StoredElements:
    """I read one array where it lies."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self._file = array.file.opened()

    def read(self, offset: tuple[int, ...], memory: Array) -> None:
        if memory.size:
            self._fill(self._array.start, self._array.shape, offset, memory)
        self._file.check()

    def close(self) -> None:
        self._file.close()

    def _fill(
        self, start: int, shape: tuple[int, ...], offset: tuple[int, ...], memory: Array
    ) -> None:
        """start: of an array of that shape in the file; offset: of the memory in the array."""
        row_bytes = prod(shape[1:]) * memory.itemsize
        if memory.shape[1:] == shape[1:]:
            first = offset[0] if offset else 0
            self._file.fill(start + first * row_bytes, memory)
            return
        at_once = ROWS_BYTES_MAX // row_bytes
        if at_once == 0:
            for row in range(memory.shape[0]):
                at = start + (offset[0] + row) * row_bytes
                self._fill(at, shape[1:], offset[1:], memory[row])
            return
        for low in range(0, memory.shape[0], at_once):
            part = memory[low : low + at_once]
            rows = np.empty((len(part), *shape[1:]), memory.dtype)
            self._file.fill(start + (offset[0] + low) * row_bytes, rows)
            part[...] = rows[(slice(None), *box(offset[1:], memory.shape[1:]))]
