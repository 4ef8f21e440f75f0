"""Which bytes of a payload go where in the reader's memory.

A landing is a run of payload bytes and the place that it gets; runs may overlap (one stored
replica that
several asked for). A cell that lies inside one landing is received straight into place, all others
through a scratch cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from ckpt.base.units import KiB
from ckpt.format.runs import Bytes, Offsets, Ranges, copy_runs

GAP_BYTES: Final = 512
"""Wanted runs that are closer to each other are read as one: a frame of its own costs more than
so many bytes."""
GAPS_FRACTION: Final = 64
"""Gaps that are read as well make up at most one part in so many of what is wanted."""
GAPS_BYTES_MIN: Final = 64 * KiB
"""So many bytes of gaps are always allowed."""
LONG_BYTES: Final = 64 * KiB
"""A run of at least this length is copied without the interpreter lock, so that other threads go
on.
"""
RUNS_OF_AN_OWNER_MIN: Final = 4
"""With fewer runs on average, they are copied one by one, since looking at how they lie costs
more.
"""


class Landings:
    """I am filled by `add`, then only asked. `memory` views are writable, contiguous bytes."""

    def __init__(self, gap_bytes: int = GAP_BYTES) -> None:
        """gap_bytes: unwanted bytes between two runs up to which these are read as one."""
        self._gap_bytes = gap_bytes
        #: The memories that were added; an owner is an index into this.
        self._memories: list[Bytes] = []
        #: Starts, ends, destinations and owners of the runs of each `add`.
        self._parts: list[tuple[Offsets, Offsets, Offsets, Offsets]] = []
        #: Starts, ends and owners of runs that each fill a memory: most tensors are one, and many
        #: are so small that an array of numpy's for each would cost more than its bytes.
        self._whole: tuple[list[int], list[int], list[int]] = ([], [], [])
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
        assert self._sorted is None
        size = len(memory)
        if size:
            target = np.frombuffer(memory, np.uint8) if isinstance(memory, memoryview) else memory
            assert target.flags.writeable
            starts, ends, owners = self._whole
            starts.append(start)
            ends.append(start + size)
            owners.append(len(self._memories))
            self._memories.append(target)

    def __bool__(self) -> bool:
        return bool(self._whole[0]) or any(len(part[0]) for part in self._parts)

    @property
    def wanted_bytes(self) -> int:
        """All landings together."""
        whole = sum(self._whole[1]) - sum(self._whole[0])
        return whole + sum(int((ends - starts).sum()) for starts, ends, _, _ in self._parts)

    @property
    def end(self) -> int:
        """After the last payload byte that is wanted."""
        parts = (int(ends.max()) for _, ends, _, _ in self._parts if len(ends))
        return max(max(self._whole[1], default=0), max(parts, default=0))

    def spans(self) -> tuple[tuple[int, int], ...]:
        """As `ranges`, as tuples."""
        starts, ends = self.ranges().T.tolist()
        return tuple(zip(starts, ends, strict=True))

    def ranges(self) -> Ranges:
        """Payload bytes to read, ascending, none touches the next; small gaps are read along."""
        starts, ends, _, _, reach = self._table()
        if not len(starts):
            return np.zeros((0, 2), np.int64)
        apart = starts[1:] > reach[:-1]
        apart[self._small_gaps()] = False
        breaks = np.flatnonzero(apart) + 1
        firsts = starts[np.concatenate(([0], breaks))]
        lasts = reach[np.concatenate((breaks, [len(ends)])) - 1]
        return np.stack((firsts, lasts), axis=1)

    def _small_gaps(self) -> Offsets:
        """Which gaps are read along, by the number of the run before them: the smallest first."""
        starts, _, _, _, reach = self._table()
        gaps = starts[1:] - reach[:-1]
        small = np.flatnonzero((gaps > 0) & (gaps <= self._gap_bytes))
        budget = max(GAPS_BYTES_MIN, self.wanted_bytes // GAPS_FRACTION)
        if gaps[small].sum() <= budget:
            return small
        order = small[np.argsort(gaps[small], kind="stable")]
        return order[np.cumsum(gaps[order]) <= budget]

    def close_gaps(self) -> None:
        """Give what is read along a place too, so that every byte of `spans` is kept."""
        starts, _, _, _, reach = self._table()
        small = self._small_gaps()
        self._gap_bytes = 0
        if len(small):
            firsts, lengths = reach[:-1][small], starts[1:][small] - reach[:-1][small]
            self._sorted = None
            places = np.concatenate(([0], np.cumsum(lengths)[:-1]))
            self.add(np.empty(int(lengths.sum()), np.uint8), firsts, lengths, places)

    def within(self, spans: Iterable[tuple[int, int]]) -> Landings:
        """The same places, of payload bytes in the spans only; nothing between is read along."""
        part = Landings(gap_bytes=0)
        starts, ends, destinations, owners, reach = self._table()
        for start, end in spans:
            first = int(np.searchsorted(reach, start, side="right"))
            last = int(np.searchsorted(starts, end, side="left"))
            lows = np.maximum(starts[first:last], start)
            lengths = np.minimum(ends[first:last], end) - lows
            places = destinations[first:last] + lows - starts[first:last]
            some = np.flatnonzero(lengths > 0)
            for owner, group in _by_owner(owners[first:last][some]):
                mine = some[group]
                part.add(self._memories[owner], lows[mine], lengths[mine], places[mine])
        return part

    def gather(self, start: int, end: int) -> memoryview | None:
        """Payload bytes [start, end) as they have landed, copied unless they lie together; None
        when some of them have no place."""
        found = self.place(start, end)
        if found is not None:
            return found
        starts, ends, destinations, owners, _ = self._table()
        whole, reach = np.empty(end - start, np.uint8), start
        for hit in self._hits(start, end):
            low, high = max(start, int(starts[hit])), min(end, int(ends[hit]))
            if low > reach:
                return None
            at = int(destinations[hit]) + low - int(starts[hit])
            memory = self._memories[int(owners[hit])]
            whole[low - start : high - start] = memory[at : at + high - low]
            reach = max(reach, high)
        return whole.data if reach >= end else None

    def place(self, start: int, end: int) -> memoryview | None:
        """The one place of payload bytes [start, end), or None when they have several, or none,
        or lie apart."""
        starts, ends, destinations, owners, reach = self._table()
        near = _near(starts, reach, start, end)
        # The first of them reaches beyond `start`, and so meets it.
        hit = near.start
        if hit == near.stop or starts[hit] > start or ends[hit] < end:
            return None
        if (ends[hit + 1 : near.stop] > start).any():
            return None
        at = int(destinations[hit]) + start - int(starts[hit])
        return self._memories[int(owners[hit])].data[at : at + end - start]

    def fill(self, payload: Bytes) -> None:
        """Copy all that is wanted from the whole payload."""
        starts, ends, destinations, owners, _ = self._table()
        self._copy(owners, destinations, payload, starts, ends - starts)

    def scatter(self, start: int, source: Bytes) -> int:
        """Copy payload bytes from `start` on to all their places: how many were copied."""
        return self.scatter_runs(_one(start), _one(len(source)), source)

    def scatter_runs(self, firsts: Offsets, lengths: Offsets, source: Bytes) -> int:
        """As `scatter`, of payload bytes [firsts[i], +lengths[i]), ascending and disjoint, that
        lie in the source one after the other."""
        if not len(firsts):
            return 0
        starts, ends, destinations, owners, reach = self._table()
        lasts, offsets = firsts + lengths, np.cumsum(lengths) - lengths
        near = _near(starts, reach, int(firsts[0]), int(lasts[-1]))
        # Each wanted run with each of the source's that meets it.
        met = np.searchsorted(lasts, starts[near], side="right")
        counts = np.maximum(np.searchsorted(firsts, ends[near], side="left") - met, 0)
        run = np.repeat(np.arange(near.start, near.stop), counts)
        part = np.repeat(met - (np.cumsum(counts) - counts), counts) + np.arange(len(run))
        lows = np.maximum(starts[run], firsts[part])
        sizes = np.minimum(ends[run], lasts[part]) - lows
        places = destinations[run] + lows - starts[run]
        origins = offsets[part] + lows - firsts[part]
        some = sizes > 0
        self._copy(owners[run][some], places[some], source, origins[some], sizes[some])
        return int(sizes.sum())

    def _copy(
        self, owners: Offsets, to: Offsets, source: Bytes, at: Offsets, lengths: Offsets
    ) -> None:
        """As `copy_runs`, each run into its owner's memory."""
        if len(owners) < RUNS_OF_AN_OWNER_MIN * _distinct(owners):
            self._copy_each(owners, to, source, at, lengths)
            return
        for owner, mine in _by_owner(owners):
            copy_runs(self._memories[owner], to[mine], source, at[mine], lengths[mine])

    def _copy_each(
        self, owners: Offsets, to: Offsets, source: Bytes, at: Offsets, lengths: Offsets
    ) -> None:
        """Many memories that get a run or two each."""
        if not len(owners):
            return
        assert int(min(to.min(), at.min())) >= 0
        assert int((at + lengths).max()) <= len(source)
        memories, view = self._memories, source.data
        columns = owners.tolist(), to.tolist(), at.tolist(), lengths.tolist()
        for owner, low, begin, length in zip(*columns, strict=True):
            # Both raise when the memory ends before the run does.
            if length < LONG_BYTES:
                memories[owner].data[low : low + length] = view[begin : begin + length]
            else:
                np.copyto(memories[owner][low : low + length], source[begin : begin + length])

    def _hits(self, start: int, end: int) -> list[int]:
        starts, ends, _, _, reach = self._table()
        near = _near(starts, reach, start, end)
        hits: list[int] = (np.flatnonzero(ends[near] > start) + near.start).tolist()
        return hits

    def _table(self) -> tuple[Offsets, Offsets, Offsets, Offsets, Offsets]:
        """Starts, ends, destinations, owners ascending by start; and how far the runs so far
        reach."""
        if self._sorted is None:
            whole = [np.array(column, np.int64) for column in self._whole]
            parts = [*self._parts, (whole[0], whole[1], np.zeros_like(whole[0]), whole[2])]
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            order = np.argsort(columns[0], kind="stable")
            starts, ends, destinations, owners = (column[order] for column in columns)
            reach = np.maximum.accumulate(ends) if len(ends) else ends
            self._sorted = starts, ends, destinations, owners, reach
        return self._sorted


def _near(starts: Offsets, reach: Offsets, start: int, end: int) -> slice:
    """The runs among which are all that meet [start, end)."""
    first = int(np.searchsorted(reach, start, side="right"))
    return slice(first, max(first, int(np.searchsorted(starts, end, side="left"))))


def _distinct(owners: Offsets) -> int:
    """How many there are. np.unique imports numpy's masked arrays: 20 ms of a first load."""
    return len(owners) and 1 + int(np.count_nonzero(np.diff(np.sort(owners))))


def _by_owner(owners: Offsets) -> Iterator[tuple[int, Offsets]]:
    """Each owner with the places of its runs, ascending."""
    order = np.argsort(owners, kind="stable")
    borders = np.flatnonzero(np.diff(owners[order])) + 1
    for mine in np.split(order, borders) if len(order) else ():
        yield int(owners[mine[0]]), mine


def _one(value: int) -> Offsets:
    return np.array([value], np.int64)
