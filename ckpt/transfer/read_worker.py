"""The second thread of a read: checksums, decoding and copies, in the order in which they were
put."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ckpt.aio.clock import now_us
from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnNumber
from ckpt.protocol.reader.events import (
    AskAnswered,
    FinishStripe,
    ManifestRead,
    ManifestWrong,
    RangeBroken,
    RangeStored,
    ReaderEvent,
    StripeFinished,
)
from ckpt.transfer.assembly import Assembly


@dataclass(frozen=True, slots=True)
class CheckRange:
    """Bytes that landed."""

    request: int
    column: ColumnNumber
    start: int
    view: memoryview
    crc: int


@dataclass(frozen=True, slots=True)
class CheckManifest:
    """A manifest that came."""

    request: int
    document: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """The target has answered all of a request; passed on behind the request's ranges."""

    request: int


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Our own fault: the thread could not do its work."""

    error: BaseException


Work = CheckRange | CheckManifest | Note | FinishStripe


class ReadWorker:
    """I do work and note what became of it; `wake` is called when there are notes.

    What waits is bounded by the windows of the reads that put it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.cpu_s = {"verify": 0.0, "decode": 0.0}
        """By stage; whole once the thread has ended."""
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Assembly, Work, object] | None] = queue.SimpleQueue()
        #: (owner, what became of it), oldest first; the other thread takes them.
        self._notes: deque[tuple[object, ReaderEvent | WorkFailed]] = deque()
        self._thread = threading.Thread(target=self._run, name="ckpt-read", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread: it touches nobody's memory afterwards."""
        self._work.put(None)
        self._thread.join()

    def put(self, assembly: Assembly, work: Work, owner: object) -> None:
        """Do it after all that was put before."""
        self._work.put((assembly, work, owner))

    def notes(self) -> list[tuple[object, ReaderEvent | WorkFailed]]:
        """What became of work since the last call."""
        found = []
        while self._notes:
            found.append(self._notes.popleft())
        return found

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            assembly, work, owner = item
            try:
                event: ReaderEvent | WorkFailed = self._do(assembly, work)
            except BaseException as error:
                # It is raised in the caller's thread.
                event = WorkFailed(error)
            self._notes.append((owner, event))
            if len(self._notes) == 1:  # Else the other thread has not yet taken what lies before.
                self._wake()

    def _do(self, assembly: Assembly, work: Work) -> ReaderEvent:
        begun = time.thread_time()
        match work:
            case CheckRange(request, column, start, view, crc):
                whole = assembly.store(column, start, view, crc)
                self.cpu_s["verify"] += time.thread_time() - begun
                kind = RangeStored if whole else RangeBroken
                return kind(now_us(), request, start, start + len(view))
            case Note(request):
                return AskAnswered(now_us(), request)
            case CheckManifest(request, document):
                try:
                    assembly.take_manifest(document)
                except Corrupt as error:
                    return ManifestWrong(now_us(), request, error.message)
                return ManifestRead(now_us(), request)
            case FinishStripe(stripe):
                wrong = assembly.finish(work)
                self.cpu_s["decode"] += time.thread_time() - begun
                return StripeFinished(now_us(), stripe, wrong)
