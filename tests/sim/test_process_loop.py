"""The loop that the daemons' own code runs on in the simulator: asyncio, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clockwork import Clockwork
from tests.sim.leading.loop import ProcessLoop, running

SECOND_US = 1_000_000


def made(rate: float = 1.0) -> tuple[Clockwork, ProcessLoop]:
    clock = Clockwork(1)
    return clock, ProcessLoop(clock, "owner", rate)


async def _wait(seconds: float, ends: list[float]) -> None:
    """Notes when, by the process's clock."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        ends.append(loop.time())


def test_what_waits_goes_on_when_its_time_has_come() -> None:
    clock, loop = made()
    ends: list[float] = []
    began_s = loop.time()
    loop.create_task(_wait(2.0, ends))
    clock.pass_time(2 * SECOND_US - 1)
    assert not ends
    clock.pass_time(10)
    assert [round(end - began_s, 4) for end in ends] == [2.0]


@pytest.mark.parametrize(("rate", "waits_us"), [(1.05, 1_904_761), (0.95, 2_105_263)])
def test_a_clock_that_runs_fast_ends_a_wait_early_and_a_slow_one_late(
    rate: float, waits_us: int
) -> None:
    clock, loop = made(rate)
    ends: list[float] = []
    loop.create_task(_wait(2.0, ends))
    clock.pass_time(waits_us - 10)
    assert not ends
    clock.pass_time(20)
    assert len(ends) == 1


def test_a_stopped_process_does_nothing_and_finds_that_it_is_late() -> None:
    clock, loop = made()
    ends: list[float] = []
    began_s = loop.time()
    loop.create_task(_wait(2.0, ends))
    loop.call_soon(loop.stop_for_now)
    clock.after(10 * SECOND_US, loop.go_on)
    clock.pass_time(10 * SECOND_US - 1)
    assert not ends
    clock.pass_time(1)
    assert [round(end - began_s) for end in ends] == [10]


def test_a_killed_process_does_nothing_more_and_leaves_no_coroutine() -> None:
    clock, loop = made()
    ends: list[float] = []
    left: list[str] = []

    async def work() -> None:
        try:
            await _wait(2.0, ends)
        finally:
            left.append(running())

    loop.create_task(work())
    clock.pass_time(1)
    loop.kill()
    assert left == ["owner"]
    clock.pass_time(10 * SECOND_US)
    assert not ends


def test_a_task_that_nobody_waits_for_raises_where_it_ran() -> None:
    clock, loop = made()

    async def fail() -> None:
        raise ValueError("a defect")

    loop.create_task(fail()).add_done_callback(lambda done: done.result())
    with pytest.raises(ValueError, match="a defect"):
        clock.pass_time(1)


def test_tasks_take_turns_in_the_order_in_which_they_were_made() -> None:
    clock, loop = made()
    turns: list[str] = []

    async def say(name: str) -> None:
        for _ in range(2):
            turns.append(name)
            ready = loop.create_future()
            loop.call_soon(ready.set_result, None)
            await ready

    for name in "abc":
        loop.create_task(say(name))
    clock.pass_time(1)
    assert turns == list("abcabc")
