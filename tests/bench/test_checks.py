"""What does not add up is an error; goals know what they are stated for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptbench.checks import (
    degraded_ratio,
    find_errors,
    find_goals,
    load_eta,
    save_eta,
    stall_ratio,
)
from ckptbench.results import Bounds, RankTimes, Spent
from tests.bench import made

MB = made.MB


def spent(**changes: int) -> Spent:
    base = Spent({}, wire_bytes=300 * MB, device_read=200 * MB, device_written=300 * MB)
    return replace(base, **changes)


def test_a_sound_job_has_no_error() -> None:
    assert find_errors(made.job(made.save(), made.save(1))) == []
    assert find_errors(made.job(made.load(), verb="load")) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"wire_bytes": 200 * MB}, "wire bytes are 0.667 x n/k"),
     ({"device_written": 400 * MB}, "device bytes are 1.333 x n/k")],
)  # fmt: skip
def test_a_save_whose_bytes_are_not_n_of_k_is_one(changes: dict[str, int], error: str) -> None:
    (found,) = find_errors(made.job(replace(made.save(), spent=spent(**changes))))
    assert error in found


def test_struck_saves_may_send_again_and_warm_ups_may_do_what_they_like() -> None:
    wrong = replace(made.save(), spent=spent(wire_bytes=1))
    assert find_errors(made.job(replace(wrong, faults=("kill t1",)))) == []
    assert find_errors(made.job(replace(wrong, counts=False))) == []


def test_a_load_that_was_not_cold_and_one_that_needed_no_parity_are_errors() -> None:
    warm = replace(made.load(), spent=spent(device_read=150 * MB))
    assert "not cold: 0.75" in find_errors(made.job(warm, verb="load"))[0]
    assert (
        "rebuilt nothing" in find_errors(made.job(made.load(kind="degraded"), verb="degraded"))[0]
    )
    assert find_errors(made.job(made.load(kind="degraded", rebuilt=1), verb="degraded")) == []


def test_nothing_is_faster_than_its_bound() -> None:
    bounds = replace(made.BOUNDS, restore_gb_per_s=1.0)
    assert "above its bound" in find_errors(made.job(made.load(), verb="load", bounds=bounds))[0]


def test_each_sink_has_its_own_eta() -> None:
    # 0.2 GB in 90 ms is 2.22 GB/s; x 3/2 against 4.1 GB/s of the raw device.
    disk = save_eta(made.job(made.save()))
    assert disk is not None
    assert disk.median == pytest.approx(0.2 / 0.09 * 1.5 / 4.1)
    null = save_eta(made.job(made.save(), discards=True, bounds=made.BOUNDS))
    assert null is not None
    assert null.median == pytest.approx(0.2 / 0.09 / 2.0)
    assert save_eta(made.job(replace(made.save(), raw_gb_per_s=None))) is None


def test_ratios_of_pairs_and_of_stalls() -> None:
    slow = made.load(kind="degraded", rebuilt=1)
    slow = replace(slow, ranks=(RankTimes(0, 1, 0, 1, 250 * made.MS),))
    pair = made.job(made.load(), slow, verb="degraded", bounds=Bounds(made.COSTS, 2.0, 3.0, 2))
    ratio, eta = degraded_ratio(pair), load_eta(pair)
    assert ratio is not None
    assert ratio.median == 0.5
    assert eta is not None
    assert eta.median == pytest.approx(0.2 / 0.125 / 3.0)
    stall = stall_ratio(made.job(made.save()))
    assert stall is not None
    assert stall.median == pytest.approx(1.2)


def test_goals_follow_from_what_was_measured() -> None:
    names = [one.name for one in find_goals(made.job(made.save(), daemon_bytes=1 << 20))]
    assert names == ["eta_disk", "stall / warm copy", "stager private MiB", "daemon MiB"]
    null = made.job(made.save(), discards=True, bounds=made.BOUNDS)
    assert [one.name for one in find_goals(null)][:2] == ["eta_cpu", "stall / warm copy"]
    assert find_goals(made.job(made.save(), code="", engine="posix"))[:1][0].name.startswith(
        "stager"
    )
    unprotected = made.job(made.save(), code="2+0", discards=True, bounds=made.BOUNDS)
    assert find_goals(unprotected)[0].next_limit == 0.85


@pytest.mark.parametrize(("transport", "limits"), [("tcp", (1.6, 0.95)), ("unix", (1.3, 0.65))])
def test_what_a_save_costs_has_a_goal_at_the_code_that_it_is_stated_for(
    transport: str, limits: tuple[float, float]
) -> None:
    one = replace(made.save(), spent=Spent({"stager": 0.3, "stager threads": 9.0, "targets": 0.1}))
    job = made.job(one, code="4+2", transport=transport, discards=True)
    (goal,) = (each for each in find_goals(job) if each.name == "CPU s/GB")
    assert goal.found == pytest.approx(0.4 / one.bytes * 1e9)
    assert (goal.limit, goal.next_limit, goal.at_least) == (*limits, False)
    for other in (replace(job, code="2+1"), replace(job, discards=False)):
        assert not [each for each in find_goals(other) if each.name == "CPU s/GB"]


def test_the_limits_are_those_that_must_hold_now() -> None:
    found = [*find_goals(made.job(made.save())), *find_goals(
        made.job(made.save(), discards=True, bounds=made.BOUNDS)
    )]  # fmt: skip
    bounds = Bounds(made.COSTS, 2.0, 3.0, 2)
    loads = made.load(), made.load(kind="degraded", rebuilt=1)
    found += find_goals(made.job(*loads, verb="degraded", bounds=bounds, daemon_bytes=1 << 20))
    limits = {one.name: (one.limit, one.next_limit) for one in found}
    assert limits["eta_disk"] == (0.60, 0.80)
    assert limits["eta_cpu"] == (0.50, 0.80)
    assert limits["stall / warm copy"] == (1.25, 1.10)
    assert limits["stager private MiB"] == (64, None)
    assert limits["daemon MiB"] == (192, None)
    assert limits["healthy restore eta"] == (0.50, 0.80)
    assert limits["degraded / healthy"] == (0.80, 0.90)
