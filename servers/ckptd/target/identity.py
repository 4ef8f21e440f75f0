"""`target.toml`: which target of which cluster a directory is, and which directory it is.

Written once, at the first start; one of an earlier version gets its incarnation at the next start.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ckpt.aio.durable import write_aside
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.dial import Dialer
from ckpt.base.errors import CkptError, Refused
from ckpt.base.limits import INCARNATION_BYTES, TARGET_ID_BYTES_MAX
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Caller, Established
from ckptd.directory import TARGET_FILE_NAME, is_coordinators, target_around
from ckptd.log import Reporter
from ckptd.target.coordinator_log import CoordinatorLog

FILE_NAME = TARGET_FILE_NAME
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class TargetFile:
    """What a directory says of itself."""

    target: str
    """Its id, as `ckpt status` and the coordinator know it."""
    cluster: str
    """The id of the cluster that it belongs to."""
    incarnation: bytes = b""
    """Random, made once; no other directory has it but a copy. Empty: of an earlier version."""


async def adopt_identity(
    directory: Path, id: str, cluster: str, coordinator: str, secret: bytes, stop: asyncio.Event,
    report: Reporter,
) -> TargetFile | None:  # fmt: skip
    """The directory's identity, made at its first start; None when the stop signal came first.

    Raises Refused when the directory belongs to another cluster, is another target or inside one,
    or is a coordinator's.
    """
    known = read_target_file(directory)
    if known is not None:
        if cluster and known.cluster != cluster:
            raise Refused(
                f"{directory} belongs to cluster {known.cluster}, not to {cluster}",
                hint="name an empty directory, or the cluster that it belongs to",
            )
        if id and known.target != id:
            raise Refused(f"{directory} is target {known.target}, not {id}")
        return known if known.incarnation else _with_incarnation(directory, known, report)
    if not 0 <= len(id.encode()) <= TARGET_ID_BYTES_MAX:
        raise Refused(f"a target's id has at most {TARGET_ID_BYTES_MAX} bytes")
    _check_new(directory)
    if not cluster:
        learned = await _learn_cluster(coordinator, secret, stop, report)
        if learned is None:
            return None
        cluster = learned
    name = id or f"target-{secrets.token_hex(4)}"
    made = TargetFile(name, cluster, secrets.token_bytes(INCARNATION_BYTES))
    _write_target_file(directory, made)
    return made


def _check_new(directory: Path) -> None:
    """Raises Refused where a target would begin among the files of another daemon."""
    hint = "name a directory of the target's own"
    if is_coordinators(directory):
        raise Refused(f"{directory} is a coordinator's directory", hint=hint)
    around = target_around(directory)
    if around is not None:
        known = read_target_file(around)
        id = known.target if known is not None else "?"
        raise Refused(f"{directory} is inside {around}, which is target {id}", hint=hint)


def read_target_file(directory: Path) -> TargetFile | None:
    """None when there is none; raises Refused when it cannot be understood."""
    path = directory / FILE_NAME
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        incarnation = bytes.fromhex(values.get("incarnation", ""))
        if len(incarnation) not in (0, INCARNATION_BYTES):
            raise ValueError(f"an incarnation has {2 * INCARNATION_BYTES} hexadecimal digits")
        return TargetFile(str(values["target"]), str(values["cluster"]), incarnation)
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path} cannot be understood: {error}") from None


def incarnation_of(directory: Path) -> bytes:
    """Empty for a directory that says nothing of itself: whoever comes first from it is noted."""
    try:
        known = read_target_file(directory)
    except Refused:
        return b""
    return b"" if known is None else known.incarnation


def place_of(directory: Path) -> str:
    """The same text for the same directory while this machine runs, and for no other one: which
    start of which machine, which file system, which file. A move within it changes nothing.
    """
    try:
        machine = _BOOT_FILE.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    return f"{machine}/{os.statvfs(directory).f_fsid:x}/{os.stat(directory).st_ino}"


def _with_incarnation(directory: Path, known: TargetFile, report: Reporter) -> TargetFile:
    """A device that takes no writes is read all the same: then the directory stays without one."""
    made = replace(known, incarnation=secrets.token_bytes(INCARNATION_BYTES))
    try:
        _write_target_file(directory, made)
    except OSError as error:
        report("warning", "no incarnation could be written", {"error": error.strerror or ""})
        return known
    return made


def _write_target_file(directory: Path, made: TargetFile) -> None:
    # JSON strings are TOML basic strings.
    text = f"target = {json.dumps(made.target)}\ncluster = {json.dumps(made.cluster)}\n"
    text += f"incarnation = {json.dumps(made.incarnation.hex())}\n"
    write_aside(directory / FILE_NAME, text.encode())


class _Learner:
    """Takes the cluster's id from the first proved session."""

    def __init__(self, log: CoordinatorLog) -> None:
        self.cluster: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._log = log

    def opened(self, _session: Session, peer: Established) -> None:
        if not self.cluster.done():
            self.cluster.set_result(peer.cluster)

    def received(
        self, _session: Session, _request: int, _message: Message, bulk: Bulk | None
    ) -> None:
        if bulk is not None:
            bulk.release()

    def closed(self, _session: Session, _reason: str) -> None:
        """The dialer dials again."""

    def failed(self, error: CkptError) -> None:
        """An attempt ended so: whoever starts a target for the first time must see why it waits."""
        if not isinstance(error, Refused):
            self._log.failed(error)
        elif not self.cluster.done():
            self.cluster.set_exception(error)


async def _learn_cluster(
    coordinator: str, secret: bytes, stop: asyncio.Event, report: Reporter
) -> str | None:
    learner = _Learner(CoordinatorLog(report))
    caller = Caller(secret, Role.TARGET, "")
    dialer = Dialer(learner, caller, address=coordinator, on_failure=learner.failed)
    dialer.start()
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((learner.cluster, stopped), return_when=asyncio.FIRST_COMPLETED)
        return learner.cluster.result() if learner.cluster.done() else None
    finally:
        stopped.cancel()
        await dialer.close()
