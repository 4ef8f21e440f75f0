"""Sets of byte positions as ascending, disjoint, non-empty spans [start, end); plain tuples,
never changed in place.

Spans are asked for, come and are crossed out in the order in which they lie, so one set is nearly
always a slice of the other: that is looked for first, since tuples are compared and joined without
a step of the interpreter for each span.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from ckpt.format.combs import Span

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
        # The last span that reaches into this one may reach into the next one as well.
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


def covers(a: Spans, start: int, end: int) -> bool:
    """Every position of [start, end) is in `a`."""
    return any(low <= start and end <= high for low, high in a)


def total(a: Spans) -> int:
    """How many positions."""
    return sum(map(_END, a)) - sum(map(_START, a))
