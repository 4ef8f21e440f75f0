"""Many runs of bytes are copied as one by one, in whatever pattern they lie."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.format.runs import copy_runs

EDGE = st.integers(0, 40)


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(to, at, length), disjoint in the target: a regular pattern whose ends may be cut, and others
    around it.
    """
    length, gap, step = draw(st.integers(1, 9)), draw(st.integers(0, 5)), draw(st.integers(0, 30))
    found = [(n * (length + gap), n * step, length) for n in range(draw(st.integers(0, 20)))]
    if found and draw(st.booleans()):
        found[-1] = (*found[-1][:2], draw(st.integers(1, length)))
    if found and draw(st.booleans()):
        cut = draw(st.integers(0, length - 1))
        found[0] = (cut, cut, length - cut)
    end = found[-1][0] + length if found else 0
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, 9))
        found.append((end + draw(EDGE), draw(EDGE), size))
        end = found[-1][0] + size
    return found


@given(runs())
def test_they_are_where_copies_one_by_one_put_them(found: list[tuple[int, int, int]]) -> None:
    source = np.frombuffer(Random(5).randbytes(1000), np.uint8)
    target, expected = np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
    for to, at, length in found:
        expected[to : to + length] = source[at : at + length]
    copy_runs(target, *columns(found, source))
    assert (target == expected).all()


def columns(
    found: list[tuple[int, int, int]], source: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    to, at, lengths = np.array(found, np.int64).reshape(-1, 3).T
    return to, source, at, lengths


@pytest.mark.parametrize("outside", [(95, 0, 6), (0, 95, 6), (-1, 0, 2), (0, -1, 2)])
def test_a_run_outside_of_its_memory_is_never_copied(outside: tuple[int, int, int]) -> None:
    source, target = np.ones(100, np.uint8), np.zeros(100, np.uint8)
    with pytest.raises(AssertionError):
        copy_runs(target, *columns([outside], source))
    assert not target.any()
