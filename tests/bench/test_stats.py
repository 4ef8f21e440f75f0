"""Histograms have fio's bins, merge exactly, and intervals are Student's."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptbench.stats import (
    Interval,
    LatencyHistogram,
    bin_index,
    bin_value,
    confidence,
    quarters,
    relative_change,
    t_95,
    variation,
)

VALUES = st.lists(st.integers(0, 10**12), max_size=60)


@pytest.mark.parametrize(
    ("value", "named"),
    # What fio 3.33 printed in json+ for values in these bins.
    [(0, 0), (127, 127), (9152, 9152), (9100, 9152), (9280, 9280), (15808, 15808), (111104, 111104),
     (189887, 189440), (189440, 189440), (17792, 17792)],
)  # fmt: skip
def test_bins_are_those_of_fio(value: int, named: int) -> None:
    assert bin_value(bin_index(value)) == named


@given(st.integers(0, 10**15))
def test_a_bin_is_within_two_percent_of_its_values(value: int) -> None:
    assert abs(bin_value(bin_index(value)) - value) <= value / 64
    assert bin_index(bin_value(bin_index(value))) == bin_index(value)


def test_a_save_of_more_than_fio_s_17_s_is_reported_as_long_as_it_took() -> None:
    assert LatencyHistogram.of([21_092_979_998]).percentile(50) // 10**8 == 210


@given(VALUES, VALUES)
def test_merged_histograms_are_the_histogram_of_all_values(a: list[int], b: list[int]) -> None:
    merged = LatencyHistogram.of(a)
    merged.merge(LatencyHistogram.of(b))
    assert merged == LatencyHistogram.of([*a, *b])


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.floats(0.1, 100))
def test_a_percentile_is_in_the_bin_of_the_value_at_that_rank(
    values: list[int], percent: float
) -> None:
    expected = sorted(values)[max(0, math.ceil(percent / 100 * len(values) - 1e-9) - 1)]
    assert (
        abs(bin_index(LatencyHistogram.of(values).percentile(percent)) - bin_index(expected)) <= 0
    )


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=40))
@example([94_905_629, 94_906_903])
@example([10**15, 10**15 + 1])
def test_mean_and_deviation_are_those_of_the_values(values: list[int]) -> None:
    found = LatencyHistogram.of(values)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.stddev == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-3)
    assert (found.least, found.most) == (min(values), max(values))


def test_an_empty_histogram_has_neither_values_nor_percentiles() -> None:
    assert LatencyHistogram().by_value() == {}
    assert LatencyHistogram().percentile(50) == 0


def test_the_ranks_of_one_phase_end_first_in_the_middle_and_last() -> None:
    found = quarters([3.0, 1.0, 2.0, 4.0])
    assert (found.first, found.p50, found.p99, found.last) == (1.0, 2.0, 4.0, 4.0)
    assert found.tail == 0.75


def test_intervals_are_students() -> None:
    # Worked out by hand: mean 2, s = 1, t(2) = 4.303.
    assert confidence([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.303 / math.sqrt(3))
    assert confidence([2.0]) == Interval(2.0, 2.0, 2.0, 1)
    assert confidence([1.0, 3.0]).low < 0
    assert confidence([1.0, 3.0], least=0).low == 0
    assert confidence([1.0, 3.0], least=0).high == confidence([1.0, 3.0]).high
    assert (t_95(1), t_95(1.9), t_95(30.5), t_95(1e9)) == (12.706, 12.706, 2.042, 1.96)
    assert variation([1.0, 2.0, 3.0]) == 0.5
    assert variation([1.0]) == 0.0


def test_a_change_is_certain_only_where_the_spreads_do_not_hide_it() -> None:
    assert relative_change([1.0, 9.0], [1.0, 9.0]).low == -1, "nothing becomes less than nothing"
    far = relative_change([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
    assert far.mean == pytest.approx(1.0)
    assert far.low > 0
    near = relative_change([1.0, 1.5, 0.5], [1.1, 1.6, 0.6])
    assert near.low < 0 < near.high
    assert relative_change([1.0], [2.0]).high == math.inf
    assert relative_change([1.0, 1.0], [2.0, 2.0]) == Interval(1.0, 1.0, 1.0, 2)
