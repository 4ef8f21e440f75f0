"""The supervisor, over real processes; in one of its own, since it forks and owns signals."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptd.local.children import ChildPlan
from tests.waiting import wait_until

SUPERVISOR = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
from ckptd.local import children as supervise
from ckptd.local.children import ChildPlan, RestartPolicy, Supervisor

supervise.BACKOFF_FIRST_S, supervise.BACKOFF_LAST_S = 0.02, 0.1
directory, policy, child = Path(sys.argv[1]), RestartPolicy(sys.argv[2]), sys.argv[3]

def say(what):
    children = supervisor.children
    document = {name: [c.state.value, c.pid, c.start_count] for name, c in children.items()}
    aside = directory / "state.aside"
    with suppress(OSError):
        aside.write_text(json.dumps(document))
        aside.rename(directory / "state")

def run(argv):
    os.execv(argv[0], argv)

failures = (directory / "failures").open("ab", buffering=0)

def report(level, text, fields):
    if text == "cannot be started now":
        failures.write(b".")

supervisor = Supervisor(run, say, report)
for name in ("a", "b"):
    argv = [sys.executable, "-c", child, str(directory / name)]
    log = directory / f"{name}.log"
    holds = (directory / f"{name}.held",)
    supervisor.add(ChildPlan(name, lambda argv=argv: argv, log, policy, holds))
ended = []
supervisor.watch(0, lambda: ended.append(os.read(0, 1)))
while not ended:
    supervisor.run_once(1.0)
supervisor.stop(grace_s=float(sys.argv[4]))
"""

CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(open(sys.argv[1] + ".clean", "w").close()))
print("an error", file=sys.stderr, flush=True)
print('{"address": "%d"}' % os.getpid(), flush=True)
while True:
    signal.pause()
"""


class Running:
    """A supervisor of children `a` and `b`."""

    def __init__(
        self, directory: Path, policy: str, child: str = CHILD, grace_s: float = 30
    ) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(directory), policy, child, str(grace_s)],
            stdin=subprocess.PIPE,
        )

    def state(self, name: str) -> tuple[str, int | None, int]:
        """(state, pid, starts)"""
        path = self.directory / "state"
        if not path.exists():
            return ("unknown", None, 0)
        state, pid, start_count = json.loads(path.read_text())[name]
        return (state, pid, start_count)

    def wait_ready(self, *names: str, start_count: int = 1) -> list[int]:
        def ready() -> bool:
            states = [self.state(name) for name in names]
            return all(state == "ready" and n >= start_count for state, _, n in states)

        wait_until(ready, f"{names} ready")
        pids = [self.state(name)[1] for name in names]
        return [pid for pid in pids if pid is not None]

    def failures(self) -> int:
        """How often a child could not be started."""
        path = self.directory / "failures"
        return path.stat().st_size if path.exists() else 0

    def wait_failures(self, count: int) -> None:
        wait_until(lambda: self.failures() >= count, "it is tried again")

    def descriptors(self) -> set[int]:
        """Of the supervisor."""
        return {int(name) for name in os.listdir(f"/proc/{self.process.pid}/fd")}

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for running in started:
        running.process.kill()
        running.process.wait()
        assert running.process.stdin is not None
        running.process.stdin.close()


def test_children_are_stopped_cleanly_also_a_stopped_one(
    tmp_path: Path, start: list[Running]
) -> None:
    start.append(running := Running(tmp_path, "always"))
    pids = running.wait_ready("a", "b")
    os.kill(pids[0], signal.SIGSTOP)
    running.stop()
    assert all(is_gone(pid) for pid in pids)
    assert (tmp_path / "a.clean").exists()
    assert (tmp_path / "b.clean").exists()
    assert (tmp_path / "a.log").read_text() == "an error\n"


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(
    tmp_path: Path, start: list[Running]
) -> None:
    stubborn = CHILD.replace("lambda *_: sys.exit", "lambda *_: (lambda x: None)")
    start.append(running := Running(tmp_path, "always", stubborn, grace_s=0.1))
    pids = running.wait_ready("a", "b")
    running.stop()
    assert all(is_gone(pid) for pid in pids)


def test_a_child_that_died_is_started_again_as_another_process(
    tmp_path: Path, start: list[Running]
) -> None:
    start.append(running := Running(tmp_path, "always"))
    pids = running.wait_ready("a", "b")
    for life in (2, 3, 4):
        os.kill(pids[0], signal.SIGKILL)
        (again,) = running.wait_ready("a", start_count=life)
        assert again != pids[0]
        pids[0] = again
    assert running.state("b") == ("ready", pids[1], 1)
    running.stop()


def test_where_nothing_can_be_started_now_the_others_go_on_and_it_is_tried_again(
    tmp_path: Path, start: list[Running]
) -> None:
    """As where memory has run out, of which the child has died as well."""
    start.append(running := Running(tmp_path, "always"))
    pids = running.wait_ready("a", "b")
    supervisor = running.process.pid
    before = len(running.descriptors())
    (tmp_path / "b.held").touch()
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: running.state("b") == ("waiting", None, 1), "b has ended")
    free = [number for number in range(100) if number not in running.descriptors()]
    limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    # None is left for its log, its pipe, what watches it.
    for number in free[:4]:
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (number, limits[1]))
        (tmp_path / "b.held").unlink(missing_ok=True)
        running.wait_failures(running.failures() + 2)
    assert not is_gone(pids[0])
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
    running.wait_ready("b", start_count=2)
    assert running.state("a") == ("ready", pids[0], 1)
    assert len(running.descriptors()) == before
    running.stop()


def test_with_restart_never_it_stays_down(tmp_path: Path, start: list[Running]) -> None:
    start.append(running := Running(tmp_path, "never"))
    pids = running.wait_ready("a", "b")
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: running.state("a") == ("down", None, 1), "a is down")
    assert running.state("b") == ("ready", pids[1], 1)
    running.stop()


def test_a_held_child_stays_down_until_its_hold_goes(tmp_path: Path, start: list[Running]) -> None:
    start.append(running := Running(tmp_path, "always"))
    pids = running.wait_ready("a", "b")
    (tmp_path / "a.held").touch()
    os.kill(pids[0], signal.SIGKILL)
    os.kill(pids[1], signal.SIGKILL)
    running.wait_ready("b", start_count=2)
    assert running.state("a") == ("waiting", None, 1)
    (tmp_path / "a.held").unlink()
    running.wait_ready("a", start_count=2)
    running.stop()


def test_a_child_whose_place_is_gone_is_held_too(tmp_path: Path) -> None:
    place = tmp_path / "place"
    plan = ChildPlan("a", lambda: (), tmp_path / "log", holds=(place / "held",), place=place)
    assert plan.is_held
    place.mkdir()
    assert not plan.is_held
    (place / "held").touch()
    assert plan.is_held


def test_when_the_supervisor_is_killed_no_child_is_left_not_even_a_stopped_one(
    tmp_path: Path, start: list[Running]
) -> None:
    start.append(running := Running(tmp_path, "always"))
    pids = running.wait_ready("a", "b")
    os.kill(pids[0], signal.SIGSTOP)
    running.process.kill()
    wait_until(lambda: all(is_gone(pid) for pid in pids), "no child is left")


def test_a_child_without_a_ready_line_is_killed_and_tried_again(
    tmp_path: Path, start: list[Running]
) -> None:
    start.append(
        running := Running(
            tmp_path, "always", "print('hello', flush=True)\nimport signal\nsignal.pause()"
        )
    )
    wait_until(lambda: running.state("a")[2] >= 2, "a second start")
    running.stop()
