"""Runs are copied out of a block as one by one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.format.combs import Comb, Run, gathered, size_of

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
