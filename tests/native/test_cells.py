"""Cells from cells: what C could not serve is refused. What it computes: tests/erasure."""

from __future__ import annotations

import numpy as np
import pytest

from ckpt.native.cells import transform
from ckpt.native.isal import find_isal


def test_cells_beyond_what_isal_counts_are_refused() -> None:
    huge = memoryview(np.broadcast_to(np.zeros(1, np.uint8), 1 << 31))
    with pytest.raises(ValueError, match="at most"):
        transform(find_isal().tables([]), [huge], [])


@pytest.mark.parametrize(("rows", "outputs"), [([b"\x01"], 2), ([b"\x01\x01"], 1), ([], 1)])
def test_tables_of_another_shape_are_refused(rows: list[bytes], outputs: int) -> None:
    written = [memoryview(bytearray(8)) for _ in range(outputs)]
    with pytest.raises(ValueError, match="tables"):
        transform(find_isal().tables(rows), [memoryview(bytes(8))], written)
    assert not any(map(any, written))


def test_more_columns_than_the_field_has_elements_are_refused() -> None:
    with pytest.raises(ValueError, match="tables"):
        transform(find_isal().tables([]), [memoryview(bytes(8))] * 257, [])
