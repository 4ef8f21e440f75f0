"""Sets of byte positions as spans, against sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckpt.protocol.reader.spans import Spans, minus, split, total, union

positions = st.sets(st.integers(0, 40))


def _spans(numbers: set[int]) -> Spans:
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number:
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((number, number + 1))
    return tuple(spans)


def _numbers(spans: Spans) -> set[int]:
    return {number for start, end in spans for number in range(start, end)}


@given(positions, positions)
def test_union_and_difference_are_those_of_sets(a: set[int], b: set[int]) -> None:
    assert union(_spans(a), _spans(b)) == _spans(a | b)
    assert minus(_spans(a), _spans(b)) == _spans(a - b)


@given(positions, st.integers(1, 20), st.integers(1, 10))
def test_a_split_ends_with_the_span_that_reaches_the_size(
    a: set[int], size: int, count: int
) -> None:
    spans = _spans(a)
    now, later = split(spans, size, count)
    assert now + later == spans
    assert len(now) <= count
    assert total(now[:-1]) < size
    assert not later or len(now) == count or total(now) >= size
