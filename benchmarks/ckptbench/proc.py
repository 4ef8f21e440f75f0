"""What the kernel says of other processes, and how the benchmarks' own are found and ended.

CPU time comes from the process's CPU clock: nanoseconds, user and kernel, ended threads included.
Whatever a benchmark starts carries one environment variable with a random value, also what starts
detached (stagers), so that it can be ended by its own id and nothing else is.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK_NAME: Final = "CKPTBENCH_MARK"
END_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.02

CLONE_NEWNET: Final = 0x40000000
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, 0 when it is gone. The clock of another process, see
    clock_getcpuclockid.
    """
    try:
        return time.clock_gettime(((~pid) << 3) | 2)
    except OSError:
        return 0.0


def thread_cpu_s(pid: int) -> dict[int, float]:
    """CPU seconds of each living thread."""
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, IndexError):
                found[int(entry.name)] = int((entry / "schedstat").read_text().split()[0]) / 1e9
    return found


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """What a process had the devices move."""

    read: int
    written: int


def device_bytes(pid: int) -> DeviceBytes:
    """From /proc/PID/io; zeros when it cannot be read."""
    values = {"read_bytes": 0, "write_bytes": 0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(": ")
            values[name] = int(value)
    return DeviceBytes(values["read_bytes"], values["write_bytes"])


def resident_bytes(pid: int) -> int:
    """VmHWM: the most memory that it ever had."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def private_bytes(pid: int, without: str) -> int:
    """Private memory of a process in mappings whose name does not contain `without` (the
    arena's).
    """
    total, counts = 0, True
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            head = line.split(maxsplit=1)[0]
            if not head.endswith(":"):
                counts = without not in line  # A mapping begins: its addresses and its name.
            elif counts and head in ("Private_Clean:", "Private_Dirty:"):
                total += int(line.split()[1]) * 1024
    return total


def loopback_bytes() -> int:
    """Bytes that the loopback of this network namespace has received."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[0])
    return 0


def isolate_loopback() -> bool:
    """Give this process and its future children a loopback of their own, so that its counters are
    theirs.

    False when that is not allowed here; then others' traffic is counted too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            return False
    except AttributeError:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | IFF_UP))
    return True


@dataclass(frozen=True, slots=True)
class Marked:
    """A running process of this benchmark."""

    pid: int
    command: tuple[str, ...]


def find_marked(mark: str) -> list[Marked]:
    """Running processes that carry the mark, by id; this one apart."""
    wanted = f"{MARK_NAME}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # Ended meanwhile, or somebody else's.
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                found.append(Marked(int(entry.name), tuple(command.split("\0"))))
    return sorted(found, key=lambda one: one.pid)


def end_processes(
    pids: Iterable[int], number: signal.Signals = signal.SIGKILL, timeout_s: float = END_TIMEOUT_S
) -> set[int]:
    """Signal each by its id and wait until it is gone; returns those that are still there."""
    waiting: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                waiting[os.pidfd_open(pid)] = pid
        for descriptor in waiting:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        return _wait_gone(waiting, time.monotonic() + timeout_s)
    finally:
        for descriptor in waiting:
            os.close(descriptor)


def end_marked(mark: str, timeout_s: float = END_TIMEOUT_S) -> set[int]:
    """Kill what still carries the mark; returns what is left when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while found := {one.pid for one in find_marked(mark)}:
        if time.monotonic() >= deadline_s:
            return found
        end_processes(found, timeout_s=max(0.0, deadline_s - time.monotonic()))
        time.sleep(POLL_S)  # A killed child stays in the list until it is reaped.
    return set()


def _wait_gone(waiting: dict[int, int], deadline_s: float) -> set[int]:
    left = dict(waiting)
    poll = select.poll()
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    while left and time.monotonic() < deadline_s:
        for descriptor, _ in poll.poll(max(1, int((deadline_s - time.monotonic()) * 1e3))):
            poll.unregister(descriptor)
            del left[descriptor]
    return set(left.values())
