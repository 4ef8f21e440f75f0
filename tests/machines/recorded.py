"""Programs of some lines, run under the recorder and killed: what a loss of power leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.machines.losing import lose_unsynced
from tests.machines.recorder import Recorder

TOOLS = """
import os, signal, sqlite3
def write(name, data, at=0, sync=False, flags=os.O_CREAT | os.O_RDWR):
    descriptor = os.open(name, flags, 0o600)
    os.pwrite(descriptor, data, at)
    if sync: os.fsync(descriptor)
    os.close(descriptor)
def sync(name="."):
    descriptor = os.open(name, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
"""


def run(recorder: Recorder, *lines: str) -> None:
    """In the directory, under the recorder; killed when it is done."""
    program = "\n".join([TOOLS, *lines, "os.kill(os.getpid(), signal.SIGKILL)"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **recorder.environment(), "LD_PRELOAD": str(recorder.library)},
        cwd=recorder.root,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def left(recorder: Recorder, *, ordered: bool = True) -> dict[str, bytes]:
    """What the loss of power leaves. See lose_unsynced."""
    lose_unsynced(recorder, ordered=ordered)
    assert not list(recorder.journals.iterdir())
    return {
        str(file.relative_to(recorder.root)): file.read_bytes()
        for file in recorder.root.rglob("*")
        if file.is_file()
    }
