"""A fault that was sent into a history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Strike = Callable[[], bool]
"""Whether it has struck by now."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault, in which phase, and whether it struck."""

    fault: str
    phase: str
    strike: Strike
