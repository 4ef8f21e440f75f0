"""`ckptd coordinator`: the shell around the coordinator's machine. It decides nothing.

    sessions, ticks, tickets --events--> CoordinatorMachine --actions--> frames, catalog, log

Start: lock and load the catalog, begin a term (durable before the port is open), recover, listen,
print one ready line. Stop on SIGTERM or SIGINT: close the port, write what waits, free the lock.
An error of the catalog stops the process: a restart loads what the disk really holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, cast, get_args

from msgspec.structs import replace

from ckpt.aio.catalog import Catalog
from ckpt.aio.clock import now_us
from ckpt.aio.net.bulk import Bulk, BulkRules
from ckpt.aio.net.server import Server, serve
from ckpt.aio.net.server_limits import Pressure
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.aio.secret import read_secret
from ckpt.aio.slots import SlotPool
from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.base.ids import BootId, CheckpointId, RunName, Step
from ckpt.base.limits import (
    BLOCK_BYTES,
    CELL_BYTES_DEFAULT,
    CELL_BYTES_MAX,
    STANDSTILL_US,
)
from ckpt.base.units import US_PER_S, MiB
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed, Role
from ckpt.plan.placement import Level
from ckpt.protocol.coordinator import catalog as entries
from ckpt.protocol.coordinator.catalog import Persist, Persisted
from ckpt.protocol.coordinator.desk import Action
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy, Event
from ckpt.protocol.coordinator.policy import FillMarks, Watermarks
from ckpt.protocol.coordinator.reading.answers import Check, CoordinatorView
from ckpt.protocol.coordinator.reading.checks import connections_full
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Report,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    StoodStill,
    Ticked,
)
from ckpt.protocol.handshake import Established, Identity
from ckpt.protocol.target.term import PROCESS_BYTES
from ckptd import config as options
from ckptd import event_loop
from ckptd.catalog.backup import backup_path
from ckptd.catalog.etcd.url import parse_etcd_url
from ckptd.catalog.file import mending_command
from ckptd.catalog.opening import open_catalog
from ckptd.coordinator.metrics import CommitStatistics, coordinator_families
from ckptd.directory import close_to_others, make_directory
from ckptd.door_watch import DoorWatch
from ckptd.fail_stop import FailStop
from ckptd.http.exposition import render
from ckptd.http.plane import served
from ckptd.log import Reporter, configure, reporter

TICK_S: Final = 0.05
SLOT_BYTES: Final = 64 * MiB
"""For bulks of requests (tables); what does not fit waits in the sender."""
CLOSE_LINGER_S: Final = 1.0

BACKUP: Final = "backup"
"""The question that this shell answers itself: the machine has no catalog file."""

CLIENT_ROLES: Final = (Role.STAGER, Role.READER, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Options of `ckptd coordinator`, from TOML, environment or flags."""

    directory: Path
    """Where the catalog, its lock and the metrics token lie."""
    catalog: Annotated[str, "URL"] = ""
    """etcd://H:P[,H:P...]/PREFIX?ca=&cert=&key=&user=&password_file=&insecure=1 for a catalog in
    that etcd; empty for SQLite in the directory."""
    listen: Annotated[str, "HOST:PORT"] = "127.0.0.1:7070"
    """Where targets and clients come to; port 0 takes a free one."""
    http: Annotated[str, "HOST:PORT"] = ""
    """Where the page and metrics are, and tools ask; empty for none."""
    cluster: Annotated[str, "ID"] = ""
    """The cluster's id; empty takes the catalog's, or a new one for a new catalog."""
    code: Annotated[str, "K+M"] = "4+2"
    """Erasure code of new saves."""
    cell_bytes: int = CELL_BYTES_DEFAULT
    """Size of one fragment of new saves."""
    level: Annotated[str, "target|device|host|rack|power"] = "host"
    """What the columns of a payload are spread over."""
    max_per_domain: Annotated[int, "COLUMNS"] = 1
    """Columns of a payload in one domain of that level."""
    spare_count: Annotated[int, "TARGETS"] = 1
    """Spares that a plan names for each payload."""
    orphan_grace_s: int = 60
    """So long after a restart, streams may still use space that the coordinator before gave out."""
    keep: Annotated[int, "STEPS"] = 0
    """Newest committed steps of a run to keep; 0 keeps all."""
    evict_above_percent: int = 85
    """Of the fullest device's space: above it what was drained is evicted, oldest first; 100 never
    does by itself."""
    evict_below_percent: int = 70
    """It evicts down to this."""
    nearfull_percent: int = 85
    """TARGET_NEARFULL stands while columns and other files hold so much of a device, less its
    reserve."""
    full_percent: int = 95
    """TARGET_FULL, likewise."""
    wire: Annotated[str, "auto|mac|plain"] = "auto"
    """Bulks over TCP have a tag, so that nobody on the way can change them: auto, from and to other
    hosts; mac, all; plain, none, where the network is trusted."""
    log_level: Annotated[str, "info|warning|error"] = "info"
    """The least grave events that are logged."""

    def __post_init__(self) -> None:
        if self.catalog:
            parse_etcd_url(self.catalog)
        Code.parse(self.code)
        options.host_and_port(self.listen)
        WirePolicy.parse(self.wire)
        if self.http:
            options.host_and_port(self.http)
        if self.level not in get_args(Level):
            raise Refused(f"level {self.level!r}: one of {', '.join(get_args(Level))}")
        if self.cell_bytes % BLOCK_BYTES or not BLOCK_BYTES <= self.cell_bytes <= CELL_BYTES_MAX:
            raise Refused(f"cell_bytes {self.cell_bytes}: a multiple of {BLOCK_BYTES}")
        if self.max_per_domain < 1:
            raise Refused("max_per_domain is at least 1")
        if min(self.spare_count, self.orphan_grace_s, self.keep) < 0:
            raise Refused("spare_count, orphan_grace_s and keep are at least 0")
        if not 0 <= self.evict_below_percent <= self.evict_above_percent <= 100:
            raise Refused("0 <= evict_below_percent <= evict_above_percent <= 100")
        if not 0 < self.nearfull_percent <= self.full_percent <= 100:
            raise Refused("0 < nearfull_percent <= full_percent <= 100")

    def policy(self, cluster: str) -> CoordinatorPolicy:
        """As the machine wants it."""
        return CoordinatorPolicy(
            cluster=cluster,
            code=Code.parse(self.code),
            cell_bytes=self.cell_bytes,
            level=cast(Level, self.level),
            max_per_domain=self.max_per_domain,
            spare_count=self.spare_count,
            orphan_grace_us=self.orphan_grace_s * US_PER_S,
            keep=self.keep or None,
            watermarks=Watermarks(self.evict_below_percent / 100, self.evict_above_percent / 100),
            fill=FillMarks(self.nearfull_percent / 100, self.full_percent / 100),
            mend=mending_command(self.directory, "{targets}"),
        )


def main(argv: Sequence[str]) -> int:
    """`ckptd coordinator …`; returns the exit code, raises CkptError for what ended it."""
    loaded = options.load(
        CoordinatorConfig,
        program="coordinator",
        description="Plan saves, commit checkpoints, keep the catalog of a ckpt cluster.",
        example="ckptd coordinator --directory /var/lib/ckpt --listen 10.0.0.1:7070 --code 4+2",
        argv=argv,
    )
    configure(loaded.config.log_level)
    secret = read_secret(loaded.secret_file)
    event_loop.run(run_coordinator(loaded.config, secret))
    return 0


async def run_coordinator(config: CoordinatorConfig, secret: bytes) -> None:
    """Serve until SIGTERM or SIGINT. Raises why it had to stop otherwise, or could not start."""
    report = reporter("ckptd.coordinator.daemon")
    report("info", "starting", {k: str(v) for k, v in options.as_text(config).items()})
    make_directory(config.directory)
    close_to_others(config.directory, report)
    catalog = await open_catalog(
        config.directory, config.cluster or None, secrets.token_hex(8), url=config.catalog
    )
    catalog.image.process = secrets.token_bytes(PROCESS_BYTES)
    try:
        policy = config.policy(catalog.cluster)
        shell = CoordinatorShell(policy, catalog, config.directory, secret, report)
        defects = FailStop(asyncio.get_running_loop(), report, shell.stopped.set)
        await _serve(config, shell, catalog, secret)
    finally:
        await catalog.close()
    defects.check()
    if shell.failure is not None:
        raise shell.failure
    report("info", "stopped", {})


async def _serve(
    config: CoordinatorConfig, shell: CoordinatorShell, catalog: Catalog, secret: bytes
) -> None:
    boot = BootId(secrets.randbits(64) | 1)
    identity = Identity(catalog.cluster, Role.COORDINATOR, "", boot, shell.machine.members.epoch)
    host, port = options.host_and_port(config.listen)
    pool = SlotPool(SLOT_BYTES)
    server = serve(
        shell, listen=(host, port), unix=None, secret=secret, identity=identity, pool=pool,
        bulks=BulkRules(wire=WirePolicy.parse(config.wire)),
    )  # fmt: skip
    plane = served(config.http, shell, answers=shell, secret=secret, directory=config.directory)
    try:
        catalog.start(shell.durable, shell.failed)
        view = CoordinatorView(f"{host}:{server.port}", os.getpid(), wire=config.wire)
        shell.machine.views.coordinator = view
        shell.begin(server)
        ready = {"ready": "coordinator", "address": f"{host}:{server.port}", "pid": os.getpid()}
        ready |= {"cluster": catalog.cluster, "boot": f"{boot:016x}", "term": catalog.image.term}
        async with plane as http:
            shell.machine.views.coordinator = replace(view, http=http)
            ready |= {"http": http} if http else {}
            os.write(sys.stdout.fileno(), json.dumps(ready).encode() + b"\n")
            await shell.run()
    finally:
        await server.close(linger_s=CLOSE_LINGER_S)


class CoordinatorShell:
    """I perform the machine's actions in order, one event at a time, on the loop's thread.

    `stopped` is set when the daemon should end; `failure` says why, None for a clean stop.
    """

    def __init__(
        self, policy: CoordinatorPolicy, catalog: Catalog, directory: Path, secret: bytes,
        report: Reporter,
    ) -> None:  # fmt: skip
        self.machine = CoordinatorMachine(policy, catalog.image, secret=secret, wall_s=time.time)
        self.stopped = asyncio.Event()
        self.failure: CkptError | None = None
        self._server: Server | None = None
        self._door: DoorWatch | None = None
        self._catalog = catalog
        self._directory = directory
        self._report = report
        self._loop = asyncio.get_running_loop()
        #: Events that came while another was handled; a send may end a session.
        self._events: deque[Event] = deque()
        self._handling = False
        #: Role of every authenticated peer.
        self._roles: dict[Session, Role] = {}
        self._idle_since_us = self._ticked_us = now_us()
        #: Tickets that the catalog has not made durable yet, with the checkpoints that they commit.
        self._tickets: dict[int, list[CheckpointId]] = {}
        self._statistics = CommitStatistics()

    def begin(self, server: Server) -> None:
        """Take the server; what a restart has to do happens now."""
        self._server = server
        self._door = DoorWatch(server, self._report)
        self.machine.views.own_checks = self._own_checks
        self.tick()

    async def run(self) -> None:
        """Tick until `stopped`, which SIGTERM and SIGINT set."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stopped.set)
        while not self.stopped.is_set():
            self.tick()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self.stopped.wait()

    # ----------------------------------------------------------------------- sessions

    def opened(self, session: Session, peer: Established) -> None:
        self._roles[session] = peer.role
        self.feed(SessionOpened(now_us(), session, peer.role, peer.name))

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        if isinstance(message, Ask) and message.what == BACKUP:
            self._back_up(session, request)
            return
        content = b"" if bulk is None else bulk.view
        if self._handling:
            content = bytes(content)  # It is handled later, when the slot may be another's.
        self.feed(Received(now_us(), session, request, message, content))
        if bulk is not None:
            bulk.release()

    def closed(self, session: Session, reason: str) -> None:
        role = self._roles.pop(session)
        if role in CLIENT_ROLES and not self.client_count:
            self._idle_since_us = now_us()
        fields = {"session": session, "role": role.value, "reason": reason}
        self._report("info", "session closed", fields)
        self.feed(SessionClosed(now_us(), session))

    @property
    def client_count(self) -> int:
        """Sessions of trainers, readers and tools."""
        return sum(role in CLIENT_ROLES for role in self._roles.values())

    # ----------------------------------------------------------------------- the machine

    def feed(self, event: Event) -> None:
        """Handle one event, and those that its actions cause, in order."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for action in self.machine.handle(self._events.popleft()):
                    self._perform(action)
        finally:
            self._handling = False
        assert self._server is not None
        self._server.epoch = self.machine.members.epoch

    def tick(self) -> None:
        """Time passes; where it leapt, this process was stopped, or its loop was."""
        last_us, self._ticked_us = self._ticked_us, now_us()
        gap_us = self._ticked_us - last_us
        if gap_us >= STANDSTILL_US:
            self._report("warning", "the coordinator stood still", {"for_s": gap_us / US_PER_S})
            self.feed(StoodStill(self._ticked_us, gap_us))
        self.feed(Ticked(self._ticked_us))
        assert self._door is not None
        self._door.look(self._ticked_us)

    def durable(self, ticket: int) -> None:
        """Called from any thread, by the catalog."""
        self._loop.call_soon_threadsafe(self._persisted, ticket)

    def failed(self, error: CkptError) -> None:
        """Called from any thread, by the catalog."""
        self._loop.call_soon_threadsafe(self._stop_for, error)

    def _persisted(self, ticket: int) -> None:
        if self.stopped.is_set():
            return  # The peers are gone; the next start finds it.
        committed = self._tickets.pop(ticket)
        self.feed(Persisted(now_us(), ticket))
        for id in committed:
            checkpoint = self.machine.checkpoints.get(id)
            if checkpoint is not None:
                self._statistics.committed(checkpoint.info)

    def _perform(self, action: Action) -> None:
        assert self._server is not None
        match action:
            case Send():
                self._server.send(action.session, action.request, action.message, action.bulk)
            case CloseSession():
                self._server.close_session(action.session, action.reason)
            case Report():
                self._report(action.level, action.text, dict(action.fields))
            case Persist():
                self._persist(action)

    def _persist(self, action: Persist) -> None:
        self._tickets[action.ticket] = [
            entry.checkpoint for entry in action.entries if isinstance(entry, entries.RowCommitted)
        ]
        self._statistics.aborted_count += sum(
            isinstance(entry, entries.RowAborted) for entry in action.entries
        )
        try:
            self._catalog.submit(action)
        except CkptError as error:
            self._stop_for(error)

    def _back_up(self, session: Session, request: int) -> None:
        """Copy the catalog, once its targets vouch for it; the answer says where the copy is."""
        position = self.machine.vouching.position
        problem = self.machine.vouching.problem()
        if problem is not None or position is None:
            self._fail(session, request, problem or Unavailable("the catalog has no entry yet"))
            return
        path = backup_path(self._directory, position).absolute()

        def answer(failure: CkptError | None) -> None:
            if self.stopped.is_set() or self._server is None:
                return
            if failure is not None:
                self._fail(session, request, failure)
                return
            size, cluster = path.stat().st_size, self._catalog.cluster
            told = {"path": str(path), "cluster": cluster, "bytes": size}
            self._server.send(session, request, Answer(), json.dumps(told).encode())

        def copied(failure: CkptError | None) -> None:
            self._loop.call_soon_threadsafe(answer, failure)

        try:
            self._catalog.copy_to(path, copied)
        except CkptError as error:
            self._fail(session, request, error)

    def _fail(self, session: Session, request: int, error: CkptError) -> None:
        assert self._server is not None
        self._server.send(session, request, Failed(error.code, error.message, error.hint))

    def _stop_for(self, error: CkptError) -> None:
        self.failure = self.failure or error
        self.stopped.set()

    # ----------------------------------------------------------------------- reports

    def answer(self, what: str, run: RunName | None, step: Step | None) -> bytes:
        """JSON; `sessions` is this shell's own, all else the machine's."""
        if what != "sessions":
            return self.machine.views.answer(what, run, step)
        idle_s = 0.0 if self.client_count else (now_us() - self._idle_since_us) / US_PER_S
        members, catalog = self.machine.members, self.machine.vouching.standing.value
        live = [target.id for target in members.live()]
        refused = [claim.target for claim in members.claims() if claim.replaces]
        told = {"clients": self.client_count, "idle_s": idle_s, "live": live, "refused": refused}
        return json.dumps({**told, "catalog": catalog}).encode()

    def _own_checks(self) -> tuple[Check, ...]:
        need = "" if self._server is None else self._server.need()
        text = f"the coordinator {need}"
        return (connections_full(text, os.getpid()),) if need else ()

    def metrics(self) -> str:
        """Prometheus text."""
        families = coordinator_families(
            version=version("ckpt-burst"),
            machine=self.machine,
            stores=self.machine.views.stores(),
            statistics=self._statistics,
            sessions=Counter(self._roles.values()),
            tickets_waiting=len(self._tickets),
            pressure=self._server.pressure() if self._server is not None else Pressure(),
        )
        return render(families)

    def is_ready(self) -> bool:
        """The catalog takes entries and its targets vouch for it."""
        return self.failure is None and self.machine.vouching.serves
