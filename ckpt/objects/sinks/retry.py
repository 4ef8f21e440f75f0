"""Trying again, with an end: what a store refuses for a moment is asked again until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ckpt.aio.clock import draw
from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.rests import Draw, Rests

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request may take in all, and how it rests in between."""

    total_s: float = 120.0
    first_rest_s: float = 0.1
    last_rest_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Draw = draw


def retried(what: str, once: Callable[[], Value], patience: Patience) -> Value:
    """The value; raises what is not retryable at once, Unavailable when the time is up."""
    deadline = patience.clock() + patience.total_s
    rests = Rests(patience.first_rest_s, patience.last_rest_s, patience.draw)
    while True:
        try:
            return once()
        except CkptError as error:
            if not error.retryable:
                raise
            pause_s = rests.next_s()
            if patience.clock() + pause_s > deadline:
                text = f"{what} failed for {patience.total_s:g} s, last with: {error.message}"
                raise Unavailable(text, hint="see whether the store answers") from error
        patience.sleep(pause_s)
