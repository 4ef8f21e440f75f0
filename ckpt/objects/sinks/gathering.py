"""An upload in parts for stores that take an object only at once: the parts are gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np

from ckpt.aio.slots import touched_memory
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer
from ckpt.objects.chunks import Bytes

BLOCK_BYTES: Final = 16 * MiB
"""An object takes as many as it needs: no memory that grows by copying, less first touch."""


class Gatherings:
    """Blocks of memory that are used again; any thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self) -> Bytes:
        try:
            return self._free.pop()
        except IndexError:
            return np.frombuffer(touched_memory(BLOCK_BYTES), np.uint8)

    def give_back(self, blocks: Sequence[Bytes]) -> None:
        self._free.extend(blocks)


class GatheredUpload:
    """I hold the object in memory until it is complete; nothing is in the store before."""

    def __init__(self, put: Callable[[Sequence[memoryview]], None], gatherings: Gatherings) -> None:
        """put: stores the pieces one after the other as the object."""
        self._put = put
        self._gatherings = gatherings
        self._blocks: list[Bytes] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A put that failed may still hold views of them.
        if error is None:
            self._gatherings.give_back(self._blocks)
        self._blocks = []

    def part(self, data: Buffer) -> None:
        source = np.frombuffer(data, np.uint8)
        while len(source):
            at = self._size % BLOCK_BYTES
            if not at:
                self._blocks.append(self._gatherings.take())
            count = min(len(source), BLOCK_BYTES - at)
            self._blocks[-1][at : at + count] = source[:count]
            self._size += count
            source = source[count:]

    def complete(self) -> None:
        pieces = [block.data.toreadonly() for block in self._blocks]
        if self._size % BLOCK_BYTES:
            pieces[-1] = pieces[-1][: self._size % BLOCK_BYTES]
        self._put(pieces)
