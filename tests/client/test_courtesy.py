"""A stager is nicer than its trainer, in all of its threads, once that does not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckpt.base.units import MiB
from ckpt_client.stager.patience import NICE
from tests.client.test_stager_process import Bench, stage
from tests.waiting import wait_until

PR_CAPBSET_DROP = 24
CAP_SYS_ADMIN = 21


GROUP = Path("/proc/self/autogroup")


def niceness(pid: int) -> set[int]:
    """How much nicer than we all its threads are, and its session, which begins with 0."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    tasks = os.listdir(f"/proc/{pid}/task")
    found = {os.getpriority(os.PRIO_PROCESS, int(task)) - ours for task in tasks}
    if GROUP.exists():
        found.add(int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1]))
    return found


def back() -> set[int]:
    """The `niceness` of who has stepped back."""
    found = {min(NICE, 19 - os.getpriority(os.PRIO_PROCESS, 0))}
    return found | {NICE} if GROUP.exists() else found


def test_a_stager_is_nicer_than_its_trainer_once_that_does_not_wait_for_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        link = Bench(tmp_path, stack).start()
        link.ask_half(1, "run", 1, 3 * MiB, "wait")
        assert link.wait_half(1) is not None
        assert niceness(link.pid) == {0}, "a first save waits for its start and its memory"
        link.drop(1)
        assert stage(link, 2) is not None
        wait_until(lambda: niceness(link.pid) == back(), "all that it does beside the training")


def test_stagers_that_are_prepared_at_one_moment_all_step_back(tmp_path: Path) -> None:
    """Of users who have no right for more, a kernel lets one at a time: ten a second."""
    if not GROUP.exists():
        pytest.skip("SKIPPED LOUDLY: this kernel weighs no sessions")
    script = f"""
import ctypes, os, sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
if "unprivileged" not in sys.argv:
    ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, {CAP_SYS_ADMIN}, 0, 0, 0)
    os.execv(sys.executable, [*sys.orig_argv, "unprivileged"])
from tests.client.test_courtesy import back, niceness
from tests.client.test_stager_process import Bench
from tests.waiting import wait_until

with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
    bench = Bench(Path({str(tmp_path)!r}), stack)
    links = list(pool.map(lambda _: bench.start(idle_s=60.0), range(4)))
    list(pool.map(lambda link: link.prepare(1), links))
    for link in links:
        wait_until(lambda: niceness(link.pid) == back(), "a stager that steps back")
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
