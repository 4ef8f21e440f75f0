"""The stager's log: one JSON line on stderr, which is its log file."""

from __future__ import annotations

import json
import os
import sys
import time


def log(level: str, text: str, **fields: str | int | float) -> None:
    """Write it, and at once."""
    line = {"at": time.time(), "level": level, "pid": os.getpid(), "text": text, **fields}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()
