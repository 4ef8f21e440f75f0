"""`ckptd target`: a process that serves one directory, around a TargetShell.

Start: lock, identity, scan, listen, ready line, dial. Stop on SIGTERM or SIGINT: leave the
coordinator, close the port, let the disk finish what it was given, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from ckpt.aio.disk import RealDisk
from ckpt.aio.net.address import TcpAddress, parse_addresses
from ckpt.aio.net.bulk import BulkRules
from ckpt.aio.net.dial import Dialer
from ckpt.aio.net.serving.server import serve
from ckpt.aio.net.socketpath import socket_path
from ckpt.aio.net.wire_policy import WirePolicy, is_loopback
from ckpt.aio.secret import read_secret
from ckpt.aio.slots import SlotPool
from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import BootId, Domain, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, READ_BYTES, SCRUB_PERCENT
from ckpt.base.units import US_PER_S, MiB
from ckpt.erasure.selftest import self_test_once
from ckpt.format.messages.hello import Role
from ckpt.format.messages.writing import Fragment
from ckpt.protocol.handshake import Caller, Identity
from ckpt.protocol.target.core import TargetIdentity, TargetLimits
from ckpt.protocol.target.machine import TargetMachine
from ckptd import config as options
from ckptd import event_loop
from ckptd.directory import check_owner, close_to_others, make_directory
from ckptd.fail_stop import FailStop
from ckptd.http.plane import served
from ckptd.log import Reporter, configure, reporter, write_ready_line
from ckptd.target.access import check_access
from ckptd.target.directory_lock import DirectoryLock
from ckptd.target.directory_watch import DirectoryWatch
from ckptd.target.handlers import CoordinatorHandler, Relay
from ckptd.target.identity import TargetFile, adopt_identity, place_of
from ckptd.target.reports import TargetReports
from ckptd.target.shell import TargetShell

READ_POOL_BYTES_MIN: Final = 2 * MiB
"""A smaller pool gives less at once than a read's frame is worth."""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Options of `ckptd target`, from TOML, environment or flags."""

    directory: Path
    """What it serves: one directory on one device, made when missing."""
    coordinator: Annotated[str, "HOST:PORT[,HOST:PORT...]"]
    """The cluster's coordinators; it registers with the one that leads."""
    listen: Annotated[str, "HOST:PORT"] = "127.0.0.1:0"
    """Where stagers and readers connect; port 0 takes a free one."""
    advertise: Annotated[str, "HOST"] = ""
    """The host that others reach it by; empty takes that of listen."""
    id: Annotated[str, "ID"] = ""
    """Its name in the cluster; kept in target.toml, made up at the first start when empty."""
    cluster: Annotated[str, "ID"] = ""
    """The cluster's id; empty takes target.toml's, else the coordinator's."""
    domain: Annotated[str, "POWER/RACK/HOST/DEVICE"] = ""
    """The failure domain it belongs to; empty takes this host and the directory's device."""
    capacity_bytes: int | None = None
    """How much of the device it may use; all when not given."""
    pool_bytes: int = 64 * MiB
    """Memory for fragments that arrive; taken at the start if other hosts than this one send."""
    read_pool_bytes: int = 32 * MiB
    """Memory for what is read and not sent. A crowd of readers of any size may take a quarter more,
    and three quarters more keep blocks that others may want.
    """
    scrub: bool = True
    """Scrub: read all that it keeps again and again, without the page cache, to find rot before a
    reader does.
    """
    scrub_period_s: float = 7 * 86_400.0
    """Scrub everything at least this often, and new files for the first time within a seventh of
    it.
    """
    scrub_percent: int = SCRUB_PERCENT
    """Most of the device's time that the scrub may take, as a share, and only while no column is
    written or read.
    """
    direct: bool = True
    """Bypass the page cache if the file system can."""
    unix: bool = True
    """Listen on a Unix socket as well, for stagers of this host."""
    http: Annotated[str, "HOST:PORT"] = ""
    """Where it serves health and metrics; port 0 takes a free one, empty for none."""
    wire: Annotated[str, "auto|mac|encrypt|plain"] = "auto"
    """Protection of what is said over TCP: auto, a tag on bulks from and to other hosts, so that
    nobody on the way can change them; mac, a tag on all bulks; encrypt, everything is encrypted, so
    that nobody can read it; plain, no tags, where the network is trusted.
    """
    log_level: Annotated[str, "info|warning|error"] = "info"
    """Log events of this severity and above."""

    def __post_init__(self) -> None:
        options.host_and_port(self.listen)
        parse_addresses(self.coordinator)
        if self.http:
            options.host_and_port(self.http)
        if self.domain:
            Domain.parse(self.domain)
        WirePolicy.parse(self.wire)
        if self.pool_bytes < 2 * FRAME_BULK_BYTES_MAX:
            raise Refused(f"pool_bytes is at least {2 * FRAME_BULK_BYTES_MAX}")
        if self.read_pool_bytes < READ_POOL_BYTES_MIN:
            raise Refused(f"read_pool_bytes is at least {READ_POOL_BYTES_MIN}")
        if not (self.scrub_period_s > 0 and 1 <= self.scrub_percent <= 100):
            raise Refused("scrub_period_s is more than 0, scrub_percent 1 to 100")

    @property
    def is_alone(self) -> bool:
        """Whether other hosts reach its coordinators by their addresses, and not this target."""
        host = self.advertise or options.host_and_port(self.listen)[0]
        hosts = [
            one.host for one in parse_addresses(self.coordinator) if isinstance(one, TcpAddress)
        ]
        return is_loopback(host) and bool(hosts) and not any(map(is_loopback, hosts))

    @property
    def limits(self) -> TargetLimits:
        """As the machine wants them. A quarter of the pool stays for manifests and documents."""
        window = min(8 * MiB, self.read_pool_bytes)
        return TargetLimits(
            credit_pool_bytes=self.pool_bytes * 3 // 4,
            read_piece_bytes=min(READ_BYTES, window),
            read_window_bytes=window,
            read_pool_bytes=self.read_pool_bytes,
            read_crowd_bytes=self.read_pool_bytes // 4,
            read_keep_bytes=self.read_pool_bytes * 3 // 4,
            capacity_bytes=self.capacity_bytes,
            scrub_period_us=int(self.scrub_period_s * US_PER_S) if self.scrub else None,
            scrub_percent=self.scrub_percent,
        )


# --------------------------------------------------------------------------- the process


def main(argv: Sequence[str]) -> int:
    """`ckptd target …`; returns the exit code, raises CkptError for what it cannot start with."""
    loaded = options.load(
        TargetConfig,
        program="target",
        description="Serve one storage device or directory to a ckpt cluster.",
        example="ckptd target --id n2 --directory /mnt/nvme0 --coordinator 10.0.0.1:7070"
        " --listen 10.0.0.2:7071",
        argv=argv,
    )
    configure(loaded.config.log_level)
    secret = read_secret(loaded.secret_file)
    self_test_once()
    event_loop.run(run_target(loaded.config, secret))
    return 0


async def run_target(config: TargetConfig, secret: bytes) -> None:
    """Serve until SIGTERM or SIGINT."""
    report = reporter("ckptd.target.daemon")
    report("info", "starting", {k: str(v) for k, v in options.as_text(config).items()})
    if config.is_alone:
        why = {"listen": config.listen, "option": "--listen HOST:PORT"}
        report("warning", "other hosts do not reach this target", why)
    make_directory(config.directory)
    check_owner(config.directory)
    check_access(config.directory)
    close_to_others(config.directory, report)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    defects = FailStop(loop, report, stop.set)
    lock = DirectoryLock(config.directory)
    watch = DirectoryWatch(lock, config.directory, report, stop.set)
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
                watch.start()
                await _serve(config, identity, disk, secret, stop, report, reports, http, watch)
    finally:
        watch.close()
        disk.close()
        lock.close()
    defects.check()
    watch.check()
    report("info", "stopped", {})


def _unix_of(config: TargetConfig, report: Reporter) -> str | None:
    """The socket for clients of this host, who otherwise come over TCP as all do."""
    if not config.unix:
        return None
    try:
        return socket_path(config.directory, "socket")
    except CkptError as error:
        report("warning", "clients of this host come over TCP", {"why": str(error)})
        return None


async def _serve(
    config: TargetConfig, known: TargetFile, disk: RealDisk, secret: bytes, stop: asyncio.Event,
    report: Reporter, reports: TargetReports, http: str, watch: DirectoryWatch,
) -> None:  # fmt: skip
    boot = BootId(secrets.randbits(64) | 1)
    # Stagers of this host lend their memory: where no others come the pool is hardly used.
    lends = config.unix and is_loopback(options.host_and_port(config.listen)[0])
    pool = SlotPool(config.pool_bytes, ahead=not lends)
    unix = _unix_of(config, report)
    domain = config.domain or _domain_of(config.directory)
    host, port = options.host_and_port(config.listen)
    # The machine presents an address that is known only when the port is: listen first, then begin.
    relay = Relay()
    server = serve(
        relay, listen=(host, port), unix=unix, secret=secret, pool=pool,
        identity=Identity(known.cluster, Role.TARGET, known.target, boot),
        bulks=BulkRules(
            frozenset({Fragment}), borrows=True, lends=True, wire=WirePolicy.parse(config.wire)
        ),
    )  # fmt: skip
    address = str(TcpAddress(_reachable(config.advertise or host), server.port))
    machine = TargetMachine(
        TargetIdentity(
            known.cluster, TargetId(known.target), boot, domain, address, unix or "",
            str(config.directory.absolute()), os.getpid(), known.incarnation,
            place_of(config.directory), config.wire,
        ),
        secret, config.limits,
    )  # fmt: skip
    shell = relay.shell = TargetShell(machine, disk, report)
    shell.server = server
    watch.ask(lambda: machine.is_device_dead)
    coordinator = CoordinatorHandler(shell, stop.set)
    caller = Caller(secret, Role.TARGET, known.target, cluster=known.cluster)
    shell.dialer = dialer = Dialer(
        coordinator, caller, address=config.coordinator, on_failure=coordinator.failed
    )
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
        write_ready_line(ready)
        report("info", "ready", {"address": address, "columns": machine.column_count})
        await stop.wait()
        coordinator.check()
    finally:
        await dialer.close()
        await server.close()
        await shell.close()
        if unix is not None:
            with contextlib.suppress(OSError):
                os.unlink(unix)


def _domain_of(directory: Path) -> str:
    """This host, and the device by number."""
    device = os.stat(directory).st_dev
    return f"power/rack/{socket.gethostname()}/{os.major(device)}:{os.minor(device)}"


def _reachable(host: str) -> str:
    """A wildcard is no address: others reach this host by its name."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
