"""Sends payloads: encodes and checksums in one thread, sends in another,
over links that never block.

    owner's thread     start, add_spares, reopen, stop, results        (return at once)
    encode thread      PayloadEncoder.step of each payload, the oldest first
    send thread        LinkLoop.poll, PayloadJob.pump: all payloads, all columns

Sketch, per GB of user data at 4+2 in CPU seconds: encode 0.04, CRC 0.03, send 1.5 x 0.20 (TCP) or
next to nothing (lent to targets of this host). No byte of the payload is copied here; memory
besides the arena is two parity rings of 32 MiB, touched as far as they are used; that of catch-up
gives its memory back when nothing is sent. jobs: benchmarks/jobs/burst.fio.

What is stopped is not read any more when PayloadStopped is said, and only then: the encode step has
ended and no link holds a view of the arena. A link that keeps one for STOP_GRACE_US is cut.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.aio.lending import Lendable
from ckpt.aio.net.link import Link, LinkClosed, LinkDrained, LinkEvent, LinkOpened, LinkReceived
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.selecting import bell
from ckpt.aio.threads import start_thread
from ckpt.base.errors import CkptError, NoSpace
from ckpt.base.ids import ColumnNumber, PayloadId, RunName
from ckpt.format.messages.saving import Place
from ckpt.protocol.stager.events import PayloadFailed, PayloadStopped, StartPayload
from ckpt.protocol.writer.payload_events import ColumnsReopened, SparesGiven
from ckpt.protocol.writer.payload_writer import PayloadWriter
from ckpt.transfer.encoder import PayloadEncoder, zero_tail
from ckpt.transfer.parity_ring import ParityRing, ring_for
from ckpt.transfer.payload_job import PayloadJob, PayloadStatistics, SenderResult
from ckpt.transfer.target_links import SenderOptions, TargetLinks

__all__ = ["PayloadSender", "PayloadStatistics", "SenderOptions", "SenderResult"]

TICK_US: Final = 25_000
"""How often the thread looks around while a payload is under way. Without one it sleeps until it is
given an order, or a link has something."""
STARVED_TICK_US: Final = 10_000
STOP_GRACE_US: Final = 1_000_000
STATISTICS_MAX: Final = 64
"""Payloads whose statistics are kept after their end."""


class PayloadSender:
    """I bring each started payload to enough sealed columns. I expect its arena to stand unchanged
    until I said PayloadStopped, and each SparesWanted to be answered by add_spares. `results` says
    how it goes.
    """

    def __init__(self, options: SenderOptions) -> None:
        """Raises Scarce where the system has no thread or descriptor left."""
        self._loop = LinkLoop()
        try:
            self.wakeup_fd = bell()
            """Readable when `results` has something."""
        except BaseException:
            self._loop.shut()
            raise
        self._links = TargetLinks(self._loop, options)

        #: Payloads under way, oldest first. The send thread replaces it and never changes it, so
        #: that the other two may go through it.
        self._jobs: dict[PayloadId, PayloadJob] = {}
        #: What the owner's thread wants done by the send thread.
        self._orders: deque[Callable[[], None]] = deque()
        #: What the owner's thread has not heard; both other threads add to it.
        self._results: deque[SenderResult] = deque()
        #: Of ended payloads, oldest first, at most STATISTICS_MAX.
        self._statistics: dict[PayloadId, PayloadStatistics] = {}
        #: What a column of each run's last payload took. The send thread's alone.
        self._usual_us: dict[RunName, int | None] = {}
        #: Links cut while a job was at work; their other streams hear of it afterwards. The send
        #: thread's alone.
        self._lost: deque[tuple[Link, str]] = deque()
        #: What the encode thread could not do; the send thread fails these payloads.
        self._broken: deque[tuple[PayloadId, CkptError]] = deque()
        #: Numbers of streams, unique among all payloads.
        self._streams = count(1)
        #: Of the head passes and of catch-up, for whatever starts next; None before the first one.
        self._rings: tuple[ParityRing, ParityRing] | None = None
        #: Set when the encode thread may have something to do.
        self._work = threading.Event()
        self._closing = False

        self._ticked_us = now_us()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"ckpt-{name}", daemon=True)
            for name, loop in (("encode", self._encode_loop), ("send", self._send_loop))
        ]
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException:
            self.close()
            raise

    # ----------------------------------------------------------------------- owner's thread

    def start(
        self, action: StartPayload, arena: memoryview, lendable: Lendable | None = None
    ) -> None:
        """Begin.

        `arena` is writable, flat bytes, at least `layout.padded_bytes` long; its tail is zeroed.
        When it lies in `lendable`, targets of this host are lent it until `withdraw`.
        """
        self._order(lambda: self._start(action, arena, lendable))

    def withdraw(self, lendable: Lendable) -> None:
        """No payload uses this memory any more; targets let go of it."""
        self._order(lambda: self._loop.withdraw(lendable))

    def add_spares(
        self, payload: PayloadId, column: ColumnNumber | None, spares: tuple[Place, ...]
    ) -> None:
        """The coordinator's answer to SparesWanted, or what it named unasked."""
        self._order(lambda: self._tell(payload, SparesGiven(now_us(), column, spares)))

    def reopen(
        self, payload: PayloadId, columns: tuple[ColumnNumber, ...], places: tuple[Place, ...]
    ) -> None:
        """The second count lost these columns."""
        self._order(lambda: self._tell(payload, ColumnsReopened(now_us(), columns, places)))

    def stop(self, payload: PayloadId) -> None:
        """PayloadStopped follows, also for a payload that is not under way."""
        self._order(lambda: self._stop(payload))

    def results(self) -> list[SenderResult]:
        """What happened since the last call, in order."""
        try:
            os.eventfd_read(self.wakeup_fd)
        except BlockingIOError:
            return []
        return [self._results.popleft() for _ in range(len(self._results))]

    def statistics(self, payload: PayloadId) -> PayloadStatistics | None:
        """Of a payload under way or lately ended."""
        job = self._jobs.get(payload)
        return job.statistics() if job is not None else self._statistics.get(payload)

    def close(self) -> None:
        """End both threads and all links; payloads under way are dropped. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._work.set()
        self._loop.wake()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._drop_rings()
        self._loop.shut()
        for job in self._jobs.values():
            job.encoder.stop()
            job.encoder.forget_arena()
        self._jobs = {}
        os.close(self.wakeup_fd)

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._loop.abandon()

    def _order(self, order: Callable[[], None]) -> None:
        assert not self._closing
        self._orders.append(order)
        self._loop.wake()

    # ------------------------------------------------------------- orders, on the send thread

    def _start(self, action: StartPayload, arena: memoryview, lendable: Lendable | None) -> None:
        payload = action.plan.payload
        if payload in self._jobs:
            return
        if lendable is not None:
            self._loop.lendables.add(lendable)
        try:
            writer = PayloadWriter(
                action.plan, action.payload_bytes, self._streams, now_us(),
                usual_us=self._usual_us.get(payload.checkpoint.run),
            )  # fmt: skip
            arena = arena.cast("B")
            zero_tail(writer.layout, arena)
            encoder = PayloadEncoder(
                payload, action.launch, writer.layout, arena, self._rings_for(writer)
            )
        except CkptError as error:
            self._emit(PayloadFailed(now_us(), payload, error.code, error.message, error.hint))
            return
        job = PayloadJob(action, encoder, writer, self._links, self._emit, self._cut)
        self._jobs = {**self._jobs, payload: job}
        job.begin()
        self._work.set()

    def _rings_for(self, writer: PayloadWriter) -> tuple[ParityRing, ParityRing]:
        """A payload with larger cells than any before, or more parity, gets new rings;
        the old ones go with their payloads. Raises NoSpace.
        """
        cell_bytes, parity_count = writer.layout.cell_bytes, writer.layout.code.m
        if self._rings is None or not self._rings[0].serves(cell_bytes, parity_count):
            self._drop_rings()
            self._rings = None
            self._rings = _two_rings(cell_bytes, parity_count)
            for ring in self._rings:
                self._loop.lendables.add(ring.lendable)
        return self._rings

    def _drop_rings(self) -> None:
        for ring in self._rings or ():
            self._loop.withdraw(ring.lendable)
            ring.close()

    def _tell(self, payload: PayloadId, event: SparesGiven | ColumnsReopened) -> None:
        job = self._jobs.get(payload)
        if job is not None:
            job.tell(event)

    def _stop(self, payload: PayloadId) -> None:
        job = self._jobs.get(payload)
        if job is None:
            self._emit(PayloadStopped(now_us(), payload))
        else:
            job.stop()

    # ----------------------------------------------------------------------- send thread

    def _send_loop(self) -> None:
        while not self._closing:
            if (now := now_us()) - self._ticked_us >= TICK_US:
                self._tick(now)  # Right after a poll: what came in time has been heard.
            self._take_orders()
            for job in self._jobs.values():
                job.pump()
            self._relieve(now := now_us())
            self._sweep(now)
            starved = any(job.encoder.starved_since_us is not None for job in self._jobs.values())
            tick_us = TICK_US if self._jobs else None
            for event in self._loop.poll(STARVED_TICK_US if starved else tick_us):
                self._dispatch(event)

    def _take_orders(self) -> None:
        while self._orders:
            self._orders.popleft()()
        while self._broken:
            payload, error = self._broken.popleft()
            job = self._jobs.get(payload)
            if job is not None:
                job.fail(error)

    def _dispatch(self, event: LinkEvent) -> None:
        match event:
            case LinkReceived(link, request, bulk=bulk):
                for job in self._jobs.values():
                    if job.received(request, link, event.message):
                        break
                if bulk is not None:
                    bulk.release()
            case LinkOpened(link):
                for job in self._jobs.values():
                    job.link_opened(link)
            case LinkDrained(link):
                for job in self._jobs.values():
                    job.link_drained(link)
            case LinkClosed(link, error):
                by_tcp = self._links.forget(link)
                for job in self._jobs.values():
                    job.link_lost(link, str(error), by_tcp)

    def _relieve(self, now: int) -> None:
        """Wake the encode thread where it can go on; detach what holds it up."""
        jobs = self._jobs.values()
        if sum(job.is_starved(now) for job in jobs):  # Each keeps its own account: ask them all.
            for job in jobs:
                job.detach_laggards()
        if any(job.encoder.may_go_on for job in jobs):
            self._work.set()

    def _tick(self, now: int) -> None:
        self._ticked_us = now
        for job in list(self._jobs.values()):
            job.tick(now)

    def _sweep(self, now: int) -> None:
        """Hear of cut links, and let stopped payloads go."""
        while self._lost:
            link, reason = self._lost.popleft()
            for job in self._jobs.values():
                job.link_lost(link, reason, by_tcp=False)
        for payload, job in list(self._jobs.items()):
            since = job.stopping_since_us
            if job.is_stopped:
                job.encoder.forget_arena()
                self._statistics[payload] = ended = job.statistics()
                self._usual_us[payload.checkpoint.run] = ended.column_us
                while len(self._statistics) > STATISTICS_MAX:
                    del self._statistics[next(iter(self._statistics))]
                self._jobs = {key: other for key, other in self._jobs.items() if other is not job}
                # Most saves have nothing to catch up. A payload that begins may change the rings.
                rings = self._rings
                if not self._jobs and rings is not None:
                    rings[1].rest()
                self._emit(PayloadStopped(now, payload))
            elif since is not None and now - since >= STOP_GRACE_US:
                for link in job.flying_links():
                    self._cut(link)

    def _cut(self, link: Link) -> None:
        self._links.cut(link)
        self._lost.append((link, "the connection was cut: its target made no progress"))

    def _emit(self, result: SenderResult) -> None:
        self._results.append(result)
        os.eventfd_write(self.wakeup_fd, 1)

    # ----------------------------------------------------------------------- encode thread

    def _encode_loop(self) -> None:
        while not self._closing:
            self._work.wait()
            self._work.clear()
            while not self._closing and self._encode_some():
                self._loop.wake()

    def _encode_some(self) -> bool:
        """One step of the oldest payload that can go on."""
        for payload, job in self._jobs.items():
            try:
                if job.encoder.step():
                    return True
            except CkptError as error:
                self._broken.append((payload, error))
                job.encoder.stop()
                self._loop.wake()
        return False

    def _run(self, loop: Callable[[], None]) -> None:
        """A thread's whole life.

        What nobody foresaw fails every payload, loudly, rather than hang it.
        """
        try:
            loop()
        except BaseException as error:
            for payload in self._jobs:
                text = f"the sender broke: {type(error).__name__}: {error}"
                self._emit(PayloadFailed(now_us(), payload, "failed", text))
            raise


def _two_rings(cell_bytes: int, parity_count: int) -> tuple[ParityRing, ParityRing]:
    """Of the head pass, and of catch-up. Raises NoSpace, of this payload alone: the next one may
    find memory.
    """
    head = None
    try:
        head = ring_for(cell_bytes, parity_count)
        return head, ring_for(cell_bytes, parity_count)
    except OSError as error:
        if head is not None:
            head.close()
        text = f"no memory for the parity of a payload: {error.strerror}"
        raise NoSpace(text, hint="raise ulimit -v and -n, or the job's memory") from None
