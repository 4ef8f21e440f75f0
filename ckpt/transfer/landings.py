"""Which bytes of a payload go where in the reader's memory.

A landing is a run of payload bytes and the place that it gets; runs may overlap (one stored
replica that
several asked for). A cell that lies inside one landing is received straight into place, all others
through a scratch cell.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GAP_BYTES: Final = 512
"""Wanted runs that are closer to each other are read as one: a frame of its own costs more than
so many bytes."""


class Landings:
    """I am filled by `add`, then only asked. `memory` views are writable, contiguous bytes."""

    def __init__(self) -> None:
        self._memories: list[Bytes] = []
        self._parts: list[tuple[Offsets, Offsets, Offsets, Offsets]] = []
        self._sorted: tuple[Offsets, Offsets, Offsets, Offsets, Offsets] | None = None

    def add(
        self, memory: memoryview | Bytes, starts: Offsets, lengths: Offsets, destinations: Offsets
    ) -> None:
        """Payload bytes [starts[i], +lengths[i]) go to memory[destinations[i]:]."""
        assert self._sorted is None
        target = np.frombuffer(memory, np.uint8) if isinstance(memory, memoryview) else memory
        assert target.flags.writeable
        owners = np.full(len(starts), len(self._memories), np.int64)
        assert not len(starts) or int((destinations + lengths).max()) <= len(target)
        self._memories.append(target)
        self._parts.append((starts, starts + lengths, destinations, owners))

    def add_range(self, start: int, memory: memoryview | Bytes) -> None:
        """Payload bytes from `start` fill the memory."""
        size = len(memory)
        if size:
            self.add(memory, _one(start), _one(size), _one(0))

    def __bool__(self) -> bool:
        return any(len(part[0]) for part in self._parts)

    @property
    def wanted_bytes(self) -> int:
        """All landings together."""
        return sum(int((ends - starts).sum()) for starts, ends, _, _ in self._parts)

    def spans(self) -> tuple[tuple[int, int], ...]:
        """Payload byte ranges to read, ascending and disjoint; small gaps are read along."""
        starts, ends, _, _, reach = self._table()
        if not len(starts):
            return ()
        breaks = np.flatnonzero(starts[1:] > reach[:-1] + GAP_BYTES) + 1
        firsts = starts[np.concatenate(([0], breaks))].tolist()
        lasts = reach[np.concatenate((breaks, [len(ends)])) - 1].tolist()
        return tuple(zip(firsts, lasts, strict=True))

    def place(self, start: int, end: int) -> memoryview | None:
        """The one place of payload bytes [start, end), or None when they have several, or none,
        or lie apart."""
        hits = self._hits(start, end)
        if len(hits) != 1:
            return None
        starts, ends, destinations, owners, _ = self._table()
        hit = hits[0]
        if starts[hit] > start or ends[hit] < end:
            return None
        at = int(destinations[hit]) + start - int(starts[hit])
        return self._memories[int(owners[hit])].data[at : at + end - start]

    def scatter(self, start: int, source: Bytes) -> int:
        """Copy payload bytes from `start` on to all their places: how many were copied."""
        starts, ends, destinations, owners, _ = self._table()
        end, copied = start + len(source), 0
        for hit in self._hits(start, end):
            low, high = max(start, int(starts[hit])), min(end, int(ends[hit]))
            at = int(destinations[hit]) + low - int(starts[hit])
            memory = self._memories[int(owners[hit])]
            memory[at : at + high - low] = source[low - start : high - start]
            copied += high - low
        return copied

    def _hits(self, start: int, end: int) -> list[int]:
        starts, ends, _, _, reach = self._table()
        first = int(np.searchsorted(reach, start, side="right"))
        last = int(np.searchsorted(starts, end, side="left"))
        return [hit for hit in range(first, last) if ends[hit] > start]

    def _table(self) -> tuple[Offsets, Offsets, Offsets, Offsets, Offsets]:
        """Starts, ends, destinations, owners ascending by start; and how far the runs so far
        reach."""
        if self._sorted is None:
            columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
            if not columns:
                columns = [np.zeros(0, np.int64)] * 4
            order = np.argsort(columns[0], kind="stable")
            starts, ends, destinations, owners = (column[order] for column in columns)
            reach = np.maximum.accumulate(ends) if len(ends) else ends
            self._sorted = starts, ends, destinations, owners, reach
        return self._sorted


def _one(value: int) -> Offsets:
    return np.array([value], np.int64)
