"""What the processes of workers have alike: what each is called, and how it is asked to end."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from types import FrameType
from typing import Final

LOOK_S: Final = 0.5
"""Between two looks for signals."""


def worker_name(program: str) -> str:
    """`PROGRAM HOST:PID`, and what distinguishes it from an earlier process of that number."""
    return f"{program} {socket.gethostname()}:{os.getpid()} {secrets.token_hex(3)}"


def set_by_signals() -> threading.Event:
    """Let SIGTERM and SIGINT set this event, and do nothing else, from now on."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped


def wait_stopped(stopped: threading.Event) -> None:
    """In the main thread, until that event is set.

    A signal that comes when Python has looked for one and has not begun to wait does not end the
    wait, nor does one that another thread takes: the main thread wakes up to look.
    """
    while not stopped.wait(LOOK_S):
        continue
