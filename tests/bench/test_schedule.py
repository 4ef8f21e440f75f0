"""Which loops there are and which count, told the time; how long ranks rest between them."""

from __future__ import annotations

from ckptbench.job.options import JobOptions
from ckptbench.run.schedule import Loop, Schedule, pause_s


def loops(options: JobOptions, *times: float) -> str:
    """W, C and E for what comes at these times."""
    schedule = Schedule(options)
    return "".join(schedule.following(at).name[0] for at in times)


def test_warm_ups_come_first_and_then_as_many_as_asked_for() -> None:
    assert loops(JobOptions(loops=2, warmups=1), 0, 1, 2, 3) == "WCCE"


def test_loops_within_the_ramp_do_not_count() -> None:
    assert loops(JobOptions(loops=2, ramp_time=5), 0, 4, 5, 6, 7) == "WWCCE"


def test_runtime_alone_is_a_limit_and_with_time_based_a_floor() -> None:
    assert loops(JobOptions(loops=9, runtime=3), 0, 1, 2, 3) == "CCCE"
    assert loops(JobOptions(loops=1, runtime=3, time_based=True), 0, 1, 2, 3) == "CCCE"
    assert loops(JobOptions(loops=3, runtime=1, time_based=True), 0, 2, 4, 6) == "CCCE"
    assert loops(JobOptions(loops=2, runtime=1, ramp_time=2), 0, 9, 10) == "WCE"


def test_at_least_one_loop_counts_and_a_discarded_one_is_done_again() -> None:
    assert loops(JobOptions(loops=1, runtime=1), 7) == "C"
    schedule = Schedule(JobOptions(loops=1))
    assert schedule.following(0) is Loop.COUNTED
    schedule.discard()
    assert schedule.following(1) is Loop.COUNTED
    assert schedule.following(2) is Loop.END


def test_ranks_rest_to_think_or_to_stay_below_the_rate() -> None:
    assert pause_s(JobOptions(thinktime=5.0), "write", 100, 1.0) == 5.0
    assert pause_s(JobOptions(rate=(0, 10)), "write", 100, 1.0) == 9.0
    assert pause_s(JobOptions(rate=(0, 10)), "read", 100, 1.0) == 0.0
    assert pause_s(JobOptions(rate=(0, 10), thinktime=20.0), "write", 100, 1.0) == 20.0
