"""Every payload byte lies in exactly one data cell, and padding stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import KiB
from ckpt.erasure.code import Code
from ckpt.format.layout import CellRange, Layout, blocks_of
from tests.format.strategies import layouts


@given(layouts, st.data())
def test_cells_cover_a_range_once_and_in_order(layout: Layout, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, layout.payload_bytes))
    start = data.draw(st.integers(0, end))
    position = start
    for cell in layout.cells(start, end):
        assert cell.payload_offset == position
        assert cell.length > 0
        assert cell.offset + cell.length <= layout.cell_bytes_of(cell.stripe)
        assert layout.cell_offset(cell.stripe, cell.column) + cell.offset == position
        position += cell.length
    assert position == end


@given(layouts)
def test_padding_stays_below_k_pages(layout: Layout) -> None:
    assert 0 <= layout.padded_bytes - layout.payload_bytes < layout.code.k * PAGE_BYTES


@given(layouts)
def test_a_column_is_its_fragments_back_to_back(layout: Layout) -> None:
    sizes = [layout.cell_bytes_of(stripe) for stripe in range(layout.stripe_count)]
    offsets = [layout.fragment_offset(stripe) for stripe in range(layout.stripe_count)]
    assert offsets == [sum(sizes[:stripe]) for stripe in range(layout.stripe_count)]
    assert sum(sizes) == layout.column_bytes
    assert sum(blocks_of(size) for size in sizes) == layout.block_count
    assert all(size % PAGE_BYTES == 0 for size in sizes)


def test_an_empty_payload_has_columns_of_no_bytes() -> None:
    layout = Layout.plan(Code(4, 2), 0)
    assert (layout.stripe_count, layout.column_bytes, layout.block_count) == (0, 0, 0)
    assert list(layout.cells(0, 0)) == []


def test_a_small_payload_gets_small_cells() -> None:
    assert Layout.plan(Code(4, 2), 1) == Layout(Code(4, 2), 1, PAGE_BYTES)


def test_a_known_payload_is_cut_as_ever() -> None:
    layout = Layout.plan(Code(4, 2), 3_000_000, 512 * KiB)
    assert layout.cell_bytes == 512 << 10
    assert layout.stripe_count == 2
    assert layout.tail_cell_bytes == 229_376
    assert layout.column_bytes == 753_664
    assert list(layout.cells(2_097_000, 2_400_000)) == [
        CellRange(0, 3, 524_136, 152, 2_097_000),
        CellRange(1, 0, 0, 229_376, 2_097_152),
        CellRange(1, 1, 0, 73_472, 2_326_528),
    ]
