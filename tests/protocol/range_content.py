"""A column in memory, from which ranges are answered."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.format.checksum import crc32
from ckpt.format.combs import Run, ranges_of


class Column:
    """Its fragment bytes as the `Content` of `range_frames`."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def one(self, start: int, end: int) -> memoryview:
        return self.data[start:end]

    def checksum(self, start: int, end: int) -> int:
        return crc32(self.data[start:end])

    def copied(self, runs: Sequence[Run]) -> memoryview:
        spans = ranges_of(runs).tolist()
        return memoryview(b"".join([self.data[start:end] for start, end in spans]))
