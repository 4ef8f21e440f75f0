"""Reads payloads from targets into the caller's memory: one thread moves and checks bytes, one
decodes them.

    caller's thread   LinkLoop: asks, receives straight into place  --stripes to decode-->  worker
                      checksums; PayloadReader of each payload      <--what came of it--    decode,
                                                                                            copies

Both release the GIL. All payloads of a read share connections; a few are under way, others wait.

Sketch for 1 GB from a healthy 4+2: receive 0.10 to 0.14 CPU s, checksums 0.04, first touch of the
destination 0.15 to 0.5, copies only for what has no contiguous cell in the destination. A cell of
4 MiB costs a question, two to four `recv`, one checksum; no thread is woken for it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Self

from ckpt.aio.clock import now_us
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.link import (
    Link,
    LinkClosed,
    LinkDrained,
    LinkEvent,
    LinkOpened,
    LinkReceived,
)
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.errors import Corrupt, Unauthorized, Unavailable
from ckpt.base.ids import ColumnId, ColumnNumber, TargetId
from ckpt.base.units import MiB
from ckpt.format.frame import FrameHead
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import CancelRequest, Failed
from ckpt.format.messages.lending import ColumnLent
from ckpt.format.messages.reading import (
    ManifestData,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadManifest,
    ReadRanges,
)
from ckpt.format.runs import SpareBuffers
from ckpt.protocol.events import Report, Ticked
from ckpt.protocol.reader.events import (
    AskAnswered,
    AskManifest,
    AskRanges,
    AskRefused,
    CancelAsk,
    ColumnLost,
    CutColumn,
    FinishStripe,
    ManifestRead,
    ManifestWrong,
    RangeErased,
    RangesBroken,
    RangesStored,
    ReadCompleted,
    ReaderAction,
    ReaderEvent,
    ReadFailed,
    ReadStatistics,
    ReadWish,
    StripeFinished,
)
from ckpt.protocol.reader.payload_reader import PayloadReader
from ckpt.protocol.runs.run_sets import Owed, RunSet, total
from ckpt.protocol.runs.wire_runs import to_wire
from ckpt.transfer.assembly import Assembly, CellPool
from ckpt.transfer.own_time import OwnTime
from ckpt.transfer.read_job import (
    PayloadDamaged,
    Progress,
    ReadJob,
    ReceiverOptions,
    ReceiverStatistics,
)
from ckpt.transfer.receiving.decode_worker import DecodeWorker, WorkFailed
from ckpt.transfer.receiving.lent_columns import LentColumns, LentRead
from ckpt.transfer.receiving.peer_links import PeerLinks
from ckpt.transfer.receiving.under_way import (
    Asked,
    Read,
    is_apart,
    statistics_of,
)

TICK_US: Final = 100_000
AHEAD_PAYLOAD_BYTES_MIN: Final = 64 * MiB
"""Of a smaller payload so few bytes are read that nothing is made ahead for them."""
AHEAD_BYTES_MAX: Final = 64 * MiB
"""Of cells that are made ahead. Touched as they fill, 24 MiB cost a load's first bytes 50 ms."""
_REMEDY: Final = "see ckpt status; the targets that are down hold its bytes"


def read_payloads(
    jobs: Sequence[ReadJob], options: ReceiverOptions, progress: Progress | None = None
) -> ReceiverStatistics:
    """One read by a receiver of its own; see `PayloadReceiver.read`."""
    with PayloadReceiver(options) as receiver:
        return receiver.read(jobs, progress)


class PayloadReceiver:
    """I read payloads, one `read` after another over the same connections, until I am closed. A
    context manager; one thread uses me. Targets that a read gave up are suspects in the next.
    """

    def __init__(self, options: ReceiverOptions) -> None:
        self._options = options
        self._suspects = options.suspects
        self._numbers: Iterator[int] = itertools.count(1)
        self._loop = LinkLoop()
        self._worker = DecodeWorker(self._loop.wake)
        self._lent = LentColumns(self._loop.wake, self._numbers)
        self._pool = CellPool()
        self._apart = SpareBuffers()
        self._peers = PeerLinks(self._loop, options, self._sink)
        self.manifests: dict[bytes, bytes] = {}
        """By digest: those that reads have brought, and need not ask for again."""
        self._closed = False

        # What follows is of the read under way.
        self._progress: Progress | None = None
        #: Payloads that were not begun.
        self._jobs: deque[ReadJob] = deque()
        self._wanted_bytes = 0
        #: Payloads that are being read; at most `concurrent_max`.
        self._reads: list[Read] = []
        #: Requests that are not answered, by number. The sink looks them up for each frame: what is
        #: not here lands nowhere.
        self._asked: dict[int, Asked] = {}
        #: Payloads that were read whole.
        self._ended: list[tuple[ReadJob, ReadStatistics]] = []
        self._verify_cpu_s = self._lent_cpu_s = 0.0
        #: What the first lost connection said to do.
        self._remedy = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, jobs: Sequence[ReadJob], progress: Progress | None = None) -> ReceiverStatistics:
        """Fill all landings. Blocks; when it raises I am closed, and nothing is written to them
        any more afterwards.

        Raises PayloadDamaged, Unavailable when columns stay out of reach, Unauthorized when a
        target refuses our secret. The destination's content is then undefined.
        """
        assert not self._closed
        self._progress = progress
        self._jobs = deque(job for job in jobs if job.landings)
        self._wanted_bytes = sum(job.landings.wanted_bytes for job in self._jobs)
        self._ended, self._verify_cpu_s, self._lent_cpu_s, self._remedy = [], 0.0, 0.0, ""
        begun, begun_cpu, decoded_s = time.monotonic(), time.thread_time(), self._worker.cpu_s
        try:
            self._work()
        except BaseException:
            self.close()
            raise
        cpu_s = {
            "link": time.thread_time() - begun_cpu - self._verify_cpu_s,
            "verify": self._verify_cpu_s,
            "decode": self._worker.cpu_s - decoded_s,
            "files": self._lent_cpu_s,
        }
        found = statistics_of(self._ended, self._wanted_bytes, time.monotonic() - begun, cpu_s)
        self._suspects |= found.targets_out
        self._progress, self._ended = None, []  # They know the caller, and memory that is his.
        return found

    def expect_pieces(self, layout: Layout) -> None:
        """Have cells made ahead for payloads like this one, of which much will be read into pieces
        of memory that are smaller than its cells. Once, before the first `read`.
        """
        if layout.payload_bytes >= AHEAD_PAYLOAD_BYTES_MIN:
            count = min(2 * layout.code.k, AHEAD_BYTES_MAX // layout.cell_bytes)
            self._pool.make_ahead(layout.cell_bytes, count)

    def expect(self, job: ReadJob, wanted_bytes: int) -> None:
        """Reads will want so many bytes of the job's payload. Once, before the first `read`."""
        if self._options.borrows:
            self._lent.expect(job, wanted_bytes)

    def forgive(self) -> None:
        """Whom reads have given up is asked again by the next one, over another connection."""
        for target in self._suspects - self._options.suspects:
            self._peers.cut(target)
        self._suspects = self._options.suspects

    def close(self) -> None:
        """Cut every connection, end the worker. Idempotent."""
        if not self._closed:
            if not self._reads:  # Else one was broken off in the midst of anything.
                self._lent.give_back(self._peers.say)
            self._closed, self._progress = True, None
            self._lent.stop()
            self._worker.stop()
            self._loop.shut()
            self._pool.close()

    def _work(self) -> None:
        tick_at_us = 0
        own_time = OwnTime(now_us())
        own_time.since_last(now_us(), self._loop.waited_us)
        if self._lent.has_asked:  # Files that came since the last read.
            for event in self._loop.poll(0):
                self._take(event)
        while self._jobs or self._reads:
            while self._jobs and len(self._reads) < self._options.concurrent_max:
                self._begin(self._jobs.popleft())
            for event in self._loop.poll(max(0, min(TICK_US, tick_at_us - now_us()))):
                self._take(event)
            for note in self._worker.notes():
                self._note(note)
            for lent in self._lent.notes():
                self._fetched(lent)
            if now_us() >= tick_at_us:
                tick_at_us = now_us() + TICK_US
                own_us = own_time.since_last(now_us(), self._loop.waited_us)
                for read in list(self._reads):
                    read.machine.note_own_time(own_us)
                    self._feed(read, Ticked(now_us()))
                self._tell_progress()
        # A read that ends cancels what it asked: nothing lands in memory that is a caller's again.
        assert not self._asked
        self._lent.end_read(self._wanted_bytes, self._peers.say)
        self._tell_progress(last=True)

    # ----------------------------------------------------------------------- machines

    def _begin(self, job: ReadJob) -> None:
        assembly = Assembly(
            job.layout, job.landings, job.manifest_digest, self._options.checks,
            self._pool, self._apart,
        )  # fmt: skip
        wish = ReadWish(
            job.payload, job.layout, job.landings.ranges(), job.standings(self._suspects),
            self._options.limits, spared=job.spared,
        )  # fmt: skip
        known = self.manifests.get(job.manifest_digest)
        if known is not None:
            assembly.take_manifest(known)
        machine = PayloadReader(
            wish, self._numbers, now_us(), assembly.is_direct, manifest_here=known is not None
        )
        read = Read(job, machine, assembly)
        self._reads.append(read)
        self._perform(read, machine.begin())
        self._peers.dial_ahead(job, self._suspects)

    def _feed(self, read: Read, event: ReaderEvent) -> None:
        self._perform(read, read.machine.handle(event))

    def _perform(self, read: Read, actions: list[ReaderAction]) -> None:
        for action in actions:
            match action:
                case AskRanges(request, column, runs):
                    if not self._fetch(read, column, request, runs):
                        self._ask_ranges(read, column, request, runs)
                case AskManifest(request, column):
                    message = ReadManifest(ColumnId(read.job.payload, column))
                    self._ask(read, column, request, message, None)
                case CancelAsk(request, _):
                    self._cancel(request)
                case CutColumn(column, reason):
                    self._cut(read, column, reason)
                case FinishStripe(stripe):
                    if read.assembly.has_work(action):
                        self._worker.put(read.assembly, action, read)
                    else:
                        wrong = read.assembly.finish(action)
                        self._feed(read, StripeFinished(now_us(), stripe, wrong))
                case ReadCompleted():
                    self._reads.remove(read)
                    self._ended.append((read.job, read.machine.statistics()))
                case ReadFailed(code, message_text, damaged):
                    self._raise(read, code, message_text, damaged)
                case Report():
                    if self._options.report is not None:
                        self._options.report(action)

    def _raise(self, read: Read, code: str, message: str, damaged: bool) -> None:
        if damaged:
            raise PayloadDamaged(read.job.payload, message)
        assert code == "unavailable"
        raise Unavailable(message, hint=self._remedy or _REMEDY)

    # ----------------------------------------------------------------------- lent columns

    def _fetch(self, read: Read, column: ColumnNumber, request: int, runs: RunSet) -> bool:
        """Whether the column's file gives them, which its target has lent, or is asked for now."""
        id, target = ColumnId(read.job.payload, column), read.job.columns[column]
        link = self._peers.get(target)
        if target is None or link is None or not self._options.borrows:
            return False
        lent = self._lent.find(id, target, read.job, link)
        begun = self._lent.begin(lent, request, runs, partial(read.assembly.land, column))
        if begun is not None:
            self._asked[request] = Asked(read, column, target, Owed(runs), begun)
        return begun is not None

    def _fetched(self, lent: LentRead) -> None:
        """Its target is asked for what its file did not give, and finds out why."""
        asked = self._asked.get(lent.request)
        if asked is None or asked.lent is not lent:
            return
        now, read, runs = now_us(), asked.read, lent.runs
        del self._asked[lent.request]
        self._lent_cpu_s += lent.cpu_s
        lent.column.read_bytes += total(runs)
        if not lent.is_whole:
            self._lent.refuse(lent.column)
            self._ask_ranges(read, asked.column, lent.request, lent.wanted)
            return
        for (start, end), crc in zip(runs, lent.sums, strict=True):
            read.assembly.store(asked.column, start, end - start, crc, crc)
        # Before the machine hears of the others, which may end the question.
        if lent.rest:
            self._ask_ranges(read, asked.column, lent.request, lent.rest)
        self._feed(read, RangesStored(now, lent.request, runs))
        self._note_turns(read, asked.target, total(runs))
        if not lent.rest:
            self._feed(read, AskAnswered(now, lent.request))

    # ----------------------------------------------------------------------- targets

    def _ask_ranges(self, read: Read, column: ColumnNumber, request: int, runs: RunSet) -> None:
        message = ReadRanges(ColumnId(read.job.payload, column), to_wire(runs))
        self._ask(read, column, request, message, Owed(runs))

    def _ask(
        self, read: Read, column: ColumnNumber, request: int, message: Message, owed: Owed | None
    ) -> None:
        target = read.job.columns[column]
        assert target is not None
        self._asked[request] = Asked(read, column, target, owed)
        if not self._peers.ask(read.job.addresses[target], request, message):
            self._gone(target, f"target {target} takes no questions")

    def _sink(self, target: TargetId, head: FrameHead, message: Message) -> memoryview | None:
        """Where a range lands: in its place, if this target owes exactly it."""
        asked = self._asked.get(head.request)
        runs = asked.owed_of(target, head, message) if asked is not None else ()
        if asked is None or not runs:
            return None
        if is_apart(runs):
            place = self._apart.take(head.bulk_bytes)
        else:
            place = asked.read.assembly.land(asked.column, runs[0][0], head.bulk_bytes)
        asked.places.append((runs, place))
        return place

    def _take(self, event: LinkEvent) -> None:
        match event:
            case LinkOpened(link):
                self._lent.opened(self._peers.opened(link), link)
            case LinkReceived():
                self._receive(event.link, event.request, event.message, event.bulk)
            case LinkClosed(link, error):
                if isinstance(error, Unauthorized):
                    raise error
                self._remedy = self._remedy or error.hint
                target = self._peers.target_of(link)
                if target is not None:
                    self._gone(target, error.message)
            case LinkDrained():
                # Questions are small; nobody waits for room.
                return

    def _receive(self, link: Link, request: int, message: Message, bulk: Bulk | None) -> None:
        if isinstance(message, ColumnLent) and bulk is not None and bulk.file is not None:
            self._lent.lent(
                self._peers.target_of(link), request, bulk.file, message.first, bulk.view
            )
            return
        asked = self._asked.get(request)
        if asked is None:
            return
        if self._peers.get(asked.target) is not link:
            self._cut_off(link, "answers what another one was asked")
            return
        now, read = now_us(), asked.read
        match message:
            case RangeData(_, crc) if bulk is not None and (runs := asked.landed(bulk.view)):
                whole = self._store(asked, runs, bulk, crc)
                kind = RangesStored if whole else RangesBroken
                self._feed(read, kind(now, request, runs))
                self._note_turns(read, asked.target, len(bulk.view))
            case _ if asked.lent:
                self._cut_off(link, "answers what it was not asked")
            case RangeDamaged(start, end, reason) if asked.owed is not None:
                if start < end and asked.owed.take(((start, end),)):
                    self._feed(read, RangeErased(now, request, start, end, reason))
            case RangesDone() | Failed() if asked.places:
                # It would land where parity is decoded to, or after the read is over.
                self._cut_off(link, "goes on with what it has answered")
            case RangesDone():
                del self._asked[request]
                self._feed(read, AskAnswered(now, request))
            case ManifestData(total_bytes, offset) if asked.owed is None:
                self._collect(request, asked, total_bytes, offset, bulk)
            case Failed(code, text, _, _):
                del self._asked[request]
                self._feed(read, AskRefused(now, request, code, text))
            case _:
                self._cut_off(link, "answers out of turn")

    def _note_turns(self, read: Read, target: TargetId, size: int) -> None:
        """So much came of the target for this read, and nothing for all others."""
        for other in self._reads:
            if other is not read:
                other.note_turn(target, size, now_us())

    def _cut_off(self, link: Link, what: str) -> None:
        """Nothing that comes from there is believed any more."""
        target = self._peers.target_of(link)
        self._loop.close(link)
        if target is not None:
            self._gone(target, f"target {target} {what}")

    def _store(self, asked: Asked, runs: RunSet, bulk: Bulk, crc: int) -> bool:
        """Bytes that landed count from now on, if they are what their target sent."""
        begun, assembly = time.thread_time(), asked.read.assembly
        if is_apart(runs):
            whole = assembly.store_apart(asked.column, runs, bulk.view, bulk.crc(), crc)
        else:
            start, size = runs[0][0], len(bulk.view)
            whole = assembly.store(asked.column, start, size, bulk.crc(), crc)
        self._verify_cpu_s += time.thread_time() - begun
        return whole

    def _collect(
        self, request: int, asked: Asked, total: int, offset: int, bulk: Bulk | None
    ) -> None:
        """One part of a manifest, in ascending order; the last one makes it whole."""
        now, read = now_us(), asked.read
        event: ManifestRead | ManifestWrong = ManifestRead(now, request)
        try:
            if not asked.collect(total, offset, None if bulk is None else bulk.view):
                return
            read.assembly.take_manifest(asked.document)
            self.manifests[read.job.manifest_digest] = bytes(asked.document)
        except Corrupt as error:
            event = ManifestWrong(now, request, error.message)
        del self._asked[request]
        self._feed(read, event)

    def _note(self, note: tuple[object, StripeFinished | WorkFailed]) -> None:
        """The worker has done something."""
        owner, event = note
        assert isinstance(owner, Read)
        if isinstance(event, WorkFailed):
            raise event.error
        self._feed(owner, event)

    def _cancel(self, request: int) -> None:
        asked = self._asked.pop(request, None)
        if asked is not None and not asked.give_up():
            self._peers.say(asked.target, request, CancelRequest())

    def _cut(self, read: Read, column: ColumnNumber, reason: str) -> None:
        target = read.job.columns[column]
        assert target is not None
        if self._peers.get(target) is not None:
            self._gone(target, reason)

    def _gone(self, target: TargetId, reason: str) -> None:
        """The connection is closed, if it is not yet: tell every read that asked something
        there.
        """
        self._peers.cut(target)
        self._lent.gone(target)
        lost = [(r, a) for r, a in self._asked.items() if a.target == target]
        for request, asked in lost:
            asked.give_up()
            del self._asked[request]
        for read, column in dict.fromkeys((a.read, a.column) for _, a in lost):
            if read in self._reads:
                self._feed(read, ColumnLost(now_us(), column, reason))

    # ----------------------------------------------------------------------- what came of it

    def _tell_progress(self, *, last: bool = False) -> None:
        if self._progress is None:
            return
        done = sum(found.wanted_bytes for _, found in self._ended)
        done += sum(read.machine.done_bytes for read in self._reads)
        self._progress(self._wanted_bytes if last else min(done, self._wanted_bytes))
