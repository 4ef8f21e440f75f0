"""Sets of byte positions as ascending, disjoint, non-empty spans [start, end); plain tuples,
never changed in place.

A tensor that is cut along its last axis is read in hundreds of spans for each cell. They are asked
for, come and are crossed out in the order in which they lie, so one set is nearly always a slice
of the other: that is looked for first, since tuples are compared and joined without a step of the
interpreter for each span.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

Span = tuple[int, int]
Spans = tuple[Span, ...]

_START: Final[Callable[[Span], int]] = itemgetter(0)
_END: Final[Callable[[Span], int]] = itemgetter(1)


def union(a: Spans, b: Spans) -> Spans:
    """Every position that is in one of them."""
    if not a or not b:
        return a or b
    if a[-1][1] < b[0][0]:
        return a + b
    if b[-1][1] < a[0][0]:
        return b + a
    merged: list[Span] = []
    for start, end in sorted(a + b):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def minus(a: Spans, b: Spans) -> Spans:
    """Every position of `a` that is not in `b`."""
    if not a or not b:
        return a
    low, high = b[0][0], b[-1][1]
    if high <= a[0][0] or a[-1][1] <= low:
        return a
    if len(b) == 1 and low <= a[0][0] and a[-1][1] <= high:
        return ()
    first = bisect_left(a, b[0])
    last = first + len(b)
    if a[first:last] == b:
        return a[:first] + a[last:]
    left: list[Span] = []
    at = 0
    for start, end in a:
        while at < len(b) and b[at][1] <= start:
            at += 1
        # The last span that reaches into this one may reach into the next one, too.
        while start < end and at < len(b) and b[at][0] < end:
            low, high = b[at]
            if start < low:
                left.append((start, low))
            start = max(start, high)
            if start < end:
                at += 1
        if start < end:
            left.append((start, end))
    return tuple(left)


def split(a: Spans, size: int, count: int) -> tuple[Spans, Spans]:
    """The first `count` spans at most, ended by the one that reaches `size` positions; the rest."""
    if len(a) <= count and total(a) <= size:
        return a, ()
    taken = 0
    for index, (start, end) in enumerate(a):
        if index == count or taken >= size:
            return a[:index], a[index:]
        taken += end - start
    return a, ()


def covers(a: Spans, start: int, end: int) -> bool:
    """Every position of [start, end) is in `a`."""
    return any(low <= start and end <= high for low, high in a)


def meets(a: Spans, start: int, end: int) -> bool:
    """Some position of [start, end) is in `a`."""
    return any(low < end and start < high for low, high in a)


def total(a: Spans) -> int:
    """How many positions."""
    return sum(map(_END, a)) - sum(map(_START, a))


def cut(sets: Iterable[Spans]) -> list[Span]:
    """The elementary spans between all borders: none of the sets changes inside one."""
    borders = sorted({border for spans in sets for span in spans for border in span})
    return list(pairwise(borders))


class Owed:
    """Byte ranges that somebody still has to bring. Most come exactly as they were asked for."""

    __slots__ = ("_parts",)

    def __init__(self, ranges: Iterable[Span] = ()) -> None:
        #: Ascending, disjoint.
        self._parts: list[Span] = sorted(ranges)

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def ranges(self) -> Spans:
        """What is left, ascending."""
        return tuple(self._parts)

    def take_all(self, ranges: Sequence[Span]) -> bool:
        """Cross them all out; False, and some may be, when one of them is not owed."""
        if ranges:
            first = bisect_left(self._parts, ranges[0])
            last = first + len(ranges)
            if self._parts[first:last] == list(ranges):
                del self._parts[first:last]
                return True
        return all(self.take(start, end) for start, end in ranges)

    def take(self, start: int, end: int) -> bool:
        """Cross [start, end) out; False, and nothing changed, when it is not a part of one owed
        range."""
        # The last one that begins at `start` or before.
        at = bisect_left(self._parts, (start + 1,)) - 1
        if start >= end or at < 0 or self._parts[at][1] < end:
            return False
        low, high = self._parts[at]
        rest = ((low, start), (end, high))
        self._parts[at : at + 1] = [each for each in rest if each[0] < each[1]]
        return True
