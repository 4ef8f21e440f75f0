"""What the processes of workers have alike: what each is called, and how it is asked to end."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from types import FrameType


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
