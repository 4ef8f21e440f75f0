"""How does a supervisor start a daemon? It forks: what the daemon imports is there already.

A new interpreter needs about 0.5 CPU seconds for its imports, and a cluster has eight of them. A
fork needs a hundredth of that, and the children share the memory of what was imported. What a copy
would inherit and a daemon must not have is put right before it runs (`_live`).

Warning: only a process with one thread may do this, and its locks must be free. Of the parent's
objects the child uses none but the program; the frames below it keep them alive until `os._exit`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import setproctitle

Program = Callable[[Sequence[str]], int]
"""What a child does with its arguments, the daemon's name first; returns its exit code."""

_PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FAILED: Final = 1


class Process:
    """A child of mine: its id, a descriptor that is readable once it has ended, and its stdout."""

    def __init__(self, pid: int, stdout: int) -> None:
        """Raises OSError, and ends it, where it cannot be watched."""
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.stdout = stdout
        """Non-blocking."""

    def signal(self, number: signal.Signals) -> None:
        """One that has ended is not mistaken for another: nobody but me reaps it."""
        signal.pidfd_send_signal(self.pidfd, number)

    def ends_within(self, timeout_s: float) -> bool:
        """Wait for its end."""
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])

    def reap(self) -> int:
        """Wait for its end and let go of it; returns the exit code, -N when signal N ended it."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        os.close(self.stdout)
        return os.waitstatus_to_exitcode(status)


def fork(program: Program, argv: Sequence[str], log: Path, inherited: Sequence[int]) -> Process:
    """Run `program(argv)` in a child that dies with this process, in a group of its own.

    Its stdin is empty, its stdout mine to read, its stderr goes to the end of `log`; of other
    descriptors it has only those `inherited`. Raises OSError.
    """
    assert threading.active_count() == 1, "a lock that another thread holds stays locked in a fork"
    _freeze_once()
    parent = os.getpid()
    with ExitStack() as theirs, ExitStack() as ours:
        errors = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        theirs.callback(os.close, errors)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        theirs.callback(os.close, writer)
        ours.callback(os.close, reader)
        # A signal that comes before the child has handlers of its own must not meet mine.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                _live(parent, program, argv, (writer, errors), inherited, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.set_blocking(reader, False)
        process = Process(pid, reader)
        ours.pop_all()
        return process


@cache
def _freeze_once() -> None:
    """A collection in a child would touch, and so copy, every page that it shares. To ask Python
    whether it is done already takes longer than a fork: it counts all objects.
    """
    gc.freeze()


def _live(
    parent: int, program: Program, argv: Sequence[str], outputs: tuple[int, int],
    inherited: Sequence[int], mask: set[int | signal.Signals],
) -> NoReturn:  # fmt: skip
    """The child's whole life: it never returns into the frames that it was copied with."""
    code = _FAILED
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It died before the line above.
            os._exit(_FAILED)
        os.setpgid(0, 0)  # A Ctrl-C is the supervisor's; it stops the children in order.
        _keep_only(outputs, inherited)
        _reopen_output()
        _forget_handlers(mask)
        _take_title(argv)
        code = program(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else _FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _keep_only(outputs: tuple[int, int], inherited: Sequence[int]) -> None:
    """New descriptors 0, 1, 2, and of the parent's only those that were meant for children."""
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for standard, descriptor in enumerate((empty, *outputs)):
        os.dup2(descriptor, standard)
    kept = {0, 1, 2, *inherited}
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor not in kept:
            with suppress(OSError):  # The listing's own.
                os.close(descriptor)


def _reopen_output() -> None:
    """Children must not write what the parent could not, on a full disk, and still holds."""
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")


def _forget_handlers(mask: set[int | signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _take_title(argv: Sequence[str]) -> None:
    """What `ps` shows; the environment beside it in memory stays as it is."""
    os.environ["SPT_NOENV"] = "1"
    setproctitle.setproctitle(shlex.join(["ckptd", *argv]))
    sys.argv[:] = ["ckptd", *argv]
