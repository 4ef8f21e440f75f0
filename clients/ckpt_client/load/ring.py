"""Host memory of bounded size, through which bytes pass on their way into a device's memory.

    slot 0   |read 0|copy 0|      |read 2|copy 2|
    slot 1          |read 1|copy 1|      |read 3|copy 3|

Reading fills a slot while the device copies from the others. The slots are all the memory there is,
however much passes. The first ones are made while it is still being found out what to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Generic, TypeVar

from ckpt.base.errors import CkptError
from ckpt_client.accelerator import StreamPoint

Memory = TypeVar("Memory")


class Ring(Generic[Memory]):
    """I hand out slots in turn, each when the copies from it are through. One thread uses me; I
    expect `sent` after each `take` whose slot was filled. `close` me before the memory that is
    copied into is anybody else's.
    """

    def __init__(self, make: Callable[[], Memory], slot_count: int) -> None:
        """make: gives a slot's memory; asked while none of those that there are is free."""
        self._make = make
        self._slot_count = slot_count
        #: Slots with the points when the copies from them are through, in the device's order.
        self._sent: deque[tuple[Memory, StreamPoint]] = deque()
        #: The slot that is being filled.
        self._taken: Memory | None = None
        #: The first slots, until they are taken.
        self._ahead: deque[Future[Memory]] = deque()

    def make_ahead(self, count: int) -> None:
        """Have the first slots made on a thread of its own; once, before the first `take`. Who
        takes one that could not be made gets what that raised.
        """
        assert not self._ahead
        assert count <= self._slot_count
        pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-slot")
        with suppress(RuntimeError):  # Where the system has no thread left `take` makes them.
            self._ahead.extend(pool.submit(self._make) for _ in range(count))
        pool.shutdown(wait=False)

    def take(self) -> Memory:
        """A slot to fill: that of the last `take` when nothing was sent since. Waits until copies
        from it are through. Raises Aborted.
        """
        if self._taken is None:
            self._taken = self._free()
        return self._taken

    def sent(self, point: StreamPoint) -> None:
        """Copies from the slot that was taken are queued, and through at `point`."""
        assert self._taken is not None
        self._sent.append((self._taken, point))
        self._taken = None

    def wait_copied(self) -> None:
        """Until all that was sent is in the device's memory. Raises Aborted."""
        for _, point in self._sent:
            point.wait()

    def close(self) -> None:
        """As `wait_copied`, then free the memory. Errors of the device are ignored here; call
        `wait_copied` first to see them.
        """
        for _, point in self._sent:
            with suppress(CkptError):
                point.wait()
        self._sent.clear()
        self._taken = None
        for slot in self._ahead:
            slot.cancel()
        wait(self._ahead)
        self._ahead.clear()

    def _free(self) -> Memory:
        is_full = len(self._sent) == self._slot_count
        if not (is_full or (self._sent and self._sent[0][1].passed)):
            return self._ahead.popleft().result() if self._ahead else self._make()
        memory, point = self._sent[0]
        point.wait()
        self._sent.popleft()
        return memory
