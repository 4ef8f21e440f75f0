"""Cells from cells: what C could not serve is refused. What it computes: tests/erasure."""

from __future__ import annotations

import numpy as np
import pytest

from ckpt.native.cells import transform
from ckpt.native.isal import find_isal


def test_cells_beyond_what_isal_counts_are_refused() -> None:
    huge = memoryview(np.broadcast_to(np.zeros(1, np.uint8), 1 << 31))
    with pytest.raises(ValueError, match="at most"):
        transform(find_isal().tables([b"\x01"]), [huge], [])
