"""`ckptd target`: the shell around the target's machine. It decides nothing.

    sockets, disk, ticks --events--> TargetMachine --actions--> frames, disk, log

Writes of fragments and reads are done in the loop: one O_DIRECT write of a fragment is 0.2 ms,
while a hop to a thread costs 20 to 30% end to end. Syncs, names and preallocation, which may take
long, go through one worker thread, in order, so that the loop lives.

Start: lock, identity, scan, listen, ready line, dial. Stop on SIGTERM or SIGINT: leave the
coordinator, close the port, let the disk finish what it was given, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from ckpt.aio import descriptors
from ckpt.aio.channel import Bulk
from ckpt.aio.clock import now_us
from ckpt.aio.dial import Dialer
from ckpt.aio.disk import DirectoryLock, Disk, RealDisk, perform, scan
from ckpt.aio.secret import read_secret
from ckpt.aio.server import Server, serve
from ckpt.aio.slots import SlotPool
from ckpt.aio.socketpath import socket_path
from ckpt.base.errors import Refused
from ckpt.base.ids import BootId, Domain, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.base.units import US_PER_S, MiB
from ckpt.erasure.selftest import self_test
from ckpt.format.messages import Fragment, Message, Role
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
from ckpt.protocol.handshake import Established, Identity
from ckpt.protocol.target.core import TargetIdentity, TargetLimits
from ckpt.protocol.target.disk_events import (
    DiskDone,
    DiskFailed,
    ReadAt,
    ReleaseBulk,
    SessionDrained,
    SpaceMeasured,
    WriteAt,
)
from ckpt.protocol.target.machine import TargetEvent, TargetMachine
from ckptd import config as options
from ckptd import event_loop
from ckptd.directory import close_to_others, make_directory
from ckptd.disk_probe import PROBE_OP, DiskProbe
from ckptd.disk_worker import DiskWorker
from ckptd.door_watch import DoorWatch
from ckptd.exposition import Histogram
from ckptd.fail_stop import FailStop
from ckptd.http_plane import served
from ckptd.log import Reporter, configure, reporter
from ckptd.target_handlers import CoordinatorHandler, Relay
from ckptd.target_identity import TargetFile, adopt_identity, place_of
from ckptd.target_reports import TargetReports

TICK_S: Final = 0.1
SPACE_US: Final = US_PER_S
"""How often the device's free space is measured."""
READS_PER_TURN: Final = 4
"""Disk reads before other events of the loop get their turn."""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """What `ckptd target` is told by TOML, environment or flags."""

    directory: Path
    """What it serves; one directory on one device, made when missing."""
    coordinator: Annotated[str, "HOST:PORT"]
    """Where to register."""
    listen: Annotated[str, "HOST:PORT"] = "127.0.0.1:0"
    """Where stagers and readers come to; port 0 takes a free one."""
    advertise: Annotated[str, "HOST"] = ""
    """The host that others reach it by; empty takes that of listen."""
    id: Annotated[str, "ID"] = ""
    """Its name in the cluster; kept in target.toml, made up at the first start when empty."""
    cluster: Annotated[str, "ID"] = ""
    """The cluster's id; empty takes target.toml's, else the coordinator's."""
    domain: Annotated[str, "POWER/RACK/HOST/DEVICE"] = ""
    """What it fails together with; empty takes this host and the directory's device."""
    capacity_bytes: int | None = None
    """How much of the device it may use."""
    pool_bytes: int = 32 * MiB
    """Memory for fragments that arrive."""
    read_pool_bytes: int = 32 * MiB
    """Memory for blocks that are read; at most three quarters keep what others may want."""
    direct: bool = True
    """Write and read around the page cache where the file system can."""
    unix: bool = True
    """Listen on a Unix socket for stagers of this host, too."""
    http: Annotated[str, "HOST:PORT"] = ""
    """Where to ask for its health and metrics; port 0 takes a free one, empty for none."""
    loop: Annotated[str, "asyncio|uvloop"] = "asyncio"
    """The event loop."""
    log_level: Annotated[str, "info|warning|error"] = "info"
    """The least grave events that are logged."""

    def __post_init__(self) -> None:
        options.host_and_port(self.listen)
        options.host_and_port(self.coordinator)
        if self.http:
            options.host_and_port(self.http)
        if self.domain:
            Domain.parse(self.domain)
        event_loop.check_loop(self.loop)
        if self.pool_bytes < 2 * FRAME_BULK_BYTES_MAX:
            raise Refused(f"pool_bytes is at least {2 * FRAME_BULK_BYTES_MAX}")

    @property
    def limits(self) -> TargetLimits:
        """As the machine wants them. A quarter of the pool stays for manifests and documents."""
        window = min(8 * MiB, self.read_pool_bytes)
        return TargetLimits(
            credit_pool_bytes=self.pool_bytes * 3 // 4,
            read_window_bytes=window,
            read_pool_bytes=self.read_pool_bytes,
            read_keep_bytes=self.read_pool_bytes * 3 // 4,
            capacity_bytes=self.capacity_bytes,
        )


class TargetShell:
    """I turn what happens into events and perform actions. Everything runs on the loop's thread."""

    def __init__(self, machine: TargetMachine, disk: Disk, report: Reporter) -> None:
        self.machine = machine
        self.server: Server | None = None
        self.dialer: Dialer | None = None
        self._disk = disk
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._worker = DiskWorker(disk, self._disk_answered)
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
        self._tick: asyncio.TimerHandle | None = None
        self._measured_us = -SPACE_US
        self._closing = False
        self._door: DoorWatch | None = None

    # ----------------------------------------------------------------------- life

    def start(self) -> None:
        """Learn what the directory holds, and begin to tick."""
        self.feed(scan(self._disk, now_us()))
        self._on_tick()

    def begin_probe(self) -> None:
        """From now on find out whether the device takes writes."""
        self._probe = DiskProbe(self._worker.put)

    def takes_writes(self, now: int) -> bool:
        """Whether the device does; False while nobody has found out."""
        return self._probe is not None and self._probe.takes_writes(now)

    @property
    def sync_s(self) -> Histogram:
        """How long syncs took."""
        return self._worker.sync_s

    async def close(self) -> None:
        """No event comes after this; what the disk was given is done."""
        self._closing = True
        if self._tick is not None:
            self._tick.cancel()
        await self._worker.close()

    def _on_tick(self) -> None:
        if self._closing:
            return
        self._tick = self._loop.call_later(TICK_S, self._on_tick)
        now = now_us()
        if now - self._measured_us >= SPACE_US:
            self._measured_us = now
            self._measure_space()
            self._look_at_door(now)
        if self._probe is not None:
            self._probe.tick(now)
        self.feed(Ticked(now))
        for peer in (self.server, self.dialer):
            if peer is not None:
                peer.epoch = self.machine.epoch

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
            self.feed(SpaceMeasured(now_us(), space.bytes_total, space.bytes_free))

    # ----------------------------------------------------------------------- sessions

    def opened(self, session: Session, peer: Established) -> None:
        """A peer came to our port."""
        if peer.role in (Role.COORDINATOR, Role.TARGET):
            # The coordinator is dialed, never let in: only then its word is a command.
            self._close(CloseSession(session, f"a {peer.role.value} has no business here"))
            return
        self.feed(SessionOpened(now_us(), session, peer.role, peer.name))

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        view = bulk.view if bulk is not None else b""
        self.feed(Received(now_us(), session, request, message, view), bulk)

    def closed(self, session: Session, reason: str) -> None:
        self._unsent.pop(session, None)
        if session == self._coordinator:
            self._coordinator = None
            self._report("warning", "coordinator lost", {"why": reason})
        self.feed(SessionClosed(now_us(), session))

    def coordinator_opened(self, session: Session, peer: Established) -> None:
        """The dialed session stands."""
        self._coordinator = session
        self._report("info", "coordinator reached", {"cluster": peer.cluster})
        self.feed(SessionOpened(now_us(), session, Role.COORDINATOR, peer.name))

    # ----------------------------------------------------------------------- events and actions

    def _disk_answered(self, event: DiskDone | DiskFailed) -> None:
        if event.op == PROBE_OP:
            assert self._probe is not None
            self._probe.answered(event)
        else:
            self.feed(event)

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

    def _handle(self, event: TargetEvent, bulk: Bulk | None) -> None:
        for action in self.machine.handle(event):
            match action:
                case WriteAt():
                    if action.keeps_bulk and bulk is not None:
                        self._bulks[action.op], bulk = bulk, None
                    self._events.append((perform(self._disk, action, now_us()), None))
                case ReadAt():
                    if not self._reads:
                        self._loop.call_soon(self._read_some)
                    self._reads.append(action)
                case ReleaseBulk(op=op):
                    self._release(op)
                case Send():
                    self._send(action)
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
            action = self._reads[0]
            event = perform(self._disk, action, now_us())
            self._reads.popleft()
            if isinstance(event, DiskDone):
                assert isinstance(event.data, memoryview)
                self._buffers[action.op] = event.data
            more = bool(self._reads)
            self.feed(event)
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
        if peer is not None:
            peer.send(session, action.request, action.message, action.bulk, sent=sent)

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
        self._report("warning", "session closed", {"why": action.reason})
        peer = self.dialer if action.session == self._coordinator else self.server
        if peer is not None:
            peer.close_session(action.session, action.reason)


# --------------------------------------------------------------------------- the process


def main(argv: Sequence[str]) -> int:
    """`ckptd target …`; returns the exit code, raises CkptError for what it cannot start with."""
    loaded = options.load(
        TargetConfig,
        program="target",
        description="Serve one storage device or directory to a ckpt cluster.",
        example="ckptd target --directory /mnt/nvme0/ckpt --coordinator 10.0.0.1:7070",
        argv=argv,
    )
    configure(loaded.config.log_level)
    secret = read_secret(loaded.secret_file)
    self_test()
    event_loop.run(run_target(loaded.config, secret), loaded.config.loop)
    return 0


async def run_target(config: TargetConfig, secret: bytes) -> None:
    """Serve until SIGTERM or SIGINT."""
    report = reporter("ckptd.target")
    report("info", "starting", {k: str(v) for k, v in options.as_text(config).items()})
    make_directory(config.directory)
    close_to_others(config.directory, report)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    defects = FailStop(loop, report, stop.set)
    lock = DirectoryLock(config.directory)
    disk = RealDisk(config.directory, direct=config.direct, pool_bytes=config.read_pool_bytes)
    reports = TargetReports(disk, stop)
    plane = served(config.http, reports, answers=None, secret=secret, directory=config.directory)
    try:
        # Before it has a cluster: that it lives must depend on nobody else.
        async with plane as http:
            if http:
                report("info", "http", {"http": http})
            identity = await adopt_identity(
                config.directory, config.id, config.cluster, config.coordinator, secret, stop,
                report,
            )  # fmt: skip
            if identity is not None:
                await _serve(config, identity, disk, secret, stop, report, reports, http)
    finally:
        disk.close()
        lock.close()
    defects.check()
    report("info", "stopped", {})


async def _serve(
    config: TargetConfig, known: TargetFile, disk: RealDisk, secret: bytes, stop: asyncio.Event,
    report: Reporter, reports: TargetReports, http: str,
) -> None:  # fmt: skip
    boot = BootId(secrets.randbits(64) | 1)
    pool = SlotPool(config.pool_bytes)
    unix = socket_path(config.directory, "socket") if config.unix else None
    domain = config.domain or _domain_of(config.directory)
    host, port = options.host_and_port(config.listen)
    # The machine presents an address that is known only when the port is: listen first, then begin.
    relay = Relay()
    server = serve(
        relay, listen=(host, port), unix=unix, secret=secret, pool=pool,
        identity=Identity(known.cluster, Role.TARGET, known.target, boot),
        unchecked=frozenset({Fragment}), borrows=True,
    )  # fmt: skip
    address = f"{_reachable(config.advertise or host)}:{server.port}"
    machine = TargetMachine(
        TargetIdentity(
            known.cluster, TargetId(known.target), boot, domain, address, unix or "",
            str(config.directory.absolute()), os.getpid(), known.incarnation,
            place_of(config.directory),
        ),
        secret, config.limits,
    )  # fmt: skip
    shell = relay.shell = TargetShell(machine, disk, report)
    shell.server = server
    coordinator = CoordinatorHandler(shell, report, stop.set)
    shell.dialer = dialer = Dialer(
        coordinator, address=config.coordinator, secret=secret, role=Role.TARGET,
        name=known.target, cluster=known.cluster, on_failure=coordinator.failed,
    )  # fmt: skip
    try:
        shell.start()
        if http:
            reports.begin(shell, server, pool)
        dialer.start()
        gc.freeze()
        ready: dict[str, object] = {"ready": "target", "target": known.target, "address": address}
        ready |= {"unix": unix or "", "pid": os.getpid(), "boot": f"{boot:016x}"}
        ready |= {"cluster": known.cluster, "directory": str(config.directory)}
        ready |= {"http": http} if http else {}
        line = json.dumps(ready)
        os.write(sys.stdout.fileno(), line.encode() + b"\n")
        report("info", "ready", {"address": address, "columns": machine.column_count})
        await stop.wait()
        coordinator.check()
    finally:
        await dialer.close()
        await server.close()
        await shell.close()
        if unix is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unix)


def _domain_of(directory: Path) -> str:
    """This host, and the device by number."""
    device = os.stat(directory).st_dev
    return f"power/rack/{socket.gethostname()}/{os.major(device)}:{os.minor(device)}"


def _reachable(host: str) -> str:
    """A wildcard is no address: others reach this host by its name."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
