"""The thread that syncs, renames and preallocates, in order, while the loop lives.

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
from ckpt.aio.disk import Disk, perform
from ckpt.base.units import US_PER_S
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    DiskFailed,
    SyncDirectory,
    SyncFile,
)
from ckptd.http.exposition import Histogram
from ckptd.target.metrics import SYNC_BOUNDS_S

Done = Callable[[DiskDone | DiskFailed], None]


class DiskWorker:
    """I perform what is put, in order, and call `done` on the loop for each.

    What `perform` raises besides OSError is a defect: it is raised on the loop.
    """

    def __init__(self, disk: Disk, done: Done) -> None:
        """Belongs to the running loop."""
        self._disk = disk
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._actions: queue.SimpleQueue[DiskAction | None] = queue.SimpleQueue()
        #: Results, with the seconds of a sync. Filled by the thread, emptied by the loop.
        self._finished: deque[tuple[DiskDone | DiskFailed | BaseException, float | None]] = deque()
        self.sync_s = Histogram(SYNC_BOUNDS_S)
        """How long syncs of files and directories took, in seconds; only the loop's."""
        #: Actions that were put and whose result `done` has not heard; only the loop's.
        self._open_count = 0
        #: Set while there are none.
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="ckpt-sync", daemon=True)
        self._thread.start()

    def put(self, action: DiskAction) -> None:
        """Perform it after all that was put before."""
        self._open_count += 1
        self._idle.clear()
        self._actions.put(action)

    async def close(self) -> None:
        """Wait until all is performed and reported, with what followed from it; end the thread."""
        await self._idle.wait()
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
            is_sync = isinstance(action, SyncFile | SyncDirectory)
            took_s = (now_us() - began_us) / US_PER_S if is_sync else None
            self._finished.append((result, took_s))
            if len(self._finished) == 1:  # Else the loop has not yet taken what lies before it.
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        try:
            while self._finished:
                result, took_s = self._finished.popleft()
                self._open_count -= 1
                if took_s is not None:
                    self.sync_s.observe(took_s)
                if isinstance(result, BaseException):
                    raise result
                self._done(result)
        finally:
            if self._finished:
                self._loop.call_soon(self._tell)
            elif not self._open_count:
                self._idle.set()
