"""A daemon that a test starts and ends, forked warm: what `subprocess.Popen` gives, as far as tests
ask for it.

Cold it spends a quarter to half a second of CPU on imports, and a cluster of many hosts has nine.
Daemons start as users start them in tests/ckptd/test_coordinator.py, in tests/wheel, of ckptbench's
clusters and in tests/client/test_operations.py at some landings, each in its turn.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, Final

from ckpt_client.local import children
from tests.warm_start import WARM

STATUS_BYTES_MAX: Final = 64
RUN_TIMEOUT_S: Final = 120.0


class WarmChild:
    """A process that a relay of the server's awaits for me. Its id stays its own until I have heard
    how it ended.
    """

    # It hears nothing.
    stdin = None

    def __init__(self, pid: int, relay: socket.socket, stdout: BinaryIO) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr: BinaryIO | None = None
        """Where it is a pipe to us as well."""
        self.returncode: int | None = None
        self._relay = relay

    def poll(self) -> int | None:
        """Its exit status, -N when signal N ended it; None while it runs."""
        if self.returncode is None and self._says(0.0):
            self.returncode = int(self._relay.recv(STATUS_BYTES_MAX))
            # It is reaped once we have heard it, and is gone on return.
            self._relay.send(b".")
            self._relay.recv(STATUS_BYTES_MAX)
            self._relay.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not self._says(timeout):
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
        found = self.poll()
        assert found is not None
        return found

    def communicate(self) -> tuple[bytes, bytes]:
        """All that it prints, once it has ended. It must say little on stderr."""
        assert self.stderr is not None
        with self.stdout, self.stderr:
            said = self.stdout.read(), self.stderr.read()
        self.wait()
        return said

    def send_signal(self, number: int) -> None:
        """One that has ended is left alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _says(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._relay], [], [], timeout_s)[0])


Child = subprocess.Popen[bytes] | WarmChild


def start_daemon(
    words: Sequence[str], *, options: Sequence[str] = (), stderr: int,
    environment: Mapping[str, str] | None = None, within: Sequence[str] = (),
    before: Callable[[], None] | None = None, cold: bool = False,
) -> Child:  # fmt: skip
    """`python OPTIONS -m ckptd.cli WORDS`, its stdout a pipe to us.

    cold: not forked warm. Nor is what the environment makes another interpreter of, or where
    something is done before: by `within`, a command that becomes the one that follows it, or by
    `before`, in the child.
    """
    command = [sys.executable, *options, "-m", "ckptd.cli", *words]
    environ = os.environ if environment is None else environment
    if not within and before is None:
        return start_child(command, environ, stderr=stderr, cold=cold)
    return subprocess.Popen(
        [*within, *command], stdout=subprocess.PIPE, stderr=stderr, env=environ, preexec_fn=before
    )


def run_daemon(
    *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`ckptd WORDS`, that ends by itself, warm."""
    with tempfile.TemporaryFile() as errors:
        child = start_daemon(words, stderr=errors.fileno(), environment=environment)
        assert child.stdout is not None
        with child.stdout:
            out = child.stdout.read().decode()
        code = child.wait(RUN_TIMEOUT_S)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, out, errors.read().decode())


def start_child(
    command: Sequence[str], environ: Mapping[str, str], *, stderr: int, cold: bool = False
) -> Child:
    """`python OPTIONS -m MODULE ARGUMENT...`, its stdout a pipe to us; warm where it can be."""
    began = None if cold else _begun(command, environ, stderr)
    return began or subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environ)


def start_script(
    file: Path, *arguments: str, environment: Mapping[str, str], stderr: int = 2
) -> Child:
    """`python -W error FILE ARGUMENT...`, its stdout a pipe to us, its stderr ours or that file."""
    command = [sys.executable, "-W", "error", "-m", "tests.warm_script", str(file), *arguments]
    return start_child(command, {**environment, **WARM.environment()}, stderr=stderr)


def answer_of_script(file: Path, *arguments: str, environment: Mapping[str, str]) -> str:
    """What it prints. It ends well, and says nothing on stderr."""
    errors = file.with_suffix(".errors")
    with errors.open("wb") as said:
        child = start_script(file, *arguments, environment=environment, stderr=said.fileno())
    assert child.stdout is not None
    with child.stdout:
        answer = child.stdout.read().decode()
    assert (child.wait(RUN_TIMEOUT_S), errors.read_text()) == (0, "")
    return answer


def run_script(file: Path, *arguments: str, environment: Mapping[str, str]) -> int:
    """The same to its end: its exit status, -N when signal N ended it. It says little."""
    child = start_script(file, *arguments, environment=environment)
    assert child.stdout is not None
    with child.stdout:
        return child.wait(RUN_TIMEOUT_S)


def start_bench_daemon(
    words: Sequence[str], *, environment: Mapping[str, str], stderr: IO[bytes]
) -> Child:
    """I stand in for `children.start_child`, by which ckptbench starts a cluster's daemons."""
    began = _begun([sys.executable, "-P", *words], environment, stderr.fileno())
    return began or children.start_child(words, environment=environment, stderr=stderr)


def start_printing_child(
    words: Sequence[str], *, environment: Mapping[str, str], stderr: int
) -> Child:
    """I stand in for `children.start_child`, by which `ckpt` starts what prints to it alone."""
    assert stderr == subprocess.PIPE
    ours, theirs = os.pipe()
    try:
        began = _begun([sys.executable, "-P", *words], environment, theirs)
    finally:
        os.close(theirs)
    if began is None:
        os.close(ours)
        return children.start_child(words, environment=environment, stderr=stderr)
    began.stderr = os.fdopen(ours, "rb")
    return began


def _begun(command: Sequence[str], environ: Mapping[str, str], stderr: int) -> WarmChild | None:
    ours, theirs = os.pipe()
    try:
        began = WARM.child(command, environ, (theirs, stderr))
    finally:
        os.close(theirs)
    if began is None:
        os.close(ours)
        return None
    return WarmChild(*began, os.fdopen(ours, "rb"))
