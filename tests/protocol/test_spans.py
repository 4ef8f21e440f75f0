"""Sets of byte positions as spans, against sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.limits import PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.protocol.reader.stripes import wanted_stripes
from ckpt.protocol.runs.run_sets import spans_of
from ckpt.protocol.runs.spans import Spans, minus, union

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
            in_pages = tuple(
                (start // PAGE_BYTES, end // PAGE_BYTES) for start, end in spans_of(parts)
            )
            assert in_pages == _spans(_numbers(in_pages)), "ascending, joined where they touch"
            assert parts[-1][1] <= layout.cell_bytes_of(stripe)
            base = layout.cell_offset(stripe, column) // PAGE_BYTES
            found |= {base + page for page in _numbers(in_pages)}
    assert found == pages
