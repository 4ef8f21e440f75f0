"""How many loads of a step, by its number or as the newest, this process has had confirmed in a
launch.

A launch moves on to a newer generation of a step when all its ranks ask for it at once, each for
its n-th load; what n is, only the process knows for sure: coordinators come and go. It is counted
for all stores of the process, as its script sees them.
"""

from __future__ import annotations

import threading
from typing import Final

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step

COUNTS_MAX: Final = 4096
"""A count that is forgotten begins again: its rank no longer moves on with its launch, but never
loads a mix of steps.
"""

Key = tuple[str, RunName, LaunchNumber, Rank, Step]
"""(cluster, run, launch, rank, step)."""

#: The number of the last load that was confirmed, by key; what was confirmed first comes first.
_counts: dict[Key, int] = {}
#: Guards the counts: several stores may load in threads of their own.
_lock = threading.Lock()


def next_load(key: Key) -> int:
    """The number of the next load, from 1; the same until it is confirmed."""
    with _lock:
        return _counts.get(key, 0) + 1


def confirmed(key: Key, number: int) -> None:
    """Note that the load was confirmed."""
    with _lock:
        _counts[key] = max(number, _counts.get(key, 0))
        while len(_counts) > COUNTS_MAX:
            del _counts[next(iter(_counts))]
