"""What does the kernel say of other processes, and of the loopback?

CPU time comes from the process's CPU clock: nanoseconds, user and kernel, ended threads included.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
class Moved:
    """Bytes of a process, both ways."""

    read: int
    written: int


def device_bytes(pid: int) -> Moved:
    """What it had the devices move; zeros when it cannot be read."""
    return _moved(pid, "read_bytes", "write_bytes")


def call_bytes(pid: int) -> Moved:
    """What went through its read and write calls on files; zeros when it cannot be read."""
    return _moved(pid, "rchar", "wchar")


def _moved(pid: int, read: str, written: str) -> Moved:
    values = {read: 0, written: 0}
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(": ")
            values[name] = int(value)
    return Moved(values[read], values[written])


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


def network_bytes() -> Moved:
    """What all interfaces of this network namespace have received (read) and sent (written)."""
    read = written = 0
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        _, mark, rest = line.partition(":")
        if mark:
            read, written = read + int(rest.split()[0]), written + int(rest.split()[8])
    return Moved(read, written)


def machine_id() -> str:
    """Of this boot and network namespace: two processes with one see the same interfaces."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


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


def drop_cached(paths: Sequence[Path]) -> None:
    """Have the kernel forget the pages of these files; those that are gone are forgotten."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
