"""Jobs that are compared take turns: a checkpoint of each, again and again, nothing beside it.

A device's speed moves by half within an hour, so jobs that run one after the other compare hours.
Each job keeps its thread and its ranks; what it does, from the start of its ranks to the last
comparison, it does while it has its turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """I say whose turn it is among `count` jobs. Each must `leave` in the end."""

    def __init__(self, count: int) -> None:
        self._order = deque(range(count))
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, seat: int) -> Iterator[None]:
        """Wait for it; afterwards it is the next one's."""
        with self._changed:
            self._changed.wait_for(lambda: self._order[0] == seat)
        try:
            yield
        finally:
            with self._changed:
                self._order.rotate(-1)
                self._changed.notify_all()

    def leave(self, seat: int) -> None:
        """Leave: this job wants no more turns, and nobody waits for it. Not to be called in a turn
        of its own.
        """
        with self._changed:
            self._order.remove(seat)
            self._changed.notify_all()


class Seat:
    """One job's place at `turns`; with None it is free to do what it does at any time."""

    def __init__(self, turns: Turns | None = None, number: int = 0) -> None:
        self._turns, self._number = turns, number

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        if self._turns is not None:
            self._turns.leave(self._number)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is done inside is done alone."""
        if self._turns is None:
            yield
        else:
            with self._turns.turn(self._number):
                yield
