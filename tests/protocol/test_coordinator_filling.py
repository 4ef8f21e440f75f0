"""Targets of unequal fill under saves: who has less room gets less, and what is kept is no room."""

from __future__ import annotations

from collections import Counter

from ckpt.base.ids import TargetId
from tests.protocol.coordinating import Bench
from tests.protocol.test_full_devices import fill


def columns(bench: Bench, saves: int) -> Counter[TargetId]:
    """On each target after so many saves of one payload, none of which is under way for long."""
    for step in range(1, saves + 1):
        bench.save(step)
    return Counter({id: len(target.columns) for id, target in bench.targets.items()})


def test_a_target_that_is_nearly_full_gets_few_columns() -> None:
    bench = Bench(8)
    fill(bench, "t0", taken=0.85)
    got = columns(bench, 40)
    assert sum(got.values()) == 120
    assert got[TargetId("t0")] < 6
    assert min(count for id, count in got.items() if id != "t0") > 12


def test_one_that_is_half_full_gets_as_many_as_the_others() -> None:
    bench = Bench(8)
    fill(bench, "t0", taken=0.45)
    got = columns(bench, 40)
    others = [count for id, count in got.items() if id != "t0"]
    assert min(others) <= got[TargetId("t0")] <= max(others)


def test_what_is_kept_for_repair_counts_as_taken() -> None:
    bench = Bench(8)
    fill(bench, *bench.targets, taken=0.90)
    fill(bench, "t0", taken=0.94)
    assert columns(bench, 40)[TargetId("t0")] < 8
