"""Which bytes of which payloads make up a wanted box.

    index box (6 x 8, C order)        wanted box (4 x 3)         copies
    . . . . . . . .
    . . a a a . . .                   a a a                      3 items from 10 to 0
    . . b b b . . .         ->        b b b                      3 items from 18 to 3
    . . c c c . . .                   c c c                      ..
    . . d d d . . .                   d d d

A box's C-order bytes lie in locations: parts of ranks' payloads. A copy is a run that is contiguous
in a payload and in the wanted box's C-order bytes alike; runs that touch on both sides are one.

Invariants: every wanted byte that some box has is copied exactly once; nothing else is read. Runs
are enumerated by numpy, three int64 for each, without a Python step for each run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckpt.base.ids import Generation, Rank
from ckpt.format.index.pages import IndexBox, Location
from ckpt.plan.boxes import Extent, bounds_of, crossing_pairs, intersect, subtract, volume_of

Offsets = npt.NDArray[np.int64]


class PayloadKey(NamedTuple):
    """Which payload of a checkpoint that is read."""

    home: Generation | None
    """The earlier generation that holds it; None is the one that is read."""
    rank: Rank

    @property
    def order(self) -> tuple[bool, Generation, Rank]:
        """Sorts the own generation first, then homes as they ascend."""
        return self.home is not None, self.home or Generation(0, 0), self.rank


@dataclass(frozen=True, slots=True)
class Copy:
    """Payload bytes [start, end) go to `destination` of the wanted box's C-order bytes."""

    start: int
    end: int
    """Exclusive."""
    destination: int


@dataclass(frozen=True, slots=True, eq=False)
class SourceRuns:
    """All copies from one payload, ascending by start. The arrays are int64 of equal length."""

    payload: PayloadKey
    starts: Offsets
    lengths: Offsets
    destinations: Offsets

    def copies(self) -> Iterator[Copy]:
        """The runs one by one."""
        for start, length, destination in zip(
            self.starts.tolist(), self.lengths.tolist(), self.destinations.tolist(), strict=True
        ):
            yield Copy(start, start + length, destination)

    def spans(self) -> list[tuple[int, int]]:
        """Payload byte ranges [start, end) to fetch: runs that touch in the
        payload are one range.
        """
        if not len(self.starts):
            return []
        ends = np.maximum.accumulate(self.starts + self.lengths)
        breaks = np.flatnonzero(self.starts[1:] > ends[:-1]) + 1
        firsts = self.starts[np.concatenate(([0], breaks))].tolist()
        lasts = ends[np.concatenate((breaks, [len(ends)])) - 1].tolist()
        return list(zip(firsts, lasts, strict=True))


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How one wanted box is put together."""

    wanted_bytes: int
    missing_bytes: int
    """Wanted bytes that no box has; 0 for a whole checkpoint."""
    sources: tuple[SourceRuns, ...]
    """Ascending by rank; own generation first."""


def one_run(
    boxes: Sequence[IndexBox], byte_count: int, offset: Extent, shape: Extent
) -> Location | None:
    """Where the wanted box's bytes lie, when there is one index box, just this one, and all its
    bytes lie together; nearly every small tensor. None: see `plan_read`.
    """
    if len(boxes) != 1:
        return None
    (box,) = boxes
    if box.offset != offset or box.shape != shape or len(box.locations) != 1:
        return None
    (run,) = box.locations
    return run if run.start == 0 and run.length == byte_count else None


def plan_read(
    boxes: Sequence[IndexBox],
    item_bytes: int,
    offset: Extent,
    shape: Extent,
    prefer: Rank | None = None,
) -> ReadPlan:
    """The copies that fill the box (offset, shape) of a tensor from its index boxes.

    Where boxes overlap, `prefer`'s comes first, then the one that has most of what is wanted, so
    that few payloads are opened. Boxes of OWN tensors belong to ranks: the caller passes those it
    wants.
    """
    assert len(offset) == len(shape)
    assert item_bytes >= 0
    runs: defaultdict[PayloadKey, list[tuple[Offsets, Offsets, Offsets]]] = defaultdict(list)
    if volume_of(shape) * item_bytes:
        for box, part in _choose(boxes, offset, shape, prefer):
            sources, destinations, length = _box_runs(box, item_bytes, offset, shape, part)
            for key, found in _locate(box.locations, sources, destinations, length):
                runs[key].append(found)
    plans = tuple(_coalesce(key, runs[key]) for key in sorted(runs, key=lambda key: key.order))
    wanted_bytes = volume_of(shape) * item_bytes
    return ReadPlan(wanted_bytes, wanted_bytes - sum(int(s.lengths.sum()) for s in plans), plans)


# --------------------------------------------------------------------------- which box gives what


def _choose(
    boxes: Sequence[IndexBox], offset: Extent, shape: Extent, prefer: Rank | None
) -> list[tuple[IndexBox, tuple[Extent, Extent]]]:
    """Disjoint parts of the wanted box, each with the box that gives it."""
    starts, ends = bounds_of([(box.offset, box.shape) for box in boxes], len(shape))
    low, high = bounds_of([(offset, shape)], len(shape))
    near = np.flatnonzero(((starts < high) & (ends > low) & (starts < ends)).all(axis=1)).tolist()

    # Identical boxes are common (data-parallel copies): the first in order of choice stands for
    # all.
    hits: dict[tuple[Extent, Extent], IndexBox] = {}
    for box in sorted((boxes[i] for i in near), key=lambda box: (box.rank != prefer, box.rank)):
        hit = intersect(offset, shape, box.offset, box.shape)
        if hit is not None:
            hits.setdefault(hit, box)
    ordered = sorted(
        ((box, hit) for hit, box in hits.items()),
        key=lambda c: (c[0].rank != prefer, -volume_of(c[1][1]), c[1][0], c[0].rank),
    )
    if not len(crossing_pairs(*bounds_of([hit for _, hit in ordered], len(shape)), 0)):
        return ordered

    chosen: list[tuple[IndexBox, tuple[Extent, Extent]]] = []
    left: list[tuple[Extent, Extent]] = [(offset, shape)]
    for box, hit in ordered:
        rest: list[tuple[Extent, Extent]] = []
        for piece in left:
            common = intersect(*piece, *hit)
            if common is None:
                rest.append(piece)
            else:
                chosen.append((box, common))
                rest.extend(subtract(*piece, common))
        left = rest
    return chosen


# --------------------------------------------------------------------------- runs of one box


def _box_runs(
    box: IndexBox, item_bytes: int, offset: Extent, shape: Extent, part: tuple[Extent, Extent]
) -> tuple[Offsets, Offsets, int]:
    """(offsets in the box's bytes, offsets in the wanted box's bytes, length) of the part's runs,
    ascending.
    """
    part_offset, part_shape = part
    # Axes after `axis` are whole in both boxes, so a run goes through all of them.
    axis = max(len(shape) - 1, 0)
    while axis > 0 and part_shape[axis] == box.shape[axis] == shape[axis]:
        axis -= 1
    source_strides, wanted_strides = _strides(box.shape, item_bytes), _strides(shape, item_bytes)
    sources, destinations = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for a, start in enumerate(part_offset):
        # The axis of the run itself contributes its start only.
        steps = np.arange(part_shape[a] if a < axis else 1, dtype=np.int64)
        sources = np.add.outer(
            sources, (steps + (start - box.offset[a])) * source_strides[a]
        ).ravel()
        destinations = np.add.outer(
            destinations, (steps + (start - offset[a])) * wanted_strides[a]
        ).ravel()
    return sources, destinations, volume_of(part_shape[axis:]) * item_bytes


def _strides(shape: Extent, item_bytes: int) -> list[int]:
    return [volume_of(shape[axis + 1 :]) * item_bytes for axis in range(len(shape))]


def _locate(
    locations: Sequence[Location], sources: Offsets, destinations: Offsets, length: int
) -> Iterator[tuple[PayloadKey, tuple[Offsets, Offsets, Offsets]]]:
    """Cut runs of box bytes at the borders of locations: (payload, (payload starts, lengths,
    destinations)).
    """
    parts = _disjoint(locations)
    starts = np.array([start for start, _, _ in parts], dtype=np.int64)
    ends = np.array([end for _, end, _ in parts], dtype=np.int64)
    shifts = np.array([lo.payload_offset - lo.start for _, _, lo in parts], dtype=np.int64)
    payloads = list(dict.fromkeys((lo.generation, lo.rank) for _, _, lo in parts))
    owners = np.array(
        [payloads.index((lo.generation, lo.rank)) for _, _, lo in parts], dtype=np.int64
    )

    first = np.searchsorted(ends, sources, side="right")
    counts = np.searchsorted(starts, sources + length, side="left") - first
    run = np.repeat(np.arange(len(sources)), counts)
    part = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(run))
    begins = np.maximum(sources[run], starts[part])
    lengths = np.minimum(sources[run] + length, ends[part]) - begins
    targets = destinations[run] + (begins - sources[run])
    for number, key in enumerate(payloads):
        mine = owners[part] == number
        if mine.any():
            yield PayloadKey(*key), ((begins + shifts[part])[mine], lengths[mine], targets[mine])


def _disjoint(locations: Sequence[Location]) -> list[tuple[int, int, Location]]:
    """(start, end, location) ascending without overlap: a byte stored twice is read from the
    earlier location.
    """
    parts: list[tuple[int, int, Location]] = []
    reach = 0
    for location in sorted(locations, key=lambda lo: (lo.start, -lo.length, lo.rank)):
        start, end = max(location.start, reach), location.start + location.length
        if start < end:
            parts.append((start, end, location))
            reach = end
    return parts


def _coalesce(payload: PayloadKey, runs: Sequence[tuple[Offsets, Offsets, Offsets]]) -> SourceRuns:
    """One payload's runs in payload order, with those joined that touch on both sides."""
    starts, lengths, destinations = (np.concatenate(arrays) for arrays in zip(*runs, strict=True))
    order = np.lexsort((destinations, starts))
    starts, lengths, destinations = starts[order], lengths[order], destinations[order]
    apart = (starts[1:] != starts[:-1] + lengths[:-1]) | (
        destinations[1:] != destinations[:-1] + lengths[:-1]
    )
    firsts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    return SourceRuns(
        payload, starts[firsts], np.add.reduceat(lengths, firsts), destinations[firsts]
    )
