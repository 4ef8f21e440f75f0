"""A process that was started without stdin, stdout or stderr (`>&-`, some schedulers) gets them.

Without, Python has None there, and the next file or socket that is opened gets their number: what
is written to stdout would go into it.
"""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Open missing standard streams, which lead nowhere. Call it before anything else is opened."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            # The lowest number that is free: theirs.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
