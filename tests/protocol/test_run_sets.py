"""Sets of byte positions as spans and combs, against sets of numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.limits import READ_RANGES_MAX, READ_RUNS_MAX
from ckpt.format.combs import Comb, Run, combs_of, ranges_of, shifted
from ckpt.format.messages.reading import ByteRuns
from ckpt.protocol.runs.run_sets import (
    TEETH_OF_A_NAME,
    Owed,
    RunSet,
    covers,
    cut,
    meets,
    minus,
    parted,
    split,
    total,
    union,
)
from ckpt.protocol.runs.wire_runs import from_wire, runs_of, to_wire
from tests.calls import counted


def numbers(runs: RunSet) -> set[int]:
    return {n for start, end in ranges_of(runs).tolist() for n in range(start, end)}


def is_set(runs: RunSet) -> bool:
    """Ascending, disjoint, none in the reach of another."""
    reach = -1
    for run in runs:
        if not reach < run[0] < run[1]:
            return False
        if isinstance(run, Comb) and (run.step <= run.length or run.teeth < 2):
            return False
        reach = run[1]
    return sum(end - start for start, end in ranges_of(runs).tolist()) == len(numbers(runs))


@st.composite
def run_sets(draw: st.DrawFn, pitch: int | None = None) -> RunSet:
    """Combs of few forms, so that many lie on each other, and spans between them."""
    runs: list[Run] = []
    at = draw(st.integers(0, 6))
    step = draw(st.integers(2, 6)) if pitch is None else pitch
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, step - 1))
        teeth = draw(st.integers(1, 6))
        end = at + (teeth - 1) * step + length
        runs.append((at, end) if teeth == 1 else Comb(at, end, step, length))
        at = end + draw(st.integers(1, 2 * step))
    return tuple(runs)


def pairs() -> st.SearchStrategy[tuple[RunSet, RunSet]]:
    """Two of the same pitch, or of any."""
    same = st.integers(2, 6).flatmap(lambda pitch: st.tuples(run_sets(pitch), run_sets(pitch)))
    return same | st.tuples(run_sets(), run_sets())


@given(pairs())
def test_union_and_difference_are_those_of_sets(both: tuple[RunSet, RunSet]) -> None:
    a, b = both
    assert numbers(union(a, b)) == numbers(a) | numbers(b)
    assert numbers(minus(a, b)) == numbers(a) - numbers(b)
    assert is_set(union(a, b))
    assert is_set(minus(a, b))
    assert total(a) == len(numbers(a))


@given(run_sets(), st.integers(0, 4), st.integers(0, 4))
def test_a_part_of_a_set_is_all_in_it(a: RunSet, first: int, last: int) -> None:
    part = a[first:last]
    assert minus(part, a) == ()
    assert numbers(minus(a, part)) == numbers(a) - numbers(part)


def test_a_part_of_a_large_set_is_found_in_it_without_a_step_for_each_run() -> None:
    """A column is asked for thousands of runs by and by; what is left is looked at each time."""
    runs = tuple((at, at + 5) for at in range(0, 200_000, 10))
    rest = runs[5000:]
    left, calls = counted(lambda: (minus(rest, runs), minus(runs, rest)))
    assert left == ((), runs[:5000])
    assert calls < 100


@given(run_sets(), st.integers(1, 40), st.integers(1, 4))
def test_a_split_ends_with_the_run_or_tooth_that_reaches_the_size(
    a: RunSet, size: int, count: int
) -> None:
    now, later = split(a, size, count)
    assert numbers(now) | numbers(later) == numbers(a)
    assert total(now) + total(later) == total(a)
    assert is_set(now)
    assert is_set(later)
    assert len(now) <= count
    last = ranges_of(now)[-1] if now else None
    assert last is None or total(now) - (last[1] - last[0]) < size
    assert not later or len(now) == count or total(now) >= size


def test_teeth_count_when_there_are_many() -> None:
    comb = Comb(0, 999 * 10 + 1, 10, 1)
    now, later = split((comb,), 1 << 20, 2)
    assert [total(now), total(later)] == [2 * TEETH_OF_A_NAME, 1000 - 2 * TEETH_OF_A_NAME]


@given(run_sets(), st.integers(0, 60), st.integers(1, 20))
def test_places_are_covered_and_met(a: RunSet, start: int, size: int) -> None:
    place = set(range(start, start + size))
    assert covers(a, start, start + size) == (place <= numbers(a))
    assert meets(a, start, start + size) == bool(place & numbers(a))


@given(run_sets(), st.integers(0, 60))
def test_sets_are_parted_at_borders_between_runs(a: RunSet, border: int) -> None:
    if any(start < border < end for start, end in ranges_of(a).tolist()):
        return
    before, behind = parted(a, border)
    assert numbers(before) == {n for n in numbers(a) if n < border}
    assert numbers(behind) == {n for n in numbers(a) if n >= border}
    assert is_set(before)
    assert is_set(behind)


@given(pairs())
def test_no_set_changes_inside_of_an_elementary_span(both: tuple[RunSet, RunSet]) -> None:
    for start, end in cut(both):
        assert all(covers(a, start, end) or not meets(a, start, end) for a in both)


@given(run_sets(), st.integers(0, 3))
def test_combs_are_found_again_among_their_teeth(a: RunSet, by: int) -> None:
    found = combs_of(ranges_of(a))
    assert numbers(found) == numbers(a)
    assert is_set(found)
    assert numbers(shifted(a, by)) == {n + by for n in numbers(a)}


def test_a_comb_between_two_other_runs_stays_one() -> None:
    rows = [(3, 10), *((at, at + 7) for at in range(20, 20 + 50 * 16, 16)), (900, 901)]
    assert combs_of(np.array(rows)) == ((3, 10), Comb(20, 20 + 49 * 16 + 7, 16, 7), (900, 901))
    uneven = [(at * at, at * at + 1) for at in range(1, 40)]
    assert combs_of(np.array(uneven)) == tuple(uneven)


@given(run_sets(), st.lists(run_sets(), max_size=4))
def test_whoever_brings_what_is_not_owed_is_found_out(owes: RunSet, brings: list[RunSet]) -> None:
    owed, left = Owed(owes), numbers(owes)
    for each in brings:
        taken = owed.take(each)
        assert taken == (numbers(each) <= left)
        left -= numbers(each) if taken else set()
        assert numbers(owed.runs) == left


@given(run_sets(), st.data())
def test_what_is_owed_may_come_in_any_parts(owes: RunSet, data: st.DataObject) -> None:
    owed = Owed(owes)
    while owed:
        now, _ = split(owed.runs, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)))
        assert owed.take(now)
        assert not owed.take(now)


@given(run_sets())
def test_runs_travel(a: RunSet) -> None:
    wire = to_wire(a)
    assert from_wire(wire) == a
    assert runs_of(wire, 1000) == a
    assert runs_of(tuple(reversed(wire)), 1000) == a


@pytest.mark.parametrize(
    "wire",
    [
        ByteRuns(-1, 4),
        ByteRuns(4, 4),
        ByteRuns(5, 4),
        ByteRuns(0, 4, 0),
        ByteRuns(0, 4, -1, 10),
        ByteRuns(0, 4, 2, 3),
        ByteRuns(0, 4, 2, 4),
        ByteRuns(0, 4, 2, 0),
        ByteRuns(0, 4, 2, -9),
    ],
    ids=str,
)
def test_what_are_no_runs_is_refused(wire: ByteRuns) -> None:
    assert from_wire((wire,)) is None
    assert runs_of((wire,), 1000) is None


def test_nothing_is_unfolded_that_is_too_much() -> None:
    many = 1 << 60
    assert runs_of((ByteRuns(0, 1, many, 2),), 1 << 62) is None
    assert runs_of((ByteRuns(0, 1, READ_RUNS_MAX, 2), ByteRuns(1, 2)), 1 << 62) is None
    assert runs_of((ByteRuns(0, 1),) * (READ_RANGES_MAX + 1), 10) is None
    assert runs_of((ByteRuns(0, 1, 10, 2),), 18) is None, "the last one reaches outside"
    # Of an answer the bytes are counted first; it takes no step for a tooth.
    runs = from_wire((ByteRuns(0, 1, many, 2),))
    assert runs is not None
    assert total(runs) == many


def test_a_question_may_overlap_itself_but_not_in_a_combs_reach() -> None:
    spans = (ByteRuns(10, 50), ByteRuns(0, 30), ByteRuns(10, 20))
    assert runs_of(spans, 100) == ((0, 30), (10, 20), (10, 50))
    comb = ByteRuns(50, 51, 10, 5)
    assert runs_of((*spans, comb), 100) == ((0, 30), (10, 20), (10, 50), Comb(50, 96, 5, 1))
    for other in (
        ByteRuns(52, 53),
        ByteRuns(0, 51),
        ByteRuns(95, 97),
        comb,
        ByteRuns(49, 50, 2, 9),
    ):
        assert runs_of((comb, other), 100) is None, other
    assert runs_of((ByteRuns(0, 60), ByteRuns(1, 2), comb), 100) is None


def test_a_question_for_more_bytes_than_there_are_is_refused() -> None:
    assert runs_of((ByteRuns(0, 60), ByteRuns(20, 60)), 100) == ((0, 60), (20, 60))
    assert runs_of((ByteRuns(0, 60), ByteRuns(19, 60)), 100) is None


def test_runs_of_an_answer_may_not_lie_in_each_other() -> None:
    assert from_wire((ByteRuns(0, 1, 10, 10), ByteRuns(5, 6))) is None
    assert from_wire((ByteRuns(7, 9), ByteRuns(1, 2))) is None
    assert from_wire((ByteRuns(7, 9), ByteRuns(8, 10))) is None
