"""Bounds, medians and checks, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckptbench import figures
from ckptbench.figures import Costs, Goal, spread
from ckptbench.rank import RankAnswer
from ckptbench.run.checkpoints import slower_s
from ckptbench.run.counters import sum_threads

CODE = Code(4, 2)
COSTS = Costs(copy=0.07, ec=0.04, fingerprint=0.02, crc=0.02, tx=0.2, rx=0.1, read=0.03, touch=0.1)


def test_a_spread_is_the_median_with_its_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == figures.Spread(2.0, 1.0, 3.0, 3)
    assert spread([4.0, 1.0]).median == 2.5
    with pytest.raises(Refused, match="no repetition"):
        spread([])


def test_a_save_is_bound_by_what_each_user_byte_costs_on_all_cores() -> None:
    # 0.07 + 0.04 + 2·1.5·0.02 + 1.5·(0.2 + 0.1)
    assert figures.save_bound(COSTS, CODE, 2) == pytest.approx(2 / 0.62)
    assert figures.save_bound(COSTS, CODE, 2, fingerprint_share=1.0) == pytest.approx(2 / 0.64)


def test_more_parity_and_fewer_cores_lower_the_bound() -> None:
    assert figures.save_bound(COSTS, Code(4, 3), 2) < figures.save_bound(COSTS, CODE, 2)
    assert figures.save_bound(COSTS, CODE, 1) == figures.save_bound(COSTS, CODE, 2) / 2


def test_cpu_seconds_that_must_be_spent_are_compared_with_those_that_were() -> None:
    assert figures.cpu_eta(4.0, 2, 1.0) == 0.5  # 2 cores / 4 GB/s: half a second must be


def test_a_restore_carries_only_the_data() -> None:
    # 0.03 + 2·0.02 + 0.2 + 0.1 + 0.1 + 0.07
    assert figures.restore_bound(COSTS, 2) == pytest.approx(2 / 0.54)


def test_a_lost_column_costs_k_that_are_read_and_one_that_is_sent() -> None:
    # 4·(0.03 + 2·0.02 + 0.2 + 0.1 + 0.04) + 2·0.02 + 0.2 + 0.1
    assert figures.rebuild_bound(COSTS, CODE, 2) == pytest.approx(2 / 1.98)


def test_a_rate_is_in_decimal_gigabytes() -> None:
    assert figures.gb_per_s(2_000_000_000, 4.0) == 0.5
    assert figures.gb_per_s(1, 0.0) == 0.0


def test_the_disk_is_charged_with_parity_and_compared_with_both_raw_runs() -> None:
    assert figures.disk_eta(1_000_000_000, 1.0, CODE, (1.0, 3.0)) == pytest.approx(0.75)


def test_two_raw_runs_drift_by_a_part_of_the_larger() -> None:
    assert figures.drift(2.0, 1.5) == figures.drift(1.5, 2.0) == 0.25


@pytest.mark.parametrize(
    ("found", "fits"),
    [(1.5e9, True), (1.57e9, True), (1.6e9, False), (1.4e9, False), (0.0, False)],
)
def test_counted_bytes_are_n_of_k_and_little_more(found: float, fits: bool) -> None:
    assert figures.bytes_fit(found, 1_000_000_000, 4, CODE) is fits


def test_headers_of_small_payloads_are_allowed_for() -> None:
    assert figures.bytes_fit(1.5 * 65536 + 24 * 30_000, 65536, 4, CODE)


def test_a_goal_knows_its_direction_and_says_so() -> None:
    assert Goal("eta", 0.5, 0.5, at_least=True).met
    assert not Goal("stall", 1.3, 1.25, at_least=False).met
    assert str(Goal("stall", 1.3, 1.25, at_least=False)) == "MISSED stall: 1.3 <= 1.25"
    ahead = Goal("eta", 0.6, 0.5, at_least=True, next_limit=0.8)
    assert ahead.met, "what is built for next is no condition"
    assert str(ahead) == "met    eta: 0.6 >= 0.5; next >= 0.8: not yet"


def test_threads_are_summed_by_how_busy_they_are() -> None:
    assert sum_threads([[1.0, 3.0, 2.0], [5.0]]) == (8.0, 2.0, 1.0)
    assert sum_threads([]) == (0, 0, 0)


def test_a_loop_loses_its_stall_and_what_it_computed_less_beside_the_save() -> None:
    calls = [RankAnswer(begun_ns=5, ended_ns=5 + 40_000_000), RankAnswer(ended_ns=10_000_000)]
    alone = [RankAnswer(rounds_per_s=100.0), RankAnswer(rounds_per_s=80.0)]
    beside = [RankAnswer(rounds_per_s=90.0), RankAnswer(rounds_per_s=60.0)]
    assert slower_s(calls, beside, alone, 2.0) == pytest.approx(0.01 + 2.0 * 0.25)
    assert slower_s(calls[:1], beside[:1], alone[:1], 2.0) == pytest.approx(0.04 + 2.0 * 0.1)
    assert slower_s(calls, [], [], 0.0) is None
