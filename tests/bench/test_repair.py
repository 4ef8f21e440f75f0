"""What is found of lost columns becomes ratios and goals; a coordinator's own machine is driven."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt.erasure.code import Code
from ckptbench.cli import main
from ckptbench.figures import Costs
from ckptbench.repair import goals
from ckptbench.repair.plan import (
    BesideRebuilds,
    BurstTimes,
    ColumnMade,
    Kill,
    QueueFigures,
    RepairFigures,
    RepairPlan,
    RepairRound,
    TargetMade,
)
from ckptbench.repair.queue import measure_queue
from ckptbench.report.repair_text import repair_text
from ckptbench.results import Machine

MIB = 1 << 20
PLAN = RepairPlan(loops=2)
MACHINE = Machine("cpu", 2, 1 << 30, "linux", "3.11", "isa-l")
MADE = TargetMade(
    seconds=2.0, payloads=10, columns=10, bytes=200_000_000, needed_bytes=800_000_000,
    read_bytes=804_000_000, written_bytes=200_200_000, cpu_s=1.6, worker_bytes=130 * MIB,
    given_bytes={"t1": 100, "t2": 110, "t3": 90},
)  # fmt: skip


BESIDE = BesideRebuilds((0.19, 0.2, 0.3), (0.2, 0.2, 0.29), 32e6, 31e6)


def one_round(made_s: float) -> RepairRound:
    return RepairRound(
        ColumnMade(read_s=1.0, made_s=made_s, bytes=120_000_000), MADE, Kill(6.0, 100_000_000),
        BurstTimes(0.2, None),
    )  # fmt: skip


def found(
    *rounds: RepairRound,
    several: TargetMade | None = None,
    moved: TargetMade | None = None,
    beside: BesideRebuilds = BESIDE,
) -> RepairFigures:
    costs = Costs(copy=0, ec=0, fingerprint=0, crc=0, tx=0, rx=0, read=0, touch=0)
    queue = QueueFigures(1000, 0.005, 0.005, 100, 0.01)
    return RepairFigures(
        rounds, several, MADE, queue, costs, bound_gb_per_s=0.2, cores=2, beside=beside, moved=moved
    )


def test_a_column_stands_beside_its_sources_and_a_target_beside_a_column() -> None:
    run = found(one_round(1.2), one_round(1.4))
    assert goals.column_ratio(run).median == pytest.approx(1.3)
    assert goals.column_rate(run).high == pytest.approx(0.1)
    assert goals.target_rate(run).median == pytest.approx(0.1)
    assert goals.target_ratio(run).low == pytest.approx(1.0)
    assert goals.eta(run).high == pytest.approx(0.5)
    # 10 CPU seconds for each GB that must be, and 8 that were.
    assert goals.eta_of_cpu(run).median == pytest.approx(10 / 8)


def test_bytes_stand_beside_k_columns_of_each_payload_and_beside_what_was_lost() -> None:
    assert goals.read_ratio([MADE, MADE]) == pytest.approx(1.005)
    assert goals.written_ratio([MADE]) == pytest.approx(1.001)
    assert MADE.unevenness == pytest.approx(1.1)


def test_a_kill_may_take_the_wait_ten_seconds_and_a_quarter_more_than_the_rate_says() -> None:
    run = found(one_round(1.2))
    assert goals.kill_bounds_s(run, PLAN) == pytest.approx([2 + 10 + 1.25])
    assert goals.kill_ratio(run, PLAN).median == pytest.approx(6 / 13.25)


def test_bursts_beside_rebuilds_stand_beside_the_median_of_those_alone() -> None:
    run = found(one_round(1.2))
    beside = goals.during_rebuild(run)
    assert beside is not None
    assert (beside.median, beside.count) == (1.0, 3)
    assert beside.high == pytest.approx(1.45)
    assert goals.floor_kept(run) == pytest.approx(31 / 32)
    slow = replace(BESIDE, read_bytes_per_s=28e6)
    named = {
        goal.name: goal.met for goal in goals.find_goals(found(one_round(1.2), beside=slow), PLAN)
    }
    assert named["the worst of 3"]
    assert not named["a rebuild during saves / its floor"]


def test_a_burst_that_outlasted_the_rebuild_says_nothing_and_no_goal_is_met_by_it() -> None:
    run = found(one_round(1.2), beside=BesideRebuilds((0.2,), (), 32e6, None))
    assert goals.during_rebuild(run) is None
    assert goals.floor_kept(run) is None
    assert goals.during_scrub(run) is None
    names = [goal.name for goal in goals.find_goals(run, PLAN)]
    assert "burst during a rebuild / alone" not in names
    assert "burst during a scrub / alone" not in names
    assert "no scrub outlasted a burst" in repair_text(run, PLAN, MACHINE)
    assert "no rebuild outlasted a burst" in repair_text(run, PLAN, MACHINE)
    assert "it was over before the saves" in repair_text(run, PLAN, MACHINE)


def test_each_goal_is_missed_by_what_is_beyond_it() -> None:
    good = found(one_round(1.1), several=MADE, moved=MADE)
    assert [goal.name for goal in goals.find_goals(good, PLAN) if not goal.met] == []
    worse = replace(
        MADE, read_bytes=809_000_000, written_bytes=201_100_000, worker_bytes=257 * MIB,
        given_bytes={"t1": 100, "t2": 120, "t3": 90}, seconds=9.0,
    )  # fmt: skip
    late = replace(one_round(1.4), target=worse, kill=Kill(90.0, 1), bursts=BurstTimes(0.2, 0.3))
    bad = replace(
        found(late, several=worse, moved=worse), even=worse, queue=QueueFigures(1000, 0.011, 0.1, 100, 0.02),
        bound_gb_per_s=0.5, beside=BesideRebuilds((0.2,), (0.3, 0.4), 32e6, 20e6),
    )  # fmt: skip
    assert [goal.name for goal in goals.find_goals(bad, PLAN) if goal.met] == []


def test_people_see_all_of_it() -> None:
    run = found(one_round(1.2), several=MADE, moved=MADE)
    lines = repair_text(run, PLAN, MACHINE).splitlines()
    assert "read / moved, 1 drained     4.020 of 4.000 needed; written / lost 1.0010" in lines
    assert "  over its sources read     1.200 [1.200, 1.200]" in lines
    assert "read / lost, 1 column lost  4.020 of 4.000 needed; written / lost 1.0010" in lines
    assert "sources, max / mean         1.100 over 10 payloads (100 B, 110 B, 90 B)" in lines
    assert "met    a column / its sources read: 1.2 <= 1.3" in lines
    assert "  during a rebuild / alone  1.000 [1.000, 1.450], 3 of 20 that it outlasted" in lines
    assert "a rebuild during saves      29.6 of 30.5 MiB/s read" in lines


@pytest.mark.parametrize("code", [Code(2, 1), Code(4, 2)])
def test_a_coordinator_queues_what_is_lost_and_all_that_is_made_counts(code: Code) -> None:
    queue = measure_queue(code, 60)
    assert (queue.columns, queue.leased) == (60, 60)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--code=4+0"], "has no parity"),
        (["--targets=6"], "one that stays away needs more than the code's 6"),
        (["--size=1Mi", "--large=1Mi"], "larger than the others"),
        (["--loops=0"], "are at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", *flags]) == 2
    assert told in capsys.readouterr().err
