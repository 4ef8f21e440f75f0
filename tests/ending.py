"""How a process that was forked warm ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """As an interpreter ends, and as multiprocessing ends what it forks: modules are not taken
    apart. That would copy every page that was shared: a twentieth of a second of CPU for each
    process, with torch a third.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
