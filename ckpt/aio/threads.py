"""A thread of ours, where the system may have none left to give: a container's `pids.max` counts
the threads of all its processes.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from ckpt.base.system_errors import system_error


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """It runs, and keeps no process alive. Raises Scarce."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # As CPython says it.
        refused = OSError(errno.EAGAIN, str(error))
        raise system_error(f"{name} cannot run", refused) from None
    return thread
