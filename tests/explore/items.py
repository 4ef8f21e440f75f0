"""What is about to happen: one thing in a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Item:
    """Happens when all before it in its queue have."""

    id: int
    """Follows from what its party had heard when it put it there."""
    happen: Callable[[], None]
    of: str = ""
    """What it is, for people."""
    urgent: bool = False
    """It happens at once when it is the first: nothing of worth depends on when."""
    land: Callable[[], None] | None = None
    """Only on the disk: nobody hears of it any more."""
    number: int = 0
    """In the order of all."""
