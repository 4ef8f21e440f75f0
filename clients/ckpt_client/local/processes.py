"""Which processes were started from here, and how do they end? Each by its own id, never by name.

Everything that is started below `marked_environment` (the demo, a benchmark, a test) inherits one
variable with a random value, also what starts detached (the supervisor, stagers). `find_marked`
finds them again, whatever happened.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK_NAME: Final = "CKPT_MARK"
STAGER_MODULE: Final = "ckpt_client.stager"
POLL_S: Final = 0.02
SOCKET_DIRECTORY_BYTES_MAX: Final = 40
"""A Unix socket's path has 107 bytes, of which the stagers' names take up to 60."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A running process that carries the mark."""

    pid: int
    command: tuple[str, ...]

    @property
    def is_stager(self) -> bool:
        return STAGER_MODULE in self.command


@contextmanager
def marked_environment(mark: str, directory: Path) -> Iterator[None]:
    """Whatever is started inside carries the mark and uses no other cluster's secret.

    Stagers have their sockets below `directory`, so that they go with it.
    """
    before = dict(os.environ)
    for name in ("CKPT_STORE", "CKPT_SECRET_FILE"):
        os.environ.pop(name, None)
    os.environ[MARK_NAME] = mark
    if len(os.fsencode(directory)) <= SOCKET_DIRECTORY_BYTES_MAX:
        os.environ["XDG_RUNTIME_DIR"] = str(directory)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def find_marked(mark: str) -> list[Marked]:
    """Running processes that carry the mark, by id; zombies are not among them."""
    wanted = f"{MARK_NAME}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # Ended meanwhile, or somebody else's.
            continue
        found.append(Marked(int(entry.name), tuple(command)))
    return sorted(found, key=lambda one: one.pid)


def kill_processes(pids: Iterable[int], number: signal.Signals, timeout_s: float) -> set[int]:
    """Signal each of them and wait until it is gone; returns those that are still there.

    A descriptor of the process is held meanwhile, so that a reused number is never hit.
    """
    with _held(pids) as held:
        _signal(held, number)
        return _wait_gone(held, time.monotonic() + timeout_s)


@contextmanager
def frozen(pids: Iterable[int]) -> Iterator[None]:
    """They stand still meanwhile; who was killed meanwhile stays dead."""
    with _held(pids) as held:
        _signal(held, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(held, signal.SIGCONT)


def end_marked(mark: str, timeout_s: float) -> set[int]:
    """Kill what still carries the mark until there is none; returns what is left in the end."""
    deadline_s = time.monotonic() + timeout_s
    while found := {one.pid for one in find_marked(mark)}:
        if time.monotonic() >= deadline_s:
            return found
        kill_processes(found, signal.SIGKILL, max(0.0, deadline_s - time.monotonic()))
        time.sleep(POLL_S)  # A killed process of ours stays in the list until it is reaped.
    return set()


@contextmanager
def _held(pids: Iterable[int]) -> Iterator[dict[int, int]]:
    """Descriptor -> the process that it stands for, of those that are there."""
    held: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                held[os.pidfd_open(pid)] = pid
        yield held
    finally:
        for descriptor in held:
            os.close(descriptor)


def _signal(descriptors: Iterable[int], number: signal.Signals) -> None:
    for descriptor in descriptors:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)


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
