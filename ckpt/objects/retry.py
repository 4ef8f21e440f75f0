"""Trying again, with an end: what a store refuses for a moment is asked again until a deadline.

The rests grow by two and are drawn between half and all of their length, so that many workers do
not come back at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ckpt.base.errors import CkptError, Unavailable

Value = TypeVar("Value")
#: Ours alone: a trainer's sequence of the module's own numbers is part of what it resumes.
_jitter: Final = random.Random()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request may take in all, and how it rests in between."""

    total_s: float = 120.0
    first_rest_s: float = 0.1
    last_rest_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = _jitter.random
    """0 to 1."""


def retried(what: str, once: Callable[[], Value], patience: Patience) -> Value:
    """The value; raises what is not retryable at once, Unavailable when the time is up."""
    deadline, rest_s = patience.clock() + patience.total_s, patience.first_rest_s
    while True:
        try:
            return once()
        except CkptError as error:
            if not error.retryable:
                raise
            pause_s = rest_s * (0.5 + patience.jitter() / 2)
            if patience.clock() + pause_s > deadline:
                text = f"{what} failed for {patience.total_s:g} s, last with: {error.message}"
                raise Unavailable(text, hint="see whether the store answers") from error
        patience.sleep(pause_s)
        rest_s = min(patience.last_rest_s, 2 * rest_s)
