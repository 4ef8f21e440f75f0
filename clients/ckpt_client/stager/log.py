"""The stager's log: one JSON line on stderr, which is its log file."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress


def log(level: str, text: str, **fields: str | int | float) -> None:
    """Write a line at once; a full disk loses the line, not the saves that are held."""
    line = {"at": time.time(), "level": level, "pid": os.getpid(), "text": text, **fields}
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{json.dumps(line)}\n".encode())
