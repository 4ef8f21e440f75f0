"""What a process asked of the kernel, in order: strace, attached to it and to all its threads."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CALLS = (
    "openat,pwrite64,pwritev,pwritev2,write,writev,ftruncate,fsync,fdatasync,rename,renameat,"
    "renameat2,sendto,sendmsg,sendmmsg"
)
SHOWN_BYTES = 8192
"""Of what is written or sent: a frame with a proof, a page of the catalog."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded. Calls of several threads overlap: this one was under way from
    line `begin` of the trace to line `end`.
    """

    name: str
    text: str
    """Its arguments; descriptors with their files and sockets, bytes one character each."""
    begin: int
    end: int

    @property
    def sends(self) -> bool:
        return self.name in ("sendto", "sendmsg", "sendmmsg") or (
            self.name in ("write", "writev") and bool(re.match(r"\d+<(TCP|UNIX)", self.text))
        )

    @property
    def writes(self) -> bool:
        return self.name in ("pwrite64", "pwritev", "pwritev2", "write", "writev", "ftruncate")

    @property
    def syncs(self) -> bool:
        return self.name in ("fsync", "fdatasync")


@contextmanager
def traced(pid: int, directory: Path) -> Iterator[list[Call]]:
    """Fills the list at the end of the block. Skips where a process cannot be traced."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here: the order of syncs is NOT proved; apt-get install strace")
    output = directory / "trace"
    command = [
        strace, "-f", "-yy", "-xx", "-s", str(SHOWN_BYTES), "-e", f"trace={CALLS}",
        "-o", str(output), "-p", str(pid),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    calls: list[Call] = []
    try:
        assert process.stderr is not None
        # It says so when it has stopped and seized every thread.
        said = process.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"no process can be traced here, the order of syncs is NOT proved: {said}")
        yield calls
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    calls += parse(output.read_text())


def parse(trace: str) -> list[Call]:
    """Calls that returned no error, in the order in which they began."""
    calls: list[Call] = []
    open_calls: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(trace.splitlines()):
        pid, _, rest = line.partition(" ")
        rest = _decoded(rest.strip())
        begun = re.match(r"(\w+)\((.*) <unfinished \.\.\.>$", rest, re.DOTALL)
        resumed = re.match(r"<\.\.\. (\w+) resumed>(.*)= (-?\d+).*$", rest, re.DOTALL)
        whole = re.match(r"(\w+)\((.*)= (-?\d+)\S*.*$", rest, re.DOTALL)
        if begun:
            open_calls[pid] = begun[1], begun[2], number
        elif resumed and pid in open_calls:
            name, text, begin = open_calls.pop(pid)
            if int(resumed[3]) >= 0:
                calls.append(Call(name, text + resumed[2], begin, number))
        elif whole and int(whole[3]) >= 0:
            calls.append(Call(whole[1], whole[2], number, number))
    return sorted(calls, key=lambda call: call.begin)


def _decoded(text: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text)
