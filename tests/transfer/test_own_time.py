"""Time at work or without a processor is a thread's own; time that it waits for others is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ckpt.aio.clock import now_us
from ckpt.transfer.own_time import OwnTime, _starved_us

SPAN_US = 200_000


def work(span_us: int) -> None:
    begun_us = now_us()
    while now_us() - begun_us < span_us:
        sum(range(1000))


def test_work_is_own_time() -> None:
    own = OwnTime(now_us())
    work(SPAN_US)
    assert own.since_last(now_us(), 0) >= SPAN_US


def test_waiting_for_others_is_not() -> None:
    own = OwnTime(now_us())
    begun_us = now_us()
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    waited_us = now_us() - begun_us
    assert own.since_last(now_us(), waited_us) < waited_us


def test_time_without_a_processor_is_own_time() -> None:
    """Two that never rest on one processor: each waits for it half of the time."""
    if _starved_us() == 0:
        pytest.skip("this kernel keeps no schedstat")
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    rival = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        own, begun_us = OwnTime(now_us()), now_us()
        while not own.since_last(now_us(), now_us() - begun_us):
            work(SPAN_US // 10)
            assert now_us() - begun_us < 100 * SPAN_US, "as if nobody were there"
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, everywhere)
