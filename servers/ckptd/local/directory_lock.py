"""Who runs DIR? The supervisor that holds `supervisor.lock`, through it every child of its; the
file says which process that is.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from ckpt.base.errors import Busy
from ckptd.directory import open_lock

LOCK_NAME: Final = "supervisor.lock"
PREDECESSOR_WAIT_S: Final = 10.0
"""For the children of a supervisor that was killed: the kernel is ending them."""
LOCK_POLL_S: Final = 0.02


def lock_directory(directory: Path) -> int:
    """Become DIR's supervisor; the descriptor holds the lock. Raises Busy when another one lives.

    A killed supervisor's children share its lock; they are waited for.
    """
    descriptor = open_lock(directory / LOCK_NAME)
    deadline_s = time.monotonic() + PREDECESSOR_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace")
            if _is_alive(holder) or time.monotonic() >= deadline_s:
                os.close(descriptor)
                pid = holder.partition(" ")[0] or "?"
                raise Busy(f"process {pid} runs the cluster in {directory}") from None
            time.sleep(LOCK_POLL_S)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, _incarnation(os.getpid()).encode(), 0)
    return descriptor


def _is_alive(holder: str) -> bool:
    """Whether the process that wrote this into the lock still runs."""
    pid = holder.partition(" ")[0]
    return pid.isascii() and pid.isdigit() and _incarnation(int(pid)) == holder


def _incarnation(pid: int) -> str:
    """`PID START`, which no later process repeats; empty when there is none, or only a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" else f"{pid} {after_name[19]}"
