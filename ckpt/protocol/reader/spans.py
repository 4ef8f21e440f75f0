"""Sets of byte positions as ascending, disjoint, non-empty spans [start, end); plain tuples,
never changed in place."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Span = tuple[int, int]
Spans = tuple[Span, ...]


def union(a: Spans, b: Spans) -> Spans:
    """Every position that is in one of them."""
    if not a or not b:
        return a or b
    if a[-1][1] < b[0][0]:
        return a + b
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
    if a == b:
        return ()
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
    return sum(end - start for start, end in a)


def cut(sets: Iterable[Spans]) -> list[Span]:
    """The elementary spans between all borders: none of the sets changes inside one."""
    borders = sorted({border for spans in sets for span in spans for border in span})
    return list(pairwise(borders))


class Owed:
    """Byte ranges that somebody still has to bring. Most come exactly as they were asked for."""

    __slots__ = ("_parts",)

    def __init__(self, ranges: Iterable[Span] = ()) -> None:
        #: start -> end, disjoint.
        self._parts: dict[int, int] = dict(ranges)

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def ranges(self) -> Spans:
        """What is left, ascending."""
        return tuple(sorted(self._parts.items()))

    def take_all(self, ranges: Iterable[Span]) -> bool:
        """Cross them all out; False, and some may be, when one of them is not owed."""
        parts = self._parts
        for start, end in ranges:
            if parts.get(start) == end:
                del parts[start]
            elif not self.take(start, end):
                return False
        return True

    def take(self, start: int, end: int) -> bool:
        """Cross [start, end) out; False, and nothing changed, when it is not a part of one owed
        range."""
        if start >= end:
            return False
        if self._parts.get(start) == end:
            del self._parts[start]
            return True
        for low, high in self._parts.items():
            if low <= start and end <= high:
                del self._parts[low]
                if low < start:
                    self._parts[low] = start
                if end < high:
                    self._parts[end] = high
                return True
        return False
