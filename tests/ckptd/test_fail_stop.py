"""A defect in a daemon's machine ends the process with a named reason; a network error does not."""

from __future__ import annotations

import asyncio

import pytest

from ckpt.base.errors import CkptError
from ckptd.fail_stop import FailStop
from ckptd.log import Fields


def run_with(error: Exception) -> tuple[list[tuple[str, str]], bool, FailStop]:
    """What was reported when a callback raised it, whether the daemon was to stop, the watch."""
    reports: list[tuple[str, str]] = []

    def report(level: str, text: str, values: Fields) -> None:
        reports.append((level, text))

    def fail() -> None:
        raise error

    async def daemon() -> tuple[bool, FailStop]:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        watch = FailStop(loop, report, stop.set)
        loop.call_soon(fail)
        after = loop.create_future()
        loop.call_soon(after.set_result, None)
        await after
        return stop.is_set(), watch

    stopped, watch = asyncio.run(daemon())
    return reports, stopped, watch


def test_a_broken_invariant_stops_the_daemon_and_is_named() -> None:
    reports, stopped, watch = run_with(AssertionError("two columns on one target"))
    assert stopped
    assert reports[0][0] == "error"
    with pytest.raises(CkptError, match="two columns on one target") as raised:
        watch.check()
    assert raised.value.exit_code == 1


def test_a_network_error_is_reported_and_served_on() -> None:
    reports, stopped, watch = run_with(TimeoutError("no route"))
    assert not stopped
    assert reports[0][0] == "warning"
    watch.check()
