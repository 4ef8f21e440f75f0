"""The second thread of a read: decodes and copies stripes, in the order in which they were put.

Only what takes as long as a wake-up comes here. Checksums and the last check of a stripe that
landed where it belongs are done where the bytes arrive: another thread's wake-up, with caches that
the bytes have swept, costs more than the checksum of a cell.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ckpt.aio.clock import now_us
from ckpt.aio.threads import start_thread
from ckpt.protocol.reader.events import FinishStripe, StripeFinished
from ckpt.transfer.assembly import Assembly


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Our own fault: the thread could not do its work."""

    error: BaseException


class DecodeWorker:
    """I finish stripes and note what became of them; `wake` is called when there are notes.

    What waits is bounded by the windows of the reads that put it. My thread begins with the first
    work: many a read has none.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.cpu_s = 0.0
        """Whole once the thread has ended."""
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Assembly, FinishStripe, object] | None]
        self._work = queue.SimpleQueue()
        #: (owner, what became of it), oldest first; the other thread takes them.
        self._notes: deque[tuple[object, StripeFinished | WorkFailed]] = deque()
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        """Waits for the thread: it touches nobody's memory afterwards."""
        self._work.put(None)
        # One whose start an interrupt cut short may begin later still, and ends at once.
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def put(self, assembly: Assembly, stripe: FinishStripe, owner: object) -> None:
        """Do it after all that was put before. Raises Scarce where the system gives no thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ckpt-read", daemon=True)
            start_thread(self._thread)
        self._work.put((assembly, stripe, owner))

    def notes(self) -> list[tuple[object, StripeFinished | WorkFailed]]:
        """What became of work since the last call."""
        found = []
        while self._notes:
            found.append(self._notes.popleft())
        return found

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            assembly, action, owner = item
            begun = time.thread_time()
            note: StripeFinished | WorkFailed
            try:
                wrong = assembly.finish(action)
                note = StripeFinished(now_us(), action.stripe, wrong)
            except BaseException as error:
                # It is raised in the caller's thread.
                note = WorkFailed(error)
            self.cpu_s += time.thread_time() - begun
            self._notes.append((owner, note))
            if len(self._notes) == 1:  # Else the other thread has not yet taken what lies before.
                self._wake()
