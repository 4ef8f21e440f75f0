"""What time it is, for shells that must tell their machines, and what is left to chance."""

from __future__ import annotations

import os
import random
import time
from typing import Final

#: Ours alone: a trainer's sequence of the module's own numbers is part of what it resumes.
_lots: Final = random.Random()
# Forked daemons would all draw the same.
os.register_at_fork(after_in_child=_lots.seed)


def now_us() -> int:
    """Monotonic microseconds of this process; says nothing to another one."""
    return time.monotonic_ns() // 1000


def wall_us() -> int:
    """Microseconds since the Unix epoch by this machine's clock, which may jump; safety does not
    need it.
    """
    return time.time_ns() // 1000


def draw() -> float:
    """A number from 0 to 1, for rests (`ckpt.base.rests`); not random enough for secrets."""
    return _lots.random()
