"""Runs of one length at one distance as one thing, a comb.

A tensor that is cut along its last axis is wanted in hundreds of such runs for each cell. By name
and one by one they cost more than their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from ckpt.format.runs import Bytes, Ranges

Span = tuple[int, int]
"""Positions [start, end)."""

TEETH_MIN: Final = 4
"""Fewer runs are sent one by one."""


class Comb(NamedTuple):
    """`length` positions at every `step`, longer than they are; from `start` on, the last ones end
    at `end`.
    """

    start: int
    end: int
    step: int
    length: int

    @property
    def teeth(self) -> int:
        """How many runs it has."""
        return (self.end - self.start - self.length) // self.step + 1

    def part(self, first: int, after: int) -> tuple[Span | Comb, ...]:
        """Teeth [first, after): none, one as a span, or a comb."""
        if first >= after:
            return ()
        start = self.start + first * self.step
        end = self.start + (after - 1) * self.step + self.length
        if after - first == 1:
            return ((start, end),)
        return (Comb(start, end, self.step, self.length),)

    def array(self) -> Ranges:
        """Each of its runs."""
        starts = np.arange(self.start, self.end, self.step)
        return np.stack((starts, starts + self.length), axis=1)


Run = Span | Comb
"""Either way, it begins with where the first and the last of its positions are."""


def size_of(run: Run) -> int:
    """How many positions it has."""
    if isinstance(run, Comb):
        return run.teeth * run.length
    return run[1] - run[0]


def combs_of(ranges: Ranges) -> tuple[Run, ...]:
    """The ranges, ascending, as few runs."""
    count = len(ranges)
    if count < TEETH_MIN:
        return tuple([(start, end) for start, end in ranges.tolist()])
    starts, lengths = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
    steps = np.diff(starts)
    apart = (lengths[1:] != lengths[:-1]) | (steps <= lengths[:-1])
    apart[1:] |= steps[1:] != steps[:-1]
    breaks = (np.flatnonzero(apart) + 1).tolist()
    if TEETH_MIN * len(breaks) > count:
        return tuple([(start, end) for start, end in ranges.tolist()])
    runs: list[Run] = []
    for first, behind in pairwise((0, *breaks, count)):
        if behind - first < TEETH_MIN:
            alone: list[Run] = [(start, end) for start, end in ranges[first:behind].tolist()]
        else:
            low, end, step = int(starts[first]), int(ranges[behind - 1, 1]), int(steps[first])
            alone = [Comb(low, end, step, int(lengths[first]))]
        for each in alone:
            append_run(runs, each)
    return tuple(runs)


def ranges_of(runs: Sequence[Run]) -> Ranges:
    """Each span, and each tooth of each comb."""
    if 4 not in map(len, runs):
        return np.array(runs, np.int64).reshape(-1, 2)
    arrays = [run.array() if isinstance(run, Comb) else np.array([run]) for run in runs]
    return np.concatenate(arrays)


def joined_run(a: Run, b: Run) -> Comb | None:
    """One comb in place of both, when `b` goes on where `a` ends, and one of them is a comb."""
    if isinstance(a, Comb):
        step, length = a.step, a.length
    elif isinstance(b, Comb):
        step, length = b.step, b.length
    else:
        return None
    for run in (a, b):
        if run[2:] != (step, length) if isinstance(run, Comb) else run[1] - run[0] != length:
            return None
    return Comb(a[0], b[1], step, length) if b[0] == a[1] - length + step else None


def append_run(runs: list[Run], run: Run) -> None:
    """Put it after the others, or join it to the last."""
    joined = joined_run(runs[-1], run) if runs else None
    if joined is None:
        runs.append(run)
    else:
        runs[-1] = joined


def shifted(runs: Iterable[Run], by: int) -> tuple[Run, ...]:
    """All of them so much further on."""
    return tuple([
        (run[0] + by, run[1] + by)
        if len(run) == 2
        else Comb(run[0] + by, run[1] + by, run[2], run[3])
        for run in runs
    ])  # fmt: skip


def gathered(source: memoryview, base: int, runs: Sequence[Run]) -> memoryview:
    """The bytes of the runs one after the other, in memory of their own; a comb's by one call.

    source: contiguous bytes from position `base` on; all runs lie inside.
    """
    copy: Bytes = np.empty(sum(map(size_of, runs)), np.uint8)
    view, to = copy.data, 0
    for run in runs:
        at, behind = run[0] - base, to + size_of(run)
        assert 0 <= at < run[1] - base <= len(source)
        if isinstance(run, Comb):
            shape = run.teeth, run.length
            rows: Bytes = np.ndarray(shape, np.uint8, source, at, (run.step, 1))
            np.copyto(copy[to:behind].reshape(shape), rows)
        else:
            view[to:behind] = source[at : run[1] - base]
        to = behind
    return view
