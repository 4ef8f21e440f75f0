"""Sizes of MLPerf Storage to the byte; intervals against numbers worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckpt.base.units import GiB
from ckptbench import models
from ckptbench.job.grammar import Setting
from ckptbench.job.jobs import resolve
from ckptbench.plan import PlanRequest, daly, make_plan, model_bytes, plan_text, young

PUBLISHED = [
    # name, parameters, ranks, total bytes, least and most GiB of a rank
    ("llama3-8b", 8_030_261_248, 8, 112_425_623_552, 13.09, 13.09),
    ("llama3-70b", 69_882_617_856, 64, 978_406_572_032, 14.24, 14.24),
    ("llama3-405b", 405_853_388_800, 512, 5_682_508_791_808, 8.86, 12.32),
    ("llama3-1t", 1_183_035_102_480, 1024, 16_564_174_094_592, 12.91, 17.97),
]


@pytest.mark.parametrize(("name", "parameters", "ranks", "total", "least", "most"), PUBLISHED)
def test_a_model_has_the_published_bytes_on_each_rank(
    name: str, parameters: int, ranks: int, total: int, least: float, most: float
) -> None:
    found = models.find(name)
    sizes = found.rank_bytes()
    assert (found.parameters, found.ranks, sum(sizes)) == (parameters, ranks, total)
    assert (round(min(sizes) / GiB, 2), round(max(sizes) / GiB, 2)) == (least, most)


def test_a_scaled_model_keeps_its_inequality_on_fewer_ranks() -> None:
    sizes = models.scaled_bytes("llama3-405b", Fraction(1, 1000), 8)
    assert len(sizes) == 8
    assert all(size % 4096 == 0 for size in sizes)
    assert max(sizes) / min(sizes) == pytest.approx(12.32 / 8.86, rel=0.1)
    with pytest.raises(Refused, match="512 ranks"):
        models.scaled_bytes("llama3-405b", Fraction(1), 513)
    assert resolve([Setting("model", "70b", "x:1")]).model == "llama3-70b"
    assert models.find("70b") is models.find("llama3-70b")
    with pytest.raises(Refused, match="no model"):
        models.find("gpt")


def test_the_intervals_are_youngs_and_dalys() -> None:
    assert young(2.0, 100.0) == 20.0
    # 20 (1 + 0.1/3 + 0.01/9) - 2
    assert daly(2.0, 100.0) == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert daly(300.0, 100.0) == 100.0


@given(st.floats(0.001, 10), st.floats(1000, 1e6))
def test_dalys_interval_loses_no_more_than_its_neighbours(cost: float, mtbf: float) -> None:
    def lost(interval: float) -> float:
        # Daly's own model: segments, each tried again until no failure falls into it.
        return math.expm1((interval + cost) / mtbf) / interval

    best = daly(cost, mtbf)
    assert lost(best) <= min(lost(best * 1.3), lost(best / 1.3))


def test_a_plan_is_as_small_as_bandwidth_and_capacity_let_it_be() -> None:
    request = PlanRequest(model_bytes("405b"), gpus=16384, mtbf_s=10800, target_rate=3e9)
    plan = make_plan(request)
    assert plan.bound_by == "bandwidth"
    assert plan.commit_s <= plan.interval_s * request.busy * 1.001
    assert make_plan(PlanRequest(request.checkpoint_bytes, 16384, 10800, 1e15)).bound_by == "code"
    large = PlanRequest(request.checkpoint_bytes, 16384, 10800, 1e12, target_bytes=10**11)
    assert make_plan(large).bound_by == "capacity"
    assert make_plan(large).targets * 10**11 >= make_plan(large).capacity
    text = plan_text(request, plan)
    assert "5682508791808 bytes" in text
    assert f"targets      {plan.targets} " in text


def test_a_given_tier_that_is_too_slow_stretches_the_interval() -> None:
    request = PlanRequest(10**12, gpus=8, mtbf_s=86400, target_rate=1e9, targets=6)
    plan = make_plan(request)
    assert plan.bound_by == "given"
    assert plan.commit_s == 250.0
    assert plan.interval_s == max(500.0, plan.daly_s)


@pytest.mark.parametrize(
    "wrong", [{"gpus": 0}, {"busy": 0.0}, {"targets": 5}, {"mtbf_s": -1.0}, {"keep": 0}]
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    request = {"checkpoint_bytes": 1, "gpus": 1, "mtbf_s": 1, "target_rate": 1} | wrong
    with pytest.raises(Refused):
        PlanRequest(**request)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="more than"):
        make_plan(PlanRequest(10**18, 1, 3600, 1.0))
