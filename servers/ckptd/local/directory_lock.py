"""Who runs DIR? The supervisor that holds `supervisor.lock`, through it every child of its; the
file says which process that is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from ckpt.aio.process_identity import own_identity, pid_of
from ckpt.base.errors import Busy
from ckptd.directory import open_lock, take_lock

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
            take_lock(descriptor, directory / LOCK_NAME)
            break
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace")
            if pid_of(holder) is not None or time.monotonic() >= deadline_s:
                os.close(descriptor)
                pid = holder.partition(" ")[0] or "?"
                raise Busy(f"process {pid} runs the cluster in {directory}") from None
            time.sleep(LOCK_POLL_S)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, own_identity().encode(), 0)
    return descriptor
