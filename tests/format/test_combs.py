"""Runs are copied out of a block as one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.format.combs import Comb, Run, combs_of, gathered, ranges_of, size_of

CONTENT = Random(7).randbytes(1000)
BASE = 300


@st.composite
def runs_inside(draw: st.DrawFn) -> list[Run]:
    """Spans and combs between BASE and the end of the content."""
    found: list[Run] = []
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(BASE, BASE + 900))
        length = draw(st.integers(1, BASE + 1000 - start))
        step = draw(st.integers(length + 1, length + 40))
        teeth = draw(st.integers(1, 1 + (BASE + 1000 - start - length) // step))
        end = start + (teeth - 1) * step + length
        found.append((start, end) if teeth == 1 else Comb(start, end, step, length))
    return found


@given(runs_inside())
def test_they_lie_behind_each_other_in_memory_of_their_own(runs: list[Run]) -> None:
    expected = b""
    for run in runs:
        spans = run.array().tolist() if isinstance(run, Comb) else [run]
        expected += b"".join([CONTENT[start - BASE : end - BASE] for start, end in spans])
    source = bytearray(CONTENT)
    copy = gathered(memoryview(source), BASE, runs)
    source[:] = bytes(len(source))
    assert bytes(copy) == expected
    assert len(copy) == sum(map(size_of, runs))


@pytest.mark.parametrize(
    "run", [(299, 302), (1299, 1301), Comb(299, 304, 4, 1), Comb(1290, 1301, 5, 1)], ids=str
)
def test_nothing_is_copied_from_outside(run: Run) -> None:
    with pytest.raises(AssertionError):
        gathered(memoryview(CONTENT), BASE, [run])


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("after", [0, 1])
def test_ranges_of_one_length_and_step_are_one_comb(before: int, after: int) -> None:
    comb = [(100 + 10 * n, 104 + 10 * n) for n in range(50)]
    ranges = [(0, 50)] * before + comb + [(700, 799)] * after
    found = combs_of(np.array(ranges, np.int64))
    assert found == ((0, 50),) * before + (Comb(100, 594, 10, 4),) + ((700, 799),) * after
    assert ranges_of(found).tolist() == [list(each) for each in ranges]
