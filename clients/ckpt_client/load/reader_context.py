"""Whom does a reader ask, and as whom?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckpt.base.ids import TargetId


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """Whom a reader asks, and who it is."""

    address: Callable[[], str]
    """Where the coordinator is now; asked again when its session is lost, on a thread that may
    wait."""
    secret: bytes
    cluster: str
    """The cluster's id; empty when it is not known yet."""
    name: str
    """`HOST:PID`, for people."""
    durable: str = ""
    """URL of the object store to read what the tier lost; empty for none."""
    avoid: frozenset[TargetId] = frozenset()
    """Targets that a drill treats as if they were not live. If there are any, it does not use the
    memory of a stager on this host either.
    """
