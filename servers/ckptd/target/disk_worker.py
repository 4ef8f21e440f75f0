"""A thread that does what may take long, in order, while the loop lives: one syncs, renames and
preallocates, another one writes and reads where the device is slow.

An executor's future for each action costs ten times the Python of the action itself; here the loop
is woken once for all that was done since it last looked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from ckpt.aio.clock import now_us
from ckpt.aio.disk import Disk
from ckpt.aio.disk_actions import perform
from ckpt.aio.threads import start_thread
from ckpt.protocol.target.disk_events import DiskAction, DiskDone, DiskFailed

Done = Callable[[DiskDone | DiskFailed], None]
Took = Callable[[DiskAction, int], None]
"""Hears how many microseconds an action took, before its answer is heard."""
Finished = tuple[DiskAction, DiskDone | DiskFailed | BaseException, int]


class DiskWorker:
    """I perform what is put, in order, and call `done` on the loop for each.

    What `perform` raises besides OSError is a defect: it is raised on the loop.
    """

    def __init__(self, disk: Disk, done: Done, took: Took = lambda _action, _took_us: None) -> None:
        """Belongs to the running loop."""
        self._disk = disk
        self._done = done
        self._took = took
        self._loop = asyncio.get_running_loop()
        self._actions: queue.SimpleQueue[DiskAction | None] = queue.SimpleQueue()
        #: Results, and the microseconds that they took. Filled by the thread, emptied by the loop.
        self._finished: deque[Finished] = deque()
        #: Actions that were put and whose result `done` has not heard; only the loop's.
        self._open_count = 0
        #: Set while there are none.
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="ckpt-disk", daemon=True)
        start_thread(self._thread)

    def put(self, action: DiskAction) -> None:
        """Perform it after all that was put before."""
        self._open_count += 1
        self._idle.clear()
        self._actions.put(action)

    @property
    def is_idle(self) -> bool:
        """Whether all is performed and reported."""
        return not self._open_count

    async def rest(self) -> None:
        """Wait until it is, with what followed from it."""
        await self._idle.wait()

    def end(self) -> None:
        """End the thread, which has nothing to do."""
        self._actions.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            began_us = now_us()
            try:
                result: DiskDone | DiskFailed | BaseException
                result = perform(self._disk, action, began_us)
                # An event of the past would set the machine's time back, and a sync take none.
                result = replace(result, now_us=now_us())
            except BaseException as error:
                result = error
            self._finished.append((action, result, now_us() - began_us))
            if len(self._finished) == 1:  # Else the loop has not yet taken what lies before it.
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        try:
            while self._finished:
                action, result, took_us = self._finished.popleft()
                self._open_count -= 1
                self._took(action, took_us)
                if isinstance(result, BaseException):
                    raise result
                self._done(result)
        finally:
            if self._finished:
                self._loop.call_soon(self._tell)
            elif not self._open_count:
                self._idle.set()
