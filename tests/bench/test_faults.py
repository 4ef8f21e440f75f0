"""Fault words become deeds done to the right processes at the right time, and are undone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckptbench.faults.inject import Injector, check_netem
from ckptbench.faults.words import After, AtShare, Before, FaultKind, parse_faults
from tests.waiting import wait_until


class Sleepers:
    """Real processes in the place of targets."""

    def __init__(self, count: int) -> None:
        self.processes = {f"t{number}": self._start() for number in range(count)}
        self.started: list[str] = []
        self.slowness: dict[str, float] = {}

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(self.processes)

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def port(self, name: str) -> int:
        return 0

    def kill_target(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def start_target(self, name: str) -> None:
        self.processes[name] = self._start()
        self.started.append(name)

    def slow_device(self, name: str, times: float) -> None:
        self.slowness[name] = times

    def wait_live(self, count: int) -> None:
        assert all(one.poll() is None for one in self.processes.values())

    def state(self, name: str) -> str:
        """R, S, T (stopped), as the kernel says."""
        status = Path(f"/proc/{self.pid(name)}/stat").read_text()
        return status.rpartition(")")[2].split()[0]

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"])


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    found = Sleepers(3)
    yield found
    found.end()


def test_words_say_who_what_and_when() -> None:
    kill, slow, stop, netem = parse_faults(
        "kill:target=2@50%,slow:target=1:5x,stop:targets=2@200ms,"
        "netem:target=0:delay=10ms,loss=1%@before",
        6,
    )
    assert (kill.kind, kill.target, kill.when) == (FaultKind.KILL, 2, AtShare(0.5))
    assert (slow.slow_factor, slow.when) == (5.0, AtShare(0.0))
    assert (stop.target, stop.count, stop.when) == (None, 2, After(0.2))
    assert (netem.netem, netem.when) == ("delay=10ms,loss=1%", Before())
    assert [str(one) for one in (kill, slow, stop, netem)] == [
        "kill:target=2@50%", "slow:target=1:5x@0%", "stop:targets=2@0.2s",
        "netem:target=0:delay=10ms,loss=1%@before",
    ]  # fmt: skip


def test_so_many_targets_are_others_in_each_checkpoint() -> None:
    (fault,) = parse_faults("kill:targets=2", 3)
    assert [fault.targets(3, loop) for loop in range(3)] == [(0, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("kill", "not understood"), ("maim:target=1", "not understood"),
        ("kill:target=6", "there are 6 targets"), ("kill:targets=0", "there are 6 targets"),
        ("kill:targets=7", "there are 6 targets"), ("kill:target=1:5x", "takes no amount"),
        ("slow:target=1:fast", "how many times"), ("slow:target=1:0.5x", "how many times"),
        ("device:target=1:1x", "device takes how many times"),
        ("netem:target=1", "netem takes"), ("netem:target=1:reboot", "netem takes"),
        ("kill:target=1@101%", "less than 100%"), ("kill:target=1@soon", "not a time"),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_refused_by_name(text: str, cause: str) -> None:
    with pytest.raises(Refused, match=cause):
        parse_faults(text, 6)


def test_a_kill_waits_for_its_share_and_is_healed(sleepers: Sleepers) -> None:
    injector = Injector(sleepers, parse_faults("kill:target=1@50%", 3), 0)
    injector.strike_before()
    injector.start(time.monotonic_ns())
    injector.moved(0.49)
    assert sleepers.processes["t1"].poll() is None
    injector.moved(0.5)
    wait_until(
        lambda: sleepers.processes["t1"].poll() is not None, "the target is struck or healed"
    )
    (note,) = injector.end()
    assert note.startswith("kill t1 after")
    assert "50% of its bytes" in note
    (strike,) = injector.strikes
    assert (strike.target, strike.kind) == ("t1", "kill")
    assert note.startswith(f"kill t1 after {strike.at_ns / 1e6:.0f} ms, ")
    assert sleepers.started == ["t1"]


def test_a_stopped_target_stands_still_until_the_end(sleepers: Sleepers) -> None:
    injector = Injector(sleepers, parse_faults("stop:targets=2@1ms", 3), 1)
    injector.start(time.monotonic_ns())
    wait_until(
        lambda: sleepers.state("t1") == sleepers.state("t2") == "T",
        "the target is struck or healed",
    )
    assert sleepers.state("t0") != "T"
    injector.end()
    wait_until(
        lambda: sleepers.state("t1") != "T" and sleepers.state("t2") != "T",
        "the target is struck or healed",
    )


def test_a_slow_target_is_stopped_most_of_the_time_and_runs_again(sleepers: Sleepers) -> None:
    injector = Injector(sleepers, parse_faults("slow:target=0:20x", 3), 0)
    injector.start(time.monotonic_ns())
    wait_until(lambda: sleepers.state("t0") == "T", "the target is struck or healed")
    wait_until(lambda: sleepers.state("t0") != "T", "the target is struck or healed")
    injector.end()
    wait_until(lambda: sleepers.state("t0") == "R", "the target is struck or healed")


def test_a_slow_device_is_slow_until_the_end(sleepers: Sleepers) -> None:
    injector = Injector(sleepers, parse_faults("device:target=2@50%", 3), 0)
    injector.start(time.monotonic_ns())
    assert sleepers.slowness == {}
    injector.moved(0.5)
    wait_until(lambda: sleepers.slowness == {"t2": 100.0}, "the device is struck")
    (note,) = injector.end()
    assert note.startswith("device t2 after")
    assert sleepers.slowness == {"t2": 1.0}


def test_a_fault_that_comes_too_late_says_so(sleepers: Sleepers) -> None:
    injector = Injector(sleepers, parse_faults("kill:target=1@99%", 3), 0)
    injector.start(time.monotonic_ns())
    assert injector.end() == ("kill:target=1@99%: came too late, nothing was done",)
    assert sleepers.processes["t1"].poll() is None


def test_netem_is_refused_where_the_run_has_no_namespace_of_its_own() -> None:
    faults = parse_faults("netem:target=0:delay=1ms", 3)
    with pytest.raises(Refused, match="namespace"):
        check_netem(faults, isolated=False)
    check_netem(parse_faults("kill:target=0", 3), isolated=False)
