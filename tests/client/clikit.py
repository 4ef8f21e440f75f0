"""`ckpt` as people run it: its own streams, its environment, its exit code.

`run` calls its main in this process, where every warning is an error: most tests ask what a command
answers. `run_installed`, `start` and `on_terminal` start the installed command, which costs an
interpreter each: for what a process is about, and so that each command is also run as one.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ckpt
from ckpt_client.cli.main import main

COMMAND = Path(sys.executable).with_name("ckpt")
TIMEOUT_S = 60.0
PLAIN = re.compile(r"ckpt [^|&;<>()$`\\]*")
"""A line that is one command, of words and quotes alone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """Stdout as one JSON document."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    def error(self) -> dict[str, Any]:
        """The only line of stderr, as JSON."""
        (line,) = self.err.splitlines()
        value = json.loads(line)
        assert isinstance(value, dict)
        return value


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would name a store or a seat."""
    names = ("CKPT_STORE", "CKPT_SECRET_FILE", "NO_COLOR", "RANK", "WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, **changes}


def run(*arguments: str, environ: Mapping[str, str] | None = None) -> Ended:
    """`ckpt ARGUMENTS` here, with nothing on stdin."""
    assert threading.current_thread() is threading.main_thread(), "streams are the whole process's"
    out, err = _stream(), _stream()
    with (
        _environment(environment() if environ is None else environ),
        _no_input(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(arguments)
    return Ended(code, _text_of(out), _text_of(err))


def run_installed(*arguments: str, environ: Mapping[str, str] | None = None) -> Ended:
    """The same as a process."""
    done = subprocess.run(
        [COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(environ) if environ is not None else environment(),
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def run_line(line: str, environ: Mapping[str, str]) -> Ended:
    """A line that a person types: commands of `ckpt`, also after each other by `&&`, here; all else
    by a shell.
    """
    commands = line.split(" && ")
    if not all(PLAIN.fullmatch(command) for command in commands):
        return run_in_shell(line, environ)
    out, err = "", ""
    for command in commands:
        ended = run(*shlex.split(command)[1:], environ=environ)
        out, err = out + ended.out, err + ended.err
        if ended.code:
            break
    return Ended(ended.code, out, err)


def run_in_shell(line: str, environ: Mapping[str, str]) -> Ended:
    """A line for bash, whose pipes end as their first failing command does."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(environ),
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _stream() -> io.TextIOWrapper:
    """As a pipe is: what cannot be encoded is not written."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def _text_of(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    # Copies: `environ` may be os.environ itself.
    before, wanted = dict(os.environ), dict(environ)
    _become(wanted)
    try:
        yield
    finally:
        _become(before)


def _become(environ: Mapping[str, str]) -> None:
    """Hardly any variable differs, and to set one takes as long as to look at thirty."""
    now = dict(os.environ)
    for name in now.keys() - environ.keys():
        del os.environ[name]
    for name, value in environ.items() - now.items():
        os.environ[name] = value


@contextmanager
def _no_input() -> Iterator[None]:
    before = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = before


def start(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A process, left running; the caller waits for it."""
    return subprocess.Popen(
        [COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environ) if environ is not None else environment(),
    )


def on_terminal(*arguments: str, answer: str = "", **changes: str) -> tuple[int, str]:
    """`ckpt` with a terminal on all three streams: (exit code, what it showed)."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", **changes),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        os.write(ours, answer.encode())
        shown = bytearray()
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # The terminal's last user is gone.
                break
        code = process.wait(TIMEOUT_S)
    os.close(ours)
    return code, shown.decode()


def fill(url: str, run_name: str, steps: tuple[int, ...], ranks: int = 2) -> None:
    """Save `steps` of a small run; each is committed on return."""
    with ckpt.open(url) as store:
        for step in steps:
            saves = [
                store.save(
                    run_name,
                    step,
                    {"w": np.full(200_000, step * 10 + rank, "f4")},
                    rank=rank,
                    world_size=ranks,
                )
                for rank in range(ranks)
            ]
            for save in saves:
                save.wait(TIMEOUT_S)


def flip(path: Path, offset: int) -> None:
    """One bit of a byte, durably; one from the end when the offset is below 0."""
    with path.open("r+b") as file:
        at = offset % os.fstat(file.fileno()).st_size
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 4]), at)
        os.fsync(file.fileno())
