"""The shell around the target's machine. It decides nothing.

    sockets, disk, ticks --events--> TargetMachine --actions--> frames, disk, log

Writes of fragments and reads are done in the loop: one O_DIRECT write of a fragment is 0.2 ms,
while a hop to a thread costs 20 to 30% end to end. Unless the device is known to be quick they have
a thread of their own (`transfers.py`). Syncs, names and preallocation, which may take long, go
through one worker thread, in order, so that the loop lives; so do reads at rest, for which nobody
waits, and which a sick device may hold up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ckpt.aio import descriptors
from ckpt.aio.clock import now_us, wall_us
from ckpt.aio.directory_scan import scan
from ckpt.aio.disk import Disk
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.dial import Dialer
from ckpt.aio.net.serving.server import Server
from ckpt.base.errors import Refused, Unavailable
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.lending import ReturnColumn
from ckpt.format.messages.targets import RegisterTarget, RenewLease
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Report,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from ckpt.protocol.handshake import Established
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    DiskFailed,
    LendFile,
    ReadAt,
    ReleaseBulk,
    SessionDrained,
    SpaceMeasured,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from ckpt.protocol.target.machine import TargetEvent, TargetMachine
from ckptd.door_watch import DoorWatch
from ckptd.http.exposition import Histogram
from ckptd.log import Reporter
from ckptd.target.coordinator_log import CoordinatorLog
from ckptd.target.disk_probe import PROBE_OP, DiskProbe
from ckptd.target.disk_worker import DiskWorker
from ckptd.target.metrics import SYNC_BOUNDS_S
from ckptd.target.transfers import Transfers

TICK_US: Final = 100_000
SPACE_US: Final = US_PER_S
"""How often the device's free space is measured."""
READS_PER_TURN: Final = 2
"""Disk reads in one turn of the loop, before other events get theirs."""


class TargetShell:
    """I turn what happens into events and perform actions. Everything runs on the loop's thread."""

    def __init__(self, machine: TargetMachine, disk: Disk, report: Reporter) -> None:
        self.machine = machine
        self.server: Server | None = None
        self.dialer: Dialer | None = None
        self._disk = disk
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._worker = DiskWorker(disk, self._disk_answered, self._took)
        self._transfers = Transfers(disk, self._disk_answered)
        self.sync_s = Histogram(SYNC_BOUNDS_S)
        """How long syncs of files and directories took, in seconds."""
        self._probe: DiskProbe | None = None
        self._events: deque[tuple[TargetEvent, Bulk | None]] = deque()
        self._feeding = False
        #: Slots of received bulks, by the write that owns them, until the machine releases it.
        self._bulks: dict[int, Bulk] = {}
        #: Read buffers that the machine has not released, by their read.
        self._buffers: dict[int, memoryview] = {}
        #: Reads that wait for their turn: the loop does a few, then looks at what else came.
        self._reads: deque[ReadAt] = deque()
        #: How many bulks have not left yet, by session; none of a session that has none.
        self._unsent: dict[Session, int] = {}
        self._coordinator: Session | None = None
        self.coordinator_log = CoordinatorLog(report)
        self._tick: asyncio.TimerHandle | None = None
        self._ticked_us = 0
        self._measured_us = -SPACE_US
        self._closing = False
        self._door: DoorWatch | None = None

    # ----------------------------------------------------------------------- life

    def start(self) -> None:
        """Learn what the directory holds, and begin to tick."""
        self.feed(scan(self._disk, now_us(), wall_us()))
        self._on_tick()

    def begin_probe(self) -> None:
        """From now on find out whether the device takes writes."""
        self._probe = DiskProbe(self._worker.put)

    def takes_writes(self, now: int) -> bool:
        """Whether the device takes writes; False while that is not known."""
        return self._probe is not None and self._probe.takes_writes(now)

    async def close(self) -> None:
        """No event comes after this; what the disk was given is done."""
        self._closing = True
        if self._tick is not None:
            self._tick.cancel()
        # What one has done may be something to do for the other.
        while not (self._worker.is_idle and self._transfers.is_idle):
            await self._worker.rest()
            await self._transfers.rest()
        self._worker.end()
        self._transfers.end()

    def _on_tick(self) -> None:
        if self._closing:
            return
        self._transfers.tick()
        self._ticked_us = now = now_us()
        if now - self._measured_us >= SPACE_US:
            self._measured_us = now
            self._measure_space()
            self._look_at_door(now)
        if self._probe is not None:
            self._probe.tick(now)
        self.feed(Ticked(now))
        if self.server is not None and self.server.identity.needs != self.machine.needs:
            self.server.identity = replace(self.server.identity, needs=self.machine.needs)
        for peer in (self.server, self.dialer):
            if peer is not None:
                peer.epoch = self.machine.epoch
        machine = self.machine
        if machine.registered:
            self.coordinator_log.taken_in()
        rest_us = machine.resting.rest_us(TICK_US) if machine.registered else TICK_US
        self._tick = self._loop.call_later(rest_us / US_PER_S, self._on_tick)

    def _hasten(self) -> None:
        """Something happened: the next tick comes soon."""
        tick, soon_s = self._tick, self._loop.time() + TICK_US / US_PER_S
        if tick is not None and tick.when() > soon_s:
            tick.cancel()
            self._tick = self._loop.call_at(soon_s, self._on_tick)

    def _look_at_door(self, now: int) -> None:
        if self._door is None and self.server is not None:
            self._door = DoorWatch(self.server, self._report)
        if self._door is not None:
            seen = self._door.look(now)
            self.machine.note_peers(
                full=bool(seen.need), descriptor_limit=descriptors.limit(),
                turned_away=seen.turned_away, evicted=seen.evicted,
            )  # fmt: skip

    def _measure_space(self) -> None:
        try:
            space = self._disk.space()
        except OSError as error:
            self._report("error", "cannot measure the device", {"error": error.strerror or ""})
        else:
            self.feed(
                SpaceMeasured(now_us(), space.bytes_total, space.bytes_free, space.inodes_free)
            )

    # ----------------------------------------------------------------------- sessions

    def opened(self, session: Session, peer: Established) -> None:
        """Note a peer that came to our port."""
        if peer.role in (Role.COORDINATOR, Role.TARGET):
            # The coordinator is dialed, never let in: only then its word is a command.
            self._close(CloseSession(session, f"a {peer.role.value} has no business here"))
            return
        self.feed(SessionOpened(now_us(), session, peer.role, peer.name, peer.version, peer.lends))

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        if bulk is None:
            self.feed(Received(now_us(), session, request, message))
        else:
            event = Received(now_us(), session, request, message, bulk.view, bulk.sums)
            self.feed(event, bulk)

    def closed(self, session: Session, reason: str) -> None:
        self._unsent.pop(session, None)
        if session == self._coordinator:
            self._coordinator = None
            self.coordinator_log.closed(reason, was_in=self.machine.registered)
        self.feed(SessionClosed(now_us(), session))

    def coordinator_opened(self, session: Session, peer: Established) -> None:
        """Note that the session that was dialed stands."""
        self._coordinator = session
        self.coordinator_log.opened(peer.cluster)
        event = SessionOpened(now_us(), session, Role.COORDINATOR, peer.name, peer.version)
        self.feed(event)

    # ----------------------------------------------------------------------- events and actions

    def _disk_answered(self, event: DiskDone | DiskFailed) -> None:
        if event.op == PROBE_OP:
            assert self._probe is not None
            self._probe.answered(event)
            return
        if isinstance(event, DiskDone) and isinstance(event.data, memoryview):
            self._buffers[event.op] = event.data
        self.feed(event)

    def _took(self, action: DiskAction, took_us: int) -> None:
        if isinstance(action, SyncFile | SyncDirectory):
            self.sync_s.observe(took_us / US_PER_S)

    def feed(self, event: TargetEvent, bulk: Bulk | None = None) -> None:
        """Handle the event, and all that follow from it at once, in order."""
        self._events.append((event, bulk))
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._handle(*self._events.popleft())
        finally:
            self._feeding = False
        if self.machine.resting.stirred_us >= self._ticked_us:
            self._hasten()

    def _handle(self, event: TargetEvent, bulk: Bulk | None) -> None:
        for action in self.machine.handle(event):
            match action:
                case WriteAt():
                    if action.keeps_bulk and bulk is not None:
                        self._bulks[action.op], bulk = bulk, None
                    answer = self._transfers.do(action)
                    if answer is not None:
                        self._events.append((answer, None))
                case ReadAt(at_rest=False) if self._transfers.in_thread:
                    self._transfers.do(action)
                case ReadAt(at_rest=False):
                    if not self._reads:
                        self._loop.call_soon(self._read_some)
                    self._reads.append(action)
                case ReleaseBulk(op=op):
                    self._release(op)
                case Send():
                    self._send(action)
                case LendFile():
                    self._lend(action)
                case CloseSession():
                    self._close(action)
                case Report(level=level, text=text, fields=fields):
                    self._report(level, text, dict(fields))
                case _:
                    self._worker.put(action)
        if bulk is not None:
            bulk.release()

    def _read_some(self) -> None:
        for _ in range(min(READS_PER_TURN, len(self._reads))):
            event = self._transfers.do(self._reads[0])
            self._reads.popleft()
            more = bool(self._reads)
            if event is not None:
                self._disk_answered(event)
            # `feed` schedules the next turn itself when the queue was empty before it.
            if not more:
                return
        if self._reads:
            self._loop.call_soon(self._read_some)

    def _release(self, op: int) -> None:
        bulk = self._bulks.pop(op, None)
        if bulk is not None:
            bulk.release()
        buffer = self._buffers.pop(op, None)
        if buffer is not None:
            self._disk.release(buffer)

    # ----------------------------------------------------------------------- frames

    def _send(self, action: Send) -> None:
        session = action.session
        sent: Callable[[], None] | None = None
        if len(action.bulk):
            self._unsent[session] = self._unsent.get(session, 0) + 1
            sent = lambda: self._sent(session)  # noqa: E731
        peer = self.dialer if session == self._coordinator else self.server
        if peer is None:
            return
        try:
            peer.send(session, action.request, action.message, action.bulk, sent=sent)
        except Refused as error:
            if sent is not None:
                sent()
            self._cannot_send(action, peer, error)

    def _cannot_send(self, action: Send, peer: Server | Dialer, error: Refused) -> None:
        """Who asked hears why, and whoever did not is cut off: it is nobody else's business, and
        what follows in the same event is done.
        """
        session, request = action.session, action.request
        self._report("error", "cannot be sent", {"session": session, "why": error.message})
        if request and not isinstance(action.message, RegisterTarget | RenewLease):
            peer.send(session, request, Failed(error.code, error.message, error.hint))
        else:
            self._close(CloseSession(session, error.message))

    def _lend(self, action: LendFile) -> None:
        """Also to one whose session has just ended: then the file goes nowhere."""
        session, request = action.session, action.request
        assert self.server is not None, "it came from there"
        self._unsent[session] = self._unsent.get(session, 0) + 1
        sent = lambda: self._sent(session)  # noqa: E731
        try:
            descriptor = self._disk.open_to_read(action.file)
        except OSError as error:
            why = f"{action.file} cannot be opened: {error.strerror}"
            self.server.send(session, request, Failed(Unavailable.code, why), sent=sent)
            self._events.append((Received(now_us(), session, request, ReturnColumn(0)), None))
            return
        self.server.send(
            session, request, action.message, action.bulk, sent=sent, descriptor=descriptor
        )

    def _sent(self, session: Session) -> None:
        """A bulk has left, or never will."""
        count = self._unsent.get(session)
        if count is None:
            return
        if count > 1:
            self._unsent[session] = count - 1
            return
        del self._unsent[session]
        self._loop.call_soon(self._drained, session)

    def _drained(self, session: Session) -> None:
        if session not in self._unsent and not self._closing:
            self.feed(SessionDrained(now_us(), session))

    def _close(self, action: CloseSession) -> None:
        dialed = action.session == self._coordinator
        if not dialed:  # The end of that one is logged when it has come.
            self._report("warning", "session closed", {"why": action.reason})
            if self.server is not None:
                self.server.close_session(action.session, action.reason)
        elif self.dialer is not None:
            after_s = (action.retry_after_us or 0) / US_PER_S
            self.dialer.close_session(action.session, action.reason, retry_after_s=after_s)
