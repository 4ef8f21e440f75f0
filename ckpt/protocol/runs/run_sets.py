"""Sets of byte positions as ascending, disjoint runs: spans, and combs of many runs at one distance
(ckpt.format.combs); plain tuples, never changed in place. No two runs lie in each other's reach,
not even between teeth.

What a read asks for, gets and crosses out is nearly always the same run, or a part of one cut
between teeth: that is looked for first. What meets in other ways is taken apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, TypeGuard

from ckpt.format.combs import Comb, Run, Span, append_run, joined_run, ranges_of, size_of
from ckpt.protocol.runs import spans
from ckpt.protocol.runs.spans import Spans

RunSet = tuple[Run, ...]

TEETH_OF_A_NAME: Final = 128
"""A comb counts as one run more for each so many teeth: who answers looks at each of them."""


def is_plain(a: Iterable[Run]) -> TypeGuard[Spans]:
    """There is no comb in it."""
    return 4 not in map(len, a)


def spans_of(a: RunSet) -> Spans:
    """Each tooth by itself."""
    if is_plain(a):
        return a
    return tuple([(start, end) for start, end in ranges_of(a).tolist()])


def total(a: RunSet) -> int:
    """How many positions."""
    if is_plain(a):
        return spans.total(a)
    return sum(map(size_of, a))


def union(a: RunSet, b: RunSet) -> RunSet:
    """Every position that is in one of them."""
    if not a or not b:
        return a or b
    if a[-1][1] < b[0][0]:
        return _behind_each_other(a, b)
    if b[-1][1] < a[0][0]:
        return _behind_each_other(b, a)
    if is_plain(a) and is_plain(b):
        return spans.union(a, b)
    runs: list[Run] = []
    for each in sorted(a + b):
        last = runs[-1] if runs else None
        if last is None or last[1] < each[0]:
            append_run(runs, each)
        elif len(last) == len(each) == 2:
            runs.pop()
            append_run(runs, (last[0], max(last[1], each[1])))
        else:
            return spans.union(spans_of(a), spans_of(b))
    return tuple(runs)


def minus(a: RunSet, b: RunSet) -> RunSet:
    """Every position of `a` that is not in `b`."""
    if not a or not b:
        return a
    low, high = b[0][0], b[-1][1]
    if high <= a[0][0] or a[-1][1] <= low:
        return a
    if len(b) == 1 and len(b[0]) == 2 and low <= a[0][0] and a[-1][1] <= high:
        return ()
    first = bisect_left(a, b[0])
    last = first + len(b)
    if a[first:last] == b:
        return a[:first] + a[last:]
    within = bisect_left(b, a[0])
    if b[within : within + len(a)] == a:
        return ()
    if is_plain(a) and is_plain(b):
        return spans.minus(a, b)
    left: list[Run] = []
    at = 0
    for each in a:
        while at < len(b) and b[at][1] <= each[0]:
            at += 1
        rest: RunSet = (each,)
        for other in b[at:]:
            if other[0] >= each[1]:
                break
            rest = tuple([part for run in rest for part in _without(run, other)])
        left += rest
    return tuple(left)


def split(a: RunSet, size: int, count: int) -> tuple[RunSet, RunSet]:
    """The first `count` runs at most (TEETH_OF_A_NAME), ended by the one, or the tooth, that
    reaches `size` positions; the rest.
    """
    if len(a) <= count and is_plain(a) and spans.total(a) <= size:
        return a, ()
    taken = 0
    for index, each in enumerate(a):
        if count <= 0 or taken >= size:
            return a[:index], a[index:]
        if isinstance(each, Comb):
            teeth, room = each.teeth, -(-(size - taken) // each.length)
            fit = min(teeth, room, count * TEETH_OF_A_NAME)
            if fit < teeth:
                return (
                    (*a[:index], *each.part(0, fit)),
                    (*each.part(fit, teeth), *a[index + 1 :]),
                )
            count -= -(-teeth // TEETH_OF_A_NAME)
        else:
            count -= 1
        taken += size_of(each)
    return a, ()


def parted(a: RunSet, border: int) -> tuple[RunSet, RunSet]:
    """What lies before a border, which goes through none of its spans and teeth, and after it."""
    behind = bisect_left(a, (border,))
    last = a[behind - 1] if behind else None
    if not isinstance(last, Comb) or last.end <= border:
        return a[:behind], a[behind:]
    at = -(-(border - last.start) // last.step)
    return (
        (*a[: behind - 1], *last.part(0, at)),
        (*last.part(at, last.teeth), *a[behind:]),
    )


def covers(a: RunSet, start: int, end: int) -> bool:
    """Every position of [start, end) is in one run of `a`."""
    return any(
        low <= start and end <= high
        for run in a
        for low, high in (_near(run, start, end) if isinstance(run, Comb) else (run,))
    )


def meets(a: RunSet, start: int, end: int) -> bool:
    """Some position of [start, end) is in `a`."""
    return any(
        low < end and start < high
        for run in a
        for low, high in (_near(run, start, end) if isinstance(run, Comb) else (run,))
    )


def cut(sets: Iterable[RunSet]) -> list[Span]:
    """The elementary spans between all borders: none of the sets changes inside one."""
    borders = {border for each in sets for span in spans_of(each) for border in span}
    return list(pairwise(sorted(borders)))


class Owed:
    """Byte ranges that somebody still has to bring. Most come exactly as they were asked for."""

    __slots__ = ("_runs",)

    def __init__(self, runs: RunSet = ()) -> None:
        self._runs: list[Run] = list(runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def runs(self) -> RunSet:
        """What is left."""
        return tuple(self._runs)

    def take(self, runs: Sequence[Run]) -> bool:
        """Cross out a set; False, and nothing changed, when some of it is not owed."""
        if not runs:
            return True
        first = bisect_left(self._runs, runs[0])
        last = first + len(runs)
        if self._runs[first:last] == list(runs):
            del self._runs[first:last]
            return True
        owed = tuple(self._runs)
        if minus(tuple(runs), owed):
            return False
        self._runs = list(minus(owed, tuple(runs)))
        return True


# --------------------------------------------------------------------------- inside


def _behind_each_other(a: RunSet, b: RunSet) -> RunSet:
    joined = joined_run(a[-1], b[0])
    return a + b if joined is None else (*a[:-1], joined, *b[1:])


def _reach(comb: Comb, start: int, end: int) -> tuple[int, int]:
    """The first of the teeth that meet [start, end), and the one after the last."""
    first = max(0, (start - comb.start - comb.length) // comb.step + 1)
    return first, max(first, min(comb.teeth, -(-(end - comb.start) // comb.step)))


def _near(comb: Comb, start: int, end: int) -> Spans:
    """The teeth that meet [start, end)."""
    first, behind = _reach(comb, start, end)
    return spans_of(comb.part(first, behind))


def _without(run: Run, other: Run) -> RunSet:
    """What of the run is not in the other one."""
    if not isinstance(run, Comb):
        near = _near(other, run[0], run[1]) if isinstance(other, Comb) else (other,)
        return spans.minus((run,), near)
    first, behind = _reach(run, other[0], other[1])
    if first == behind:
        return (run,)
    middle: RunSet
    if not isinstance(other, Comb):
        # Only the outermost teeth can stand out.
        ends = {*run.part(first, first + 1), *run.part(behind - 1, behind)}
        middle = spans.minus(spans_of(tuple(sorted(ends))), (other,))
    elif (other.step, other.length) == run[2:] and (other.start - run.start) % run.step == 0:
        middle = ()  # Each of these teeth is one of its own.
    else:
        near = _near(other, run.start, run.end)
        middle = spans.minus(spans_of(run.part(first, behind)), near)
    return *run.part(0, first), *middle, *run.part(behind, run.teeth)
