"""Signals and a real stager process: what it ends for, what it says then, and a trainer's handler
that saves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pytest

from ckpt.base.errors import Aborted
from ckpt_client.save.links import stager_link
from tests.client.test_stager_process import Bench, runs, stage
from tests.waiting import wait_until

ENDING = (signal.SIGTERM, signal.SIGINT)
"""They ask a stager to end."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, *ENDING])
def test_a_signal_for_the_whole_job_leaves_a_stager_to_its_saves(
    bench: Bench, number: signal.Signals
) -> None:
    """As Slurm and systemd send them: to every process."""
    link = bench.start(idle_s=3600.0)
    os.kill(link.pid, number)
    assert stage(link, 1) is not None, "it still takes the last save"
    assert stage(link, 2) is not None
    assert link.alive


@pytest.mark.parametrize("number", ENDING)
def test_a_stager_that_is_asked_to_end_ends_with_its_trainer(
    bench: Bench, number: signal.Signals
) -> None:
    link = bench.start(idle_s=3600.0)
    os.kill(link.pid, number)
    link.drop(1)
    link.close()
    wait_until(lambda: not runs(link.pid), "its end, long before it would be idle for an hour")


def test_what_a_stager_gives_up_stands_in_its_log_and_in_its_exit_code(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a save of a cluster whose directory goes."""
    begun: list[subprocess.Popen[bytes]] = []

    def started(arguments: Sequence[str], *, log: Path, pass_fds: Sequence[int] = ()) -> int:
        with log.open("ab") as file:
            begun.append(
                subprocess.Popen([sys.executable, *arguments], stderr=file, pass_fds=pass_fds)
            )
        return begun[0].pid

    monkeypatch.setattr(stager_link, "start_detached", started)
    link = bench.start(idle_s=3600.0)
    assert stage(link, 1) is not None
    bench.directory.rename(bench.directory.with_name("elsewhere"))
    os.kill(link.pid, signal.SIGTERM)
    link.close()
    assert begun[0].wait(60) == Aborted.exit_code
    lines = (bench.directory.with_name("elsewhere") / "stager.log").read_text().splitlines()
    (told,) = (line for line in map(json.loads, lines) if line["level"] == "error")
    assert told["save"] == "run@1"
    assert "not known to be committed" in told["text"]


def test_who_has_interrupted_the_reader_reads_in_its_place(bench: Bench) -> None:
    """The store refuses what a handler asks for there; its link stands it."""
    link = bench.start()
    staged: list[bool] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        staged.append(stage(link, 1) is not None)

    def strike() -> None:
        wait_until(lambda: link._reader != 0, "the wait")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        striking = threading.Thread(target=strike)
        striking.start()
        link.wait_until(lambda: bool(staged), None)
        striking.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert staged == [True]
    assert stage(link, 2) is not None, "later saves go on"
