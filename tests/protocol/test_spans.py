"""Sets of byte positions as spans, against sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.limits import PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.protocol.reader.spans import Owed, Spans, minus, split, total, union
from ckpt.protocol.reader.stripes import wanted_stripes

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


@given(st.sets(st.integers(0, 79)), st.integers(1, 80), st.booleans())
def test_wanted_parts_of_cells_are_the_wanted_pages_wherever_cells_end(
    wanted: set[int], page_count: int, touching: bool
) -> None:
    pages = {page for page in wanted if page < page_count}
    whole = [(page, page + 1) for page in sorted(pages)] if touching else _spans(pages)
    spans = [(start * PAGE_BYTES, end * PAGE_BYTES) for start, end in whole]
    layout = Layout(Code(2, 1), page_count * PAGE_BYTES, 4 * PAGE_BYTES)
    found: set[int] = set()
    for stripe, cells in wanted_stripes(layout, np.array(spans, np.int64).reshape(-1, 2)):
        for column, parts in cells.items():
            in_pages = tuple((start // PAGE_BYTES, end // PAGE_BYTES) for start, end in parts)
            assert in_pages == _spans(_numbers(in_pages)), "ascending, joined where they touch"
            assert parts[-1][1] <= layout.cell_bytes_of(stripe)
            base = layout.cell_offset(stripe, column) // PAGE_BYTES
            found |= {base + page for page in _numbers(in_pages)}
    assert found == pages


def test_ranges_are_owed_until_each_was_taken_once() -> None:
    owed = Owed([(0, 4), (8, 12), (16, 20)])
    assert owed.take_all([(0, 4), (9, 11)])
    assert owed.ranges == ((8, 9), (11, 12), (16, 20))
    assert not owed.take_all([(16, 20), (16, 20)])
    assert not owed.take_all([(8, 12)])


@given(positions, st.lists(positions, max_size=6))
def test_whoever_brings_what_is_not_owed_is_found_out(
    owes: set[int], brings: list[set[int]]
) -> None:
    owed, left = Owed(_spans(owes)), set(owes)
    for each in brings:
        if not owed.take_all(_spans(each)):
            assert not each <= left
            return
        assert each <= left
        left -= each
        assert {n for start, end in owed.ranges for n in range(start, end)} == left
