"""An upload in parts for stores that take an object only at once: the parts are gathered."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import numpy as np

from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer
from ckpt.objects.chunks import Bytes

FIRST_BYTES: Final = 16 * MiB


class Gatherings:
    """Memory for whole objects that is used again; any thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self) -> Bytes:
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(FIRST_BYTES, np.uint8)

    def give_back(self, memory: Bytes) -> None:
        self._free.append(memory)


class GatheredUpload:
    """I hold the object in memory until it is complete; nothing is in the store before."""

    def __init__(self, put: Callable[[Buffer], None], gatherings: Gatherings) -> None:
        self._put = put
        self._gatherings = gatherings
        self._size = 0

    def __enter__(self) -> Self:
        self._memory = self._gatherings.take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A put that failed may still hold a view of it.
        if error is None:
            self._gatherings.give_back(self._memory)
        del self._memory

    def part(self, data: Buffer) -> None:
        source = np.frombuffer(data, np.uint8)
        end = self._size + len(source)
        if end > len(self._memory):
            larger = np.empty(max(end, 2 * len(self._memory)), np.uint8)
            larger[: self._size] = self._memory[: self._size]
            self._memory = larger
        self._memory[self._size : end] = source
        self._size = end

    def complete(self) -> None:
        self._put(self._memory.data[: self._size].toreadonly())
