"""What is known of a cluster now: from its coordinator, and of one on this machine also from its
directory and its processes, which answer when the coordinator does not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckpt.aio.durable import is_there
from ckpt.aio.local_targets import TARGETS_FOLDER, target_ids
from ckpt.base.errors import Unavailable
from ckpt.protocol.coordinator.reading.answers import (
    AttemptView,
    Check,
    RunView,
    ScrubView,
    StatusView,
    StoreStatus,
    TargetView,
)
from ckpt.protocol.coordinator.reading.checks import check as health_check
from ckpt_client.cli.advice import Local, TargetProcess, is_corrupt
from ckpt_client.cli.cluster import (
    HOLD_NAME,
    LocalMade,
    LocalReady,
    allocated_bytes,
    conversation,
    is_running,
    read_local_ready,
    read_made,
    wait_local_ready,
)
from ckpt_client.cli.output import Output


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """Where the coordinator is."""

    address: str | None
    pid: int | None
    """None when it does not run, or runs on another machine."""
    wire: str = ""
    """As in TargetStatus."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One target; what is not known is None."""

    id: str
    state: str
    """live, reconciling, down; stopped when the whole cluster is."""
    domain: str
    address: str | None
    pid: int | None
    directory: str
    bytes_used: int
    bytes_free: int
    bytes_total: int
    columns: int | None = None
    held: bool = False
    device_failing: bool = False
    """It gets no new columns while others will do."""
    device_error: str = ""
    """The last error that its device reported."""
    device_errors: dict[str, int] = field(default_factory=dict)
    """How many errors of each kind since the target started."""
    wire: str = ""
    """Which connections have tags on their bulks: auto (from and to other hosts), mac, plain; or
    encrypt: all of TCP is encrypted. Empty where it is not known, or of an earlier version, which
    has none."""
    scrub: ScrubView | None = None
    """What it knows of the bytes that it keeps; None where that is not known."""
    standing: str = "in"
    """Its standing, as people set it: in, draining, out."""


@dataclass(frozen=True, slots=True)
class Status:
    """What `--json` prints."""

    coordinator: CoordinatorStatus
    targets: tuple[TargetStatus, ...]
    cluster: str
    running: bool
    health: str
    checks: tuple[Check, ...]
    code: str
    runs: tuple[RunView, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    directory: str | None = None
    """Of a local cluster."""
    http: str | None = None
    """HOST:PORT of its page and metrics, where known."""
    term: int | None = None
    epoch: int | None = None
    stores: tuple[StoreStatus, ...] = ()
    """Where checkpoints are drained to."""
    asked_by: str = ""
    """This program, its release, and who built its C library."""


def remote_status(arguments: argparse.Namespace, output: Output) -> Status:
    """What the coordinator says. Raises Unavailable where none answers."""
    with conversation(arguments, output) as talk:
        view = talk.status()
        place = CoordinatorStatus(talk.address, None)
        targets = tuple(_target(target, target.pid, held=False) for target in view.targets)
        http = _reached(view.coordinator.http, talk.address) if view.coordinator.http else None
    return _status(view, place, targets, http=http)


def local_status(directory: Path, arguments: argparse.Namespace, output: Output) -> Status:
    """Of a cluster on this machine, also where its coordinator does not answer, or nothing runs."""
    made = read_made(directory)
    with output.waiting(f"the cluster in {directory} is starting"):
        ready = wait_local_ready(directory, arguments.timeout)
    if ready is None:
        return _stopped(directory, made)
    pids = _pids(ready)
    local = _local(directory, made, pids)
    place = CoordinatorStatus(
        ready.address,
        ready.coordinator_pid if is_running(ready.coordinator_pid) else None,
    )
    if is_corrupt(ready.coordinator_exit):
        return _silent(directory, made, ready, place, local.catalog_corrupt())
    try:
        with conversation(arguments, output) as talk:
            view = talk.status()
    except Unavailable as error:
        # What it is now, and how it ended meanwhile.
        ready = read_local_ready(directory) or ready
        pid = ready.coordinator_pid if is_running(ready.coordinator_pid) else None
        if is_corrupt(ready.coordinator_exit):
            check = local.catalog_corrupt()
        else:
            check = local.coordinator_down(error.message, pid)
        return _silent(directory, made, ready, CoordinatorStatus(ready.address, pid), check)
    known = {target.id: target for target in view.targets}
    targets = []
    for id in dict.fromkeys((*target_ids(directory, made.targets), *known)):
        held = is_there(_folder(directory, id) / HOLD_NAME)
        if id in known:
            said = known[id].pid if is_running(known[id].pid) else None
            targets.append(_target(known[id], pids.get(id, said), held=held))
        else:
            targets.append(_resting(directory, id, "down", pids.get(id)))
    status = _status(view, place, tuple(targets), directory, ready.http or None)
    return replace(status, checks=tuple(map(local.advise, status.checks)))


def advised(directory: Path, checks: Sequence[Check]) -> Sequence[Check]:
    """The checks of a cluster on this machine, with the next steps that fit it."""
    ready = read_local_ready(directory)
    if ready is None:
        return checks
    local = _local(directory, read_made(directory), _pids(ready))
    return [local.advise(check) for check in checks]


def _pids(ready: LocalReady) -> dict[str, int | None]:
    """Of the targets that run."""
    return {target.id: target.pid for target in ready.targets if is_running(target.pid)}


def _local(directory: Path, made: LocalMade, pids: Mapping[str, int | None]) -> Local:
    known_here = [
        TargetProcess(id, pids.get(id), is_there(_folder(directory, id) / HOLD_NAME))
        for id in target_ids(directory, made.targets)
    ]
    return Local(directory, restarts=made.restart == "always", targets=known_here)


def _status(
    view: StatusView,
    place: CoordinatorStatus,
    targets: tuple[TargetStatus, ...],
    directory: Path | None = None,
    http: str | None = None,
) -> Status:
    return Status(
        coordinator=replace(place, wire=view.coordinator.wire),
        targets=targets,
        cluster=view.cluster,
        running=True,
        health=view.health,
        checks=view.checks,
        code=view.code,
        runs=view.runs,
        attempts=view.attempts,
        directory=None if directory is None else str(directory),
        http=http,
        term=view.term,
        epoch=view.epoch,
        stores=view.stores,
    )


def _reached(http: str, address: str) -> str:
    """Bound to every address of its host, it is where the coordinator is."""
    host, _, port = http.rpartition(":")
    return f"{address.rpartition(':')[0]}:{port}" if host in ("0.0.0.0", "::", "[::]") else http


def _target(view: TargetView, pid: int | None, *, held: bool) -> TargetStatus:
    """`pid`: what the local supervisor knows counts before what the target said once."""
    return TargetStatus(
        id=view.id,
        state=view.state,
        domain=view.domain,
        address=view.address or None,
        pid=pid,
        directory=view.directory,
        bytes_used=view.bytes_used,
        bytes_free=view.bytes_free,
        bytes_total=view.bytes_total,
        columns=view.columns,
        held=held,
        device_failing=view.device_failing,
        device_error=view.device_error,
        device_errors=view.device_errors,
        wire=view.wire,
        scrub=view.scrub,
        standing=view.standing,
    )


def _stopped(directory: Path, made: LocalMade) -> Status:
    check = health_check(
        "NOT_RUNNING",
        f"the cluster in {directory} is not running",
        f"ckpt ls or ckpt.open() starts it; in the foreground: ckptd local {directory}",
        "ckpt ls",
    )
    return Status(
        coordinator=CoordinatorStatus(None, None),
        targets=tuple(
            _resting(directory, id, "stopped", None) for id in target_ids(directory, made.targets)
        ),
        cluster=made.cluster,
        running=False,
        health="HEALTH_WARN",
        checks=(check,),
        code=made.code,
        directory=str(directory),
    )


def _silent(
    directory: Path,
    made: LocalMade,
    ready: LocalReady,
    place: CoordinatorStatus,
    check: Check,
) -> Status:
    """The supervisor runs, its coordinator does not answer."""
    pids = _pids(ready)
    return Status(
        coordinator=place,
        targets=tuple(
            _resting(directory, id, "unknown", pids.get(id))
            for id in target_ids(directory, made.targets)
        ),
        cluster=made.cluster,
        running=True,
        health="HEALTH_ERR",
        checks=(check,),
        code=made.code,
        directory=str(directory),
        http=ready.http or None,
    )


def _resting(directory: Path, id: str, state: str, pid: int | None) -> TargetStatus:
    """A target of which only its directory tells."""
    folder = _folder(directory, id)
    nearest = folder if folder.is_dir() else directory
    space = os.statvfs(nearest)
    return TargetStatus(
        id=id,
        state=state,
        domain="",
        address=None,
        pid=pid,
        directory=str(folder),
        bytes_used=allocated_bytes(folder),
        bytes_free=space.f_bavail * space.f_frsize,
        bytes_total=space.f_blocks * space.f_frsize,
        held=is_there(folder / HOLD_NAME),
    )


def _folder(directory: Path, id: str) -> Path:
    return directory / TARGETS_FOLDER / id
