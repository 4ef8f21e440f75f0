"""How are faults done to targets? By signals to the run's own processes, and tc in its own network
namespace.

I strike when a checkpoint is as far as a fault asks for, and heal after it: what was killed is
started again, what was stopped goes on. Nothing outside this run is ever touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from ckpt.base.errors import Refused
from ckptbench.faults.words import BEFORE_S, After, AtShare, Before, Fault, FaultKind
from ckptbench.results import Strike

SLOW_PERIOD_S: Final = 0.04
"""A slow target runs for a part of each of these, and is stopped for the rest."""
POLL_S: Final = 0.002
BANDS: Final = 16
"""tc's prio knows so many; the last ones are for faults."""


class Targets(Protocol):
    """The targets that a fault may strike; BenchCluster is one."""

    @property
    def target_names(self) -> tuple[str, ...]: ...

    def pid(self, name: str) -> int: ...

    def port(self, name: str) -> int: ...

    def kill_target(self, name: str) -> None: ...

    def start_target(self, name: str) -> None: ...

    def slow_device(self, name: str, times: float) -> None: ...

    def wait_live(self, count: int) -> None: ...


def check_netem(faults: Sequence[Fault], *, isolated: bool) -> None:
    """Raises Refused where netem cannot be had, before anything is started."""
    if not any(one.kind is FaultKind.NETEM for one in faults):
        return
    if not isolated:
        raise Refused(
            "netem needs a network namespace of the run's own",
            hint="run as root, or where unshare(CLONE_NEWNET) is allowed",
        )
    if shutil.which("tc") is None:
        raise Refused("netem needs the command tc", hint="install iproute2")
    try:
        _tc("qdisc", "add", "dev", "lo", "root", "netem", "delay", "0ms")
    except Refused as error:
        raise Refused(
            f"this kernel has no netem: {error.message}", hint="modprobe sch_netem"
        ) from None
    _tc("qdisc", "del", "dev", "lo", "root")


class Injector:
    """I strike targets during one checkpoint."""

    def __init__(self, targets: Targets, faults: Sequence[Fault], loop: int) -> None:
        self._targets = targets
        self._left = [(fault, self._names(fault, loop)) for fault in faults]
        self._notes: list[str] = []
        self._strikes: list[Strike] = []
        self._killed: list[str] = []
        self._stopped: list[int] = []
        self._slow: list[_SlowTarget] = []
        self._slow_devices: list[str] = []
        self._netems = 0
        self._begun_ns = 0
        self._moved_share = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def strikes(self) -> tuple[Strike, ...]:
        """Faults that were carried out since the checkpoint began."""
        return tuple(self._strikes)

    def strike_before(self) -> None:
        """What is to be done before the checkpoint, and its rest."""
        due = [one for one in self._left if isinstance(one[0].when, Before)]
        self._left = [one for one in self._left if one not in due]
        for fault, names in due:
            self._strike(fault, names, "before it")
        if due:
            time.sleep(BEFORE_S)

    def start(self, begun_ns: int) -> None:
        """Watch a checkpoint that begins then."""
        self._begun_ns = begun_ns
        if self._left:
            self._thread = threading.Thread(target=self._watch, name="faults", daemon=True)
            self._thread.start()

    def moved(self, share: float) -> None:
        """So much (0 to 1) of the checkpoint's bytes have reached the targets."""
        self._moved_share = share

    def end(self) -> tuple[str, ...]:
        """The checkpoint is over, or failed: heal, and say what was done when."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._heal()
        late = [f"{fault}: came too late, nothing was done" for fault, _ in self._left]
        return (*self._notes, *late)

    # ----------------------------------------------------------------------- inside

    def _names(self, fault: Fault, loop: int) -> tuple[str, ...]:
        names = self._targets.target_names
        return tuple(names[number] for number in fault.targets(len(names), loop))

    def _watch(self) -> None:
        while self._left and not self._ended.wait(POLL_S):
            now_ns = time.monotonic_ns() - self._begun_ns
            for one in list(self._left):
                if now_ns >= 0 and self._is_due(one[0], now_ns):
                    self._left.remove(one)
                    note = (
                        f"after {now_ns / 1e6:.0f} ms, {100 * self._moved_share:.0f}% of its bytes"
                    )
                    fault, names = one
                    self._strike(fault, names, note)
                    self._strikes += [Strike(name, fault.kind.value, now_ns) for name in names]

    def _is_due(self, fault: Fault, now_ns: int) -> bool:
        match fault.when:
            case AtShare(share):
                return self._moved_share >= share
            case After(seconds):
                return now_ns >= seconds * 1e9
            case Before():
                return True

    def _strike(self, fault: Fault, names: Sequence[str], when: str) -> None:
        for name in names:
            match fault.kind:
                case FaultKind.KILL:
                    self._targets.kill_target(name)
                    self._killed.append(name)
                case FaultKind.STOP:
                    pid = self._targets.pid(name)
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.append(pid)
                case FaultKind.SLOW:
                    self._slow.append(_SlowTarget(self._targets.pid(name), fault.slow_factor))
                case FaultKind.DEVICE:
                    self._targets.slow_device(name, fault.slow_factor)
                    self._slow_devices.append(name)
                case FaultKind.NETEM:
                    self._disturb(name, fault.netem)
            self._notes.append(f"{fault.kind.value} {name} {when}")

    def _disturb(self, name: str, arguments: str) -> None:
        if not self._netems:
            priorities = ["0"] * 16
            _tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "prio",
                "bands", str(BANDS), "priomap", *priorities)  # fmt: skip
        band = BANDS - self._netems
        self._netems += 1
        words = arguments.replace("=", " ").replace(",", " ").split()
        _tc("qdisc", "add", "dev", "lo", "parent", f"1:{band:x}", "handle", f"{band + 16:x}:",
            "netem", *words)  # fmt: skip
        for side in ("dport", "sport"):
            _tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "u32", "match",
                "ip", side, str(self._targets.port(name)), "0xffff", "flowid", f"1:{band:x}")  # fmt: skip

    def _heal(self) -> None:
        for slow in self._slow:
            slow.end()
        for name in self._slow_devices:
            self._targets.slow_device(name, 1.0)
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if self._netems:
            _tc("qdisc", "del", "dev", "lo", "root")
        for name in self._killed:
            self._targets.start_target(name)
        if self._killed or self._stopped:
            self._targets.wait_live(len(self._targets.target_names))
        self._slow, self._stopped, self._killed, self._netems = [], [], [], 0
        self._slow_devices = []


class _SlowTarget:
    """I let a process run 1/factor of the time."""

    def __init__(self, pid: int, factor: float) -> None:
        self._pid = pid
        self._run_s = SLOW_PERIOD_S / factor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pace, name="slow target", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """It runs as it did."""
        self._ended.set()
        self._thread.join()

    def _pace(self) -> None:
        with suppress(ProcessLookupError):
            try:
                while not self._ended.is_set():
                    os.kill(self._pid, signal.SIGSTOP)
                    self._ended.wait(SLOW_PERIOD_S - self._run_s)
                    os.kill(self._pid, signal.SIGCONT)
                    self._ended.wait(self._run_s)
            finally:
                os.kill(self._pid, signal.SIGCONT)


def _tc(*words: str) -> None:
    done = subprocess.run(["tc", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise Refused(f"tc {' '.join(words[:2])}: {said[0] if said else done.returncode}")
