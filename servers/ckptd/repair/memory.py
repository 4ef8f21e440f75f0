"""How much memory may the payloads take that one process makes again at the same time?"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from ckpt.base.errors import Aborted

POLL_S: Final = 0.2
"""How soon a hand that waits notices that it is to end."""


class MemoryShares:
    """I part `bytes_max` among hands, each of which has one share, in the order in which they ask.
    Thread safe.

    A single share may be any size: what does not fit beside others is made all the same, alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: What each hand has, and who waits, in its order. Under the condition's lock.
        self._shares: dict[Hashable, int] = {}
        self._waiting: deque[Hashable] = deque()
        self._changed = threading.Condition()

    def take(
        self,
        hand: Hashable,
        size: int,
        let_go: Callable[[], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        """Wait until its share is this large. While it waits, `let_go` gives back the memory that
        it had before. Raises Aborted when `is_stopped` says so.
        """
        with self._changed:
            if self._shares.get(hand, 0) >= size and not self._waiting:
                return
            let_go()
            self._shares.pop(hand, None)
            self._waiting.append(hand)
            self._changed.notify_all()
            try:
                while not self._is_next(hand, size):
                    if is_stopped():
                        raise Aborted("waiting for memory was stopped")
                    self._changed.wait(POLL_S)
                self._shares[hand] = size
            finally:
                self._waiting.remove(hand)
                self._changed.notify_all()

    def give_back(self, hand: Hashable) -> None:
        """Give back all of its memory. Idempotent."""
        with self._changed:
            self._shares.pop(hand, None)
            self._changed.notify_all()

    def _is_next(self, hand: Hashable, size: int) -> bool:
        fits = not self._shares or sum(self._shares.values()) + size <= self._bytes_max
        return fits and self._waiting[0] == hand
