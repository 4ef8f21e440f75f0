"""`ckptd local DIR`: a whole cluster of one machine under one process.

    DIR/cluster.toml      what it was made as                 DIR/secret           0600
    DIR/supervisor.lock   held by this process, and through it by every child: whoever gets it knows
                          that nothing of an earlier supervisor runs any more; holds its pid
    DIR/ready.json        only while it serves: address, http, pid, cluster, boot, targets
    DIR/lock              whoever opens the store holds it until connected; so does an idle stop
    DIR/logs/*.log        stderr of each child               DIR/targets/t0 ..    their directories
                          and those that were added (ckpt/aio/local_targets.py), started at once
    DIR/catalog.sqlite, coordinator.lock, metrics.token      the coordinator's
    DIR/drain.toml        options of `ckptd drain`, which then also runs here (docs/drain.md)
    DIR/repair.toml       likewise of `ckptd repair`, which runs here once columns are to be made
                          again, with this file or without (docs/repair.md)
    DIR/coordinator.toml  options of `ckptd coordinator` that DIR does not fix, such as watermarks

Life: LOCKED -> coordinator ready -> each target ready, or given up -> READY (ready.json) -> STOPPED
on SIGTERM, SIGINT, SIGHUP; one that an open has started also after `linger_s` without a client: a
service stays until somebody ends it. The coordinator is always started again, on the same port; a
target unless `restart=never` or while `targets/<id>/held` or `targets/<id>.removed` exists.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from ckpt.aio.disk import leads_to
from ckpt.aio.durable import is_there, write_aside
from ckpt.aio.local_targets import target_ids
from ckpt.aio.net.reaching import check_loopback
from ckpt.aio.secret import find_secret_file, make_secret, read_secret
from ckpt.base.errors import CkptError, Refused
from ckpt.erasure.code import Code
from ckpt.erasure.selftest import self_test_once
from ckpt.native.version import release
from ckptd import cli
from ckptd import config as options
from ckptd.directory import check_no_target, check_owner, close_to_others, make_directory
from ckptd.http.client import HttpAsker
from ckptd.local.children import Child, ChildState, JsonObject, Supervisor
from ckptd.local.cluster_file import (
    ClusterFile,
    ClusterOptions,
    load_or_create,
)
from ckptd.local.directory_lock import LOCK_NAME, lock_directory
from ckptd.local.last_words import why_it_ended
from ckptd.local.plans import COORDINATOR, DRAIN, REPAIR, TARGET, ChildPlans
from ckptd.local.stop_signals import StopSignals
from ckptd.log import Reporter, configure, reporter, write_ready_line

READY_NAME: Final = "ready.json"
OPEN_LOCK_NAME: Final = "lock"

JOIN_WAIT_S: Final = 15.0
"""For started targets to be live in the coordinator's map before ready.json is written."""
JOIN_LAST_S: Final = 45.0
"""The same while a save would miss columns: a busy machine needs long to start seven processes,
and a cluster without targets is of no use. Less than an opener waits."""
JOIN_POLL_S: Final = 0.05
IDLE_POLL_S: Final = 1.0
CATALOG_OLD: Final = "old"
"""What the coordinator's `/v1/sessions` says of a catalog that it does not serve."""


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """What `ckptd local DIR` is given. All but `directory`, `ends_idle` and `log_level` count only
    when DIR is made.
    """

    directory: Path
    """The cluster's directory; may be given as the first word, without --directory."""
    targets: Annotated[int | None, "TARGETS"] = None
    """How many; 7 by default."""
    code: Annotated[str, "K+M"] = ""
    """Erasure code; by default 4+2 from 6 targets, 2+1 from 3, 1+1 from 2, 1+0 from one."""
    keep: Annotated[int | None, "STEPS"] = None
    """Newest committed steps of a run to keep; 0 keeps all."""
    restart: Annotated[str, "always|never"] = ""
    """Whether to restart targets that have exited; always by default."""
    linger_s: float = -1.0
    """End after so many seconds without a client. Not given: 300, in a cluster that an open of DIR
    starts, and never otherwise."""
    ends_idle: bool = False
    """End after the linger time that DIR was made with; an open of DIR starts a cluster like this.
    """
    capacity_bytes: int | None = None
    """Space of all targets together; by default what the device has."""
    pretend_domains: bool = False
    """Count each target as a failure domain of its own, although they share a device."""
    cell_bytes: int | None = None
    """Size of one fragment; not given, or 0: 8 MiB for large payloads, 4 MiB for others."""
    unprotected: bool = False
    """Allow a code without parity."""
    log_level: Annotated[str, "info|warning|error"] = "info"
    """Log events of this severity and above."""

    def options(self) -> ClusterOptions:
        """What was asked for; what was not given may be anything."""
        return ClusterOptions(
            targets=self.targets,
            code=self.code or None,
            keep=self.keep,
            restart=self.restart or None,
            linger_s=None if self.linger_s < 0 else self.linger_s,
            capacity_bytes=self.capacity_bytes,
            pretend_domains=self.pretend_domains or None,
            cell_bytes=self.cell_bytes,
            unprotected=self.unprotected or None,
        )


def main(argv: Sequence[str]) -> int:
    """`ckptd local DIR …`; returns the exit code, raises CkptError for what ended it."""
    given = list(argv)
    if given and not given[0].startswith("-"):
        given.insert(0, "--directory")
    loaded = options.load(
        LocalConfig,
        program="local",
        description="Run a whole ckpt cluster of this machine in one directory, until SIGTERM. All"
        " options but --ends-idle and --log-level count only when DIR is made.",
        example="ckptd local /scratch/burst --targets 7 --code 4+2",
        argv=given,
    )
    configure(loaded.config.log_level)
    run_local(
        loaded.config, secret_named=loaded.secret_named, report=reporter("ckptd.local.supervisor")
    )
    return 0


def run_local(config: LocalConfig, *, report: Reporter, secret_named: Path | None = None) -> None:
    """Serve DIR until a stop signal or idle. Call from the main thread of a process with no other.

    Raises Busy (already served), Refused (options contradict, another host, a secret that others
    can read), Corrupt, Unavailable (no loopback, or a coordinator that does not start), CkptError
    (no native library).
    """
    # Without native code that answers well no target begins: said once, before anything is made.
    # What has passed its test here has passed it in all that is forked.
    self_test_once()
    check_loopback()
    directory = config.directory.resolve()
    check_no_target(directory)
    make_directory(directory)
    check_owner(directory)
    close_to_others(directory, report)
    lock = lock_directory(directory)
    # One that was killed has left it, and clients would look for its coordinator for long.
    (directory / READY_NAME).unlink(missing_ok=True)
    created_by = f"ckptd {release()}"
    cluster = load_or_create(directory, config.options(), socket.gethostname(), created_by)
    if Code.parse(cluster.code).m == 0:
        report("warning", "no redundancy: a lost target loses checkpoints", {"code": cluster.code})
    secret_file = find_secret_file(directory)
    if secret_named is not None:
        _adopt_secret(directory / "secret", secret_named)
    if secret_file == directory / "secret" and not is_there(secret_file):
        make_secret(secret_file)
    LocalCluster(
        directory,
        cluster,
        lock=lock,
        secret_file=secret_file,
        secret=read_secret(secret_file),
        report=report,
        ends_idle=config.ends_idle or config.linger_s >= 0,
    ).run()


def _adopt_secret(path: Path, named: Path) -> None:
    """DIR/secret leads to the file that was named, so that every open of DIR finds it.

    Raises Refused when DIR has another secret already, Unauthorized when there is no such file.
    """
    read_secret(named)
    try:
        path.symlink_to(named.resolve())
    except FileExistsError:
        if not (is_there(path) and path.samefile(named)):
            raise Refused(
                f"--secret-file names {named}, but the cluster has its own secret in {path}",
                hint="leave --secret-file out, or use another DIR",
            ) from None


class LocalCluster:
    """I run one DIR. I hold its lock from `lock_directory` until my process ends."""

    def __init__(
        self, directory: Path, cluster: ClusterFile, *, lock: int, secret_file: Path, secret: bytes,
        report: Reporter, ends_idle: bool,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._ends_idle = ends_idle
        self._lock = lock
        self._cluster = cluster
        self._secret = secret
        self._report = report
        self._boot = secrets.token_hex(8)
        self._plans = ChildPlans(directory, cluster, secret_file)
        self._supervisor = Supervisor(cli.main, self._changed, report, inherited=(lock,))
        self._coordinator: Child | None = None
        self._targets: dict[str, Child] = {}
        self._drain: Child | None = None
        self._asker: HttpAsker | None = None
        self._ready = False
        #: ready.json is out of date: it could not be written, and is tried again.
        self._unwritten = False
        self._ready_s = 0.0
        self._join_until_s = 0.0
        self._next_poll_s = 0.0
        self._stop_reason = ""

    def run(self) -> None:
        """Serve until stopped or idle. Raises Unavailable when the coordinator cannot start."""
        for program in (COORDINATOR, TARGET):
            cli.load(program)  # Imported once, before they are forked.
        with StopSignals(self._supervisor, self._stop):
            try:
                self._coordinator = self._supervisor.add(self._plans.coordinator(self._said))
                while not self._stop_reason:
                    self._supervisor.run_once(JOIN_POLL_S if not self._ready else IDLE_POLL_S)
                    self._poll()
            finally:
                if not self._has_lost_directory():
                    (self._directory / READY_NAME).unlink(missing_ok=True)
                self._supervisor.stop()
                self._report("info", "stopped", {"reason": self._stop_reason})

    def _stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    def _has_lost_directory(self) -> bool:
        """DIR is not what I have locked: it was removed, or another made in its place, into which
        neither I nor my targets may write. I end.
        """
        if leads_to(self._directory / LOCK_NAME, self._lock):
            return False
        if not self._stop_reason:
            self._report("error", "DIR is gone", {"directory": str(self._directory)})
        self._stop("DIR was removed or replaced")
        return True

    # ----------------------------------------------------------------------- children

    def _said(self) -> JsonObject:
        """The coordinator's latest ready line."""
        assert self._coordinator is not None
        return self._coordinator.ready

    def _address(self) -> str:
        return str(self._said()["address"])

    def _changed(self, child: Child) -> None:
        if self._has_lost_directory():
            return
        if child is self._coordinator:
            self._coordinator_changed(child)
        if self._ready:
            self._write_ready()

    def _coordinator_changed(self, child: Child) -> None:
        if child.state is ChildState.READY:
            self._asker = HttpAsker(str(child.ready["http"]), self._secret, timeout_s=1.0)
            if not self._targets:
                self._follow_targets()
                if is_there(self._directory / f"{DRAIN}.toml"):
                    self._drain = self._supervisor.add(self._plans.drain(self._address()))
        elif not self._targets:
            raise why_it_ended(COORDINATOR, child.exit_status, self._plans.log(COORDINATOR))

    def _follow_targets(self) -> None:
        """Some may have been added, and some removed."""
        address = self._address()
        try:
            ids = target_ids(self._directory, self._cluster.targets)
            plans = [self._plans.target(id, address) for id in ids if self._is_new(id)]
        except OSError:  # A disk does not say now.
            return
        for plan in plans:
            self._targets[plan.name] = self._supervisor.add(plan)
        for id in [id for id in self._targets if id not in ids and self._targets[id].pid is None]:
            del self._targets[id]
            self._supervisor.forget(id)
            self._write_ready()

    def _is_new(self, id: str) -> bool:
        """A device that is not there, such as an unmounted one, is waited for."""
        is_here = id in self._cluster.first_ids or os.path.isdir(self._plans.place(id))
        return is_here and id not in self._targets

    # ----------------------------------------------------------------------- ready and idle

    def _poll(self) -> None:
        now_s = time.monotonic()
        if not self._targets or now_s < self._next_poll_s:
            return
        if not self._ready:
            self._next_poll_s = now_s + JOIN_POLL_S
            self._wait_for_targets(now_s)
        else:
            self._next_poll_s = now_s + IDLE_POLL_S
            if self._has_lost_directory():
                return
            if self._unwritten:
                self._write_ready()
            self._follow_targets()
            sessions = self._ask_sessions()
            if sessions.get("repair_due") and REPAIR not in self._supervisor.children:
                self._supervisor.add(self._plans.repair(self._address))
            if self._ends_idle and self._is_idle(sessions):
                self._stop_when_idle()

    def _wait_for_targets(self, now_s: float) -> None:
        """Ready when each target is live, held, refused, or has failed; or that takes too long.

        With columns for a whole code live, too long comes earlier.
        """
        self._join_until_s = self._join_until_s or now_s + JOIN_WAIT_S
        started = {
            id
            for id, child in self._targets.items()
            if child.exit_status is None and (child.pid is not None or not child.plan.is_held)
        }
        sessions = self._ask_sessions()
        live = started.intersection(_named(sessions, "live"))
        # One that is refused joins only once somebody has decided: whoever opens DIR must hear.
        missing = started.difference(live, _named(sessions, "refused"))
        enough = len(live) >= Code.parse(self._cluster.code).n
        patience_s = 0.0 if enough else JOIN_LAST_S - JOIN_WAIT_S
        # With an old catalog not all targets become live, and whoever opens DIR must hear why.
        waits = sessions.get("catalog") != CATALOG_OLD
        if missing and waits and now_s < self._join_until_s + patience_s:
            return
        if missing:
            self._report("warning", "ready without", {"targets": " ".join(sorted(missing))})
        self._ready = True
        self._ready_s = now_s
        self._write_ready()
        write_ready_line(self._ready_document())
        self._report("info", "ready", {"directory": str(self._directory), "pid": os.getpid()})

    def _write_ready(self) -> None:
        """A full disk does not end what serves: the file is tried again."""
        content = json.dumps(self._ready_document(), indent=1).encode()
        try:
            write_aside(self._directory / READY_NAME, content)
        except OSError as error:
            if not self._unwritten:
                self._report("warning", "ready.json not written", {"error": str(error)})
            self._unwritten = True
        else:
            self._unwritten = False

    def _ready_document(self) -> dict[str, object]:
        assert self._coordinator is not None
        targets = [
            {
                "id": id,
                "pid": child.pid if child.state is ChildState.READY else None,
                "address": child.ready.get("address"),
                "directory": str(self._plans.place(id)),
            }
            for id, child in self._targets.items()
        ]
        return {
            "address": self._coordinator.ready["address"],
            "http": self._coordinator.ready["http"],
            "pid": os.getpid(),
            "coordinator_pid": self._coordinator.pid,
            "coordinator_exit": (
                None
                if self._coordinator.state is ChildState.READY
                else self._coordinator.exit_status
            ),
            "drain_pid": self._drain.pid if self._drain is not None else None,
            "cluster": self._cluster.cluster,
            "boot": self._boot,
            "targets": targets,
        }

    def _ask_sessions(self) -> dict[str, object]:
        """The coordinator's `/v1/sessions`; empty when it does not answer now."""
        assert self._asker is not None
        try:
            answer = self._asker.ask("/v1/sessions")
        except CkptError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def _is_idle(self, sessions: dict[str, object]) -> bool:
        idle_s = sessions.get("idle_s")
        served_s = time.monotonic() - self._ready_s
        return (
            sessions.get("clients") == 0
            and isinstance(idle_s, float)
            and min(idle_s, served_s) >= self._cluster.linger_s
        )

    def _stop_when_idle(self) -> None:
        """Stop under DIR/lock, so that nobody who is just opening the store finds it going away."""
        descriptor = os.open(self._directory / OPEN_LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_idle(self._ask_sessions()):
                    (self._directory / READY_NAME).unlink(missing_ok=True)
                    self._stop("idle")
        finally:
            os.close(descriptor)


def _named(sessions: Mapping[str, object], what: str) -> list[object]:
    """Targets that the coordinator's `/v1/sessions` names."""
    found = sessions.get(what)
    return found if isinstance(found, list) else []
