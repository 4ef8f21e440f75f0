"""Columns of this host's targets that a read takes from their files, without their targets.

    unasked --LendColumn--> asked --ColumnLent--> lent --a read of the file fails--> refused
                               +------Failed, its target is gone-------------------------^

A lent column is read by a thread for each target, that is for each device, so that a sick one holds
up nobody else: past the page cache into a slice that stays in the second-level cache, compared with
the checksums that the target gave, copied to its place. What cannot be had so is asked of the
target, like all else, and then it is the target that finds out what is wrong.

A load says what it will read of a payload, a part at a time. Then its files are asked for as soon
as connections stand, and kept until so much was read: else each part would begin with bytes that
come through sockets.

Safety: whoever gives a read up cancels it first (`LentRead.cancel`), and then nothing of it is
written any more, even while the device still holds the thread.

Sketch, CPU s/GB, first touch of the destination not counted: 0.05 to read, 0.04 to compare, 0.05 to
copy; through a socket 0.7.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ckpt.aio.lending import ReceivedFile
from ckpt.aio.net.link import Link
from ckpt.aio.slots import untouched_memory
from ckpt.aio.threads import start_thread
from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.system_errors import Scarce
from ckpt.base.units import MiB
from ckpt.format.layout import Layout, blocks_of
from ckpt.format.messages import Message
from ckpt.format.messages.lending import LendColumn, ReturnColumn
from ckpt.native.arrays import Crcs
from ckpt.native.fetching import Fetch
from ckpt.native.landing import WHOLE
from ckpt.native.sums import joined
from ckpt.protocol.runs.run_sets import RunSet, is_plain, total
from ckpt.protocol.runs.spans import Spans
from ckpt.transfer.read_job import ReadJob

WANTED_BYTES_MIN: Final = 16 * MiB
"""Of a column; where less of it is wanted the question for its file costs more than it wins."""
REST_FRACTION: Final = 16
"""What is no whole block makes up at most one part in so many: its target is asked for it as well.
"""
SLICE_BYTES: Final = 1 * MiB
"""Read, compared and copied at once."""
Say = Callable[[TargetId, int, Message], None]
"""A message to a target, under the number of a request; nothing where no connection stands."""
END_S: Final = 1.0
"""So long a thread may take to end that a device may hold up."""


@dataclass(slots=True, eq=False)
class LentColumn:
    """One column, whatever its standing."""

    request: int
    """Under which it was asked for, and is returned; 0: nobody was asked."""
    target: TargetId
    layout: Layout
    file: ReceivedFile | None = None
    """None: asked, or refused."""
    is_refused: bool = False
    """A file did not give what was asked of it: another one is not taken."""
    first: int = 0
    """Where in the file its first block begins."""
    crcs: Crcs | None = None
    read_bytes: int = 0

    def parted(self, runs: Spans) -> tuple[Spans, Spans]:
        """What of runs, each of one cell, is whole blocks, and what is not."""
        whole, rest = [], []
        for start, end in runs:
            stripe = start // self.layout.cell_bytes
            cell = self.layout.fragment_offset(stripe)
            first = cell + blocks_of(start - cell) * BLOCK_BYTES
            is_tail = end == cell + self.layout.cell_bytes_of(stripe)
            last = end if is_tail else end - (end - cell) % BLOCK_BYTES
            if first < last:
                whole.append((first, last))
                rest += [run for run in ((start, first), (last, end)) if run[0] < run[1]]
            else:
                rest.append((start, end))
        return tuple(whole), tuple(rest)

    def crcs_of(self, start: int, end: int) -> Crcs:
        """Of the blocks that fragment bytes [start, end) of one cell are."""
        assert self.crcs is not None
        stripe = start // self.layout.cell_bytes
        at = start - self.layout.fragment_offset(stripe)
        number = stripe * blocks_of(self.layout.cell_bytes) + at // BLOCK_BYTES
        return self.crcs[number : number + blocks_of(end - start)]


class LentRead:
    """Some blocks of a lent column on their way to their places."""

    def __init__(
        self, column: LentColumn, request: int, wanted: Spans, runs: Spans, rest: Spans
    ) -> None:
        self.column = column
        self.request = request
        """The question that it answers."""
        self.wanted = wanted
        """What is asked there, `runs` and `rest`."""
        self.runs = runs
        """Whole blocks, in fragment bytes, each run of one cell."""
        self.rest = rest
        """What is no whole block: its target is asked for it."""
        crcs = [column.crcs_of(at, end) for at, end in runs]
        self.sums = [joined(each, end - at) for each, (at, end) in zip(crcs, runs, strict=True)]
        """CRC-32 of each run."""
        self.is_whole = False
        """Once it is done: whether all is in its place."""
        self.cpu_s = 0.0
        self._crcs = crcs
        self._fetches: list[Fetch] = []
        #: Open while a thread reads it, whatever becomes of the column.
        self._file: ReceivedFile | None = None

    def place(self, places: Sequence[memoryview], slice: memoryview) -> None:
        """Where the runs belong, and what they come through."""
        file = self._file = self.column.file
        assert file is not None
        self._fetches = [
            Fetch(file.descriptor, self.column.first + at, crcs, place, slice)
            for (at, _), crcs, place in zip(self.runs, self._crcs, places, strict=True)
        ]

    def perform(self) -> None:
        """On a thread that the device may hold up."""
        begun = time.thread_time()
        self.is_whole = all(fetch.fetch() == WHOLE for fetch in self._fetches)
        self.cpu_s = time.thread_time() - begun

    def cancel(self) -> None:
        """Nothing is written any more once this has returned. Idempotent."""
        for fetch in self._fetches:
            fetch.cancel()


class LentColumns:
    """Those of one receiver, whose thread calls me; `wake` is called when there are notes."""

    def __init__(self, wake: Callable[[], None], numbers: Iterator[int]) -> None:
        """`numbers`: of requests."""
        self._wake = wake
        self._numbers = numbers
        self._columns: dict[ColumnId, LentColumn] = {}
        self._devices: dict[TargetId, _Device] = {}
        #: Of whose payload reads will still want `_expected_bytes`.
        self._expected: ReadJob | None = None
        self._expected_bytes = 0
        #: Before a thread has them, and until they are taken: a Ctrl-C may keep their receiver from
        #: ever hearing of them.
        self._under_way: set[LentRead] = set()
        #: What is done, oldest first; the receiver's thread takes them.
        self._notes: deque[LentRead] = deque()
        #: A thread that a device holds up may end later than I do, and must not wake anybody then.
        self._lock = threading.Lock()
        self._stopped = False

    def expect(self, job: ReadJob, wanted_bytes: int) -> None:
        """Reads will want so many bytes of the job's payload."""
        self._expected = job
        self._expected_bytes = min(wanted_bytes, job.layout.payload_bytes)

    def opened(self, target: TargetId | None, link: Link) -> None:
        """Its connection stands: ask for what it has of what is expected."""
        job = self._expected
        if job is None or target is None:
            return
        for number, holder in enumerate(job.columns[: job.layout.code.k]):
            if holder == target:
                self.find(ColumnId(job.payload, ColumnNumber(number)), target, job, link)

    @property
    def has_asked(self) -> bool:
        """Whether a file may have come while nobody looked."""
        return any(each.request and each.file is None for each in self._columns.values())

    def find(self, id: ColumnId, target: TargetId, job: ReadJob, link: Link) -> LentColumn | None:
        """The column of that job; None until its target can be asked. The first call asks it for
        the file, where it lends, and enough of the column is wanted.
        """
        column = self._columns.get(id)
        if column is None and link.peer is not None:
            request = 0
            if link.peer.lends and self._wants_enough(job):
                request = next(self._numbers)
                link.try_send(request, LendColumn(id))
            column = self._columns[id] = LentColumn(request, target, job.layout)
            if request and target not in self._devices:  # While its target opens the file.
                self._begin_device(column)
        return column

    def lent(
        self, target: TargetId | None, request: int, file: ReceivedFile, first: int,
        crcs: memoryview,
    ) -> None:  # fmt: skip
        """The target gave a file; ignored where it was not asked, or it is no such column's."""
        for column in self._columns.values():
            is_asked = column.request == request and column.target == target
            is_new = column.file is None and not column.is_refused
            if is_asked and is_new and len(crcs) == 4 * column.layout.block_count:
                column.file, column.first = file, first
                column.crcs = np.frombuffer(crcs, "<u4").astype(np.uint32)

    def refuse(self, column: LentColumn) -> None:
        """Read no more of it."""
        column.file, column.crcs, column.is_refused = None, None, True

    def begin(
        self, column: LentColumn | None, request: int, runs: RunSet,
        place: Callable[[int, int], memoryview],
    ) -> LentRead | None:  # fmt: skip
        """Read the whole blocks of the runs, each of one cell, to where `place(start, size)` says;
        None where the file has not come, too much of them is no whole block, or the system has no
        thread for it.
        """
        if column is None or column.file is None or not is_plain(runs):
            return None
        whole, rest = column.parted(runs)
        if total(rest) * REST_FRACTION > total(whole):
            return None
        device = self._devices.get(column.target) or self._begin_device(column)
        if device is None:
            return None
        read = LentRead(column, request, runs, whole, rest)
        read.place([place(at, end - at) for at, end in whole], device.slice)
        self._under_way.add(read)
        device.put(read)
        return read

    def notes(self) -> list[LentRead]:
        """What was done since the last call, cancelled ones among it."""
        found = []
        while self._notes:
            found.append(self._notes.popleft())
        self._under_way.difference_update(found)
        return found

    def gone(self, target: TargetId) -> None:
        """With its connection the target has everything back."""
        for id, column in list(self._columns.items()):
            if column.target == target:
                self.refuse(column)
                del self._columns[id]

    def end_read(self, wanted_bytes: int, say: Say) -> None:
        """So much was read: return all that no later read is expected to want."""
        self._expected_bytes -= wanted_bytes
        for id, column in list(self._columns.items()):
            is_kept = column.request and not column.is_refused
            if not (is_kept and self._is_expected(id.payload)):
                self._give_back(id, column, say)

    def give_back(self, say: Say) -> None:
        """Return everything."""
        for id, column in list(self._columns.items()):
            self._give_back(id, column, say)

    def stop(self) -> None:
        """Cancel all reads, and end all threads."""
        for read in self._under_way:
            read.cancel()
        with self._lock:
            self._stopped = True
        self._under_way.clear()
        self._columns.clear()
        for device in self._devices.values():
            device.stop()
        self._devices.clear()

    def _give_back(self, id: ColumnId, column: LentColumn, say: Say) -> None:
        self.refuse(column)
        del self._columns[id]
        if column.request:
            say(column.target, column.request, ReturnColumn(column.read_bytes))

    def _is_expected(self, payload: PayloadId) -> bool:
        expected = self._expected
        return expected is not None and expected.payload == payload and self._expected_bytes > 0

    def _wants_enough(self, job: ReadJob) -> bool:
        """Of each column, on average. Tensors are counted only where the column is as large."""
        if job.layout.column_bytes < WANTED_BYTES_MIN:
            return False
        wanted = job.landings.wanted_bytes
        if self._is_expected(job.payload):
            wanted = max(wanted, self._expected_bytes)
        return wanted >= WANTED_BYTES_MIN * job.layout.code.k

    def _begin_device(self, column: LentColumn) -> _Device | None:
        try:
            device = self._devices[column.target] = _Device(self._note)
        except Scarce:
            self.refuse(column)
            return None
        return device

    def _note(self, read: LentRead) -> None:
        """On the thread that did it."""
        with self._lock:
            if self._stopped:
                return
            self._notes.append(read)
            if len(self._notes) == 1:  # Else the other thread has not yet taken what lies before.
                self._wake()


class _Device:
    """One target's device: what reads it, one thing after another."""

    def __init__(self, done: Callable[[LentRead], None]) -> None:
        self.slice = memoryview(untouched_memory(SLICE_BYTES))[:SLICE_BYTES]
        self._done = done
        self._work: queue.SimpleQueue[LentRead | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ckpt-fetch", daemon=True)
        start_thread(self._thread)

    def put(self, read: LentRead) -> None:
        self._work.put(read)

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(END_S)

    def _run(self) -> None:
        while (read := self._work.get()) is not None:
            read.perform()
            self._done(read)
            # While this waits, it would keep the file open.
            del read
