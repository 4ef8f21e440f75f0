"""Programs of ours as children of this process: how they start, and how they end.

Each has a session of its own, so that Ctrl-C at a terminal reaches this process alone, which ends
its children in order.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

Child = subprocess.Popen[bytes]
PIPE: Final = subprocess.PIPE
STOP_TIMEOUT_S: Final = 15.0


def start_child(
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    stderr: IO[bytes] | int | None = None,
    pass_fds: Sequence[int] = (),
    hears: bool = False,
) -> Child:
    """`python -P WORDS`, whose output is a pipe to us.

    stderr: as `subprocess.Popen` takes it; None is ours.
    hears: its standard input is a pipe from us; else it is empty.
    """
    return subprocess.Popen(
        [sys.executable, "-P", *words],
        stdin=subprocess.PIPE if hears else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
        env=dict(environment),
    )


def end_children(
    children: Sequence[Child],
    number: signal.Signals = signal.SIGTERM,
    timeout_s: float = STOP_TIMEOUT_S,
) -> None:
    """Signal all that still run, then wait for each: SIGKILL to one that takes longer. Their pipes
    are closed. Idempotent.
    """
    for child in children:
        if child.poll() is None:
            child.send_signal(number)
    for child in children:
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            # It may have been killed with a word on its way.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
