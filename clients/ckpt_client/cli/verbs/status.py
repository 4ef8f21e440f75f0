"""The cluster on one screen: health with named checks, targets, runs, saves under way.

The exit code follows the health: 0 for HEALTH_OK and HEALTH_WARN (with --check that is 3), 3 for
HEALTH_ERR, 4 when a checkpoint is lost or the catalog cannot be read, 75 when the coordinator does
not answer. A local cluster that does not run is reported from its directory, but not started; the
exit code is 3.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ckpt.aio.local_targets import TARGETS_FOLDER, target_ids
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.aio.secret import find_secret_file, read_secret
from ckpt.base.errors import Unavailable
from ckpt.base.units import format_bytes, format_seconds
from ckpt.native.version import version_line
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
from ckpt.protocol.coordinator.reading.checks import exit_code
from ckpt.protocol.page_pass import PAGE_PASS_LIFE_S, page_pass
from ckpt_client.cli.advice import Local, TargetProcess, is_corrupt, with_store
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
from ckpt_client.cli.output import Output, Tone, age_text, counted
from ckpt_client.cli.verbs.ls import awaited_text
from ckpt_client.url import LocalUrl, parse_url

EXAMPLE = (
    "ckpt status --store ckpt+local:///scratch/burst\n"
    "ckpt status --json | jq '.targets[] | select(.pid == null) | .id'"
)

_TONES: Final = {"HEALTH_OK": Tone.GOOD, "HEALTH_WARN": Tone.WARN, "HEALTH_ERR": Tone.BAD}


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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="also exit with 3 for a warning")


def run(arguments: argparse.Namespace, output: Output) -> int:
    url = parse_url(arguments.store)
    if isinstance(url, LocalUrl):
        status = _local_status(Path(url.directory), arguments, output)
        secret_file = find_secret_file(Path(url.directory))
    else:
        secret_file = find_secret_file()
        with conversation(arguments, output) as talk:
            view = talk.status()
            place = CoordinatorStatus(talk.address, None)
            targets = tuple(_target(target, target.pid, held=False) for target in view.targets)
            http = _reached(view.coordinator.http, talk.address) if view.coordinator.http else None
        status = _status(view, place, targets, http=http)
    checks = tuple(with_store(each, arguments.store) for each in status.checks)
    status = replace(status, checks=checks)
    if output.json:
        output.document(replace(status, asked_by=version_line("ckpt")))
    else:
        _print(status, secret_file, output)
    return exit_code(checks, strict=arguments.check)


# --------------------------------------------------------------------------- gathering


def _local_status(directory: Path, arguments: argparse.Namespace, output: Output) -> Status:
    made = read_made(directory)
    with output.waiting(f"the cluster in {directory} is starting"):
        ready = wait_local_ready(directory, arguments.timeout)
    if ready is None:
        return _stopped(directory, made)
    pids = {target.id: target.pid for target in ready.targets if is_running(target.pid)}
    known_here = [
        TargetProcess(id, pids.get(id), (_folder(directory, id) / HOLD_NAME).exists())
        for id in target_ids(directory, made.targets)
    ]
    local = Local(directory, restarts=made.restart == "always", targets=known_here)
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
        held = (_folder(directory, id) / HOLD_NAME).exists()
        if id in known:
            said = known[id].pid if is_running(known[id].pid) else None
            targets.append(_target(known[id], pids.get(id, said), held=held))
        else:
            targets.append(_resting(directory, id, "down", pids.get(id)))
    status = _status(view, place, tuple(targets), directory, ready.http or None)
    return replace(status, checks=tuple(map(local.advise, status.checks)))


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


def wire_notes(status: Status) -> list[str]:
    """What somebody on the network may do to the traffic of some daemons."""
    wires = {"coordinator": status.coordinator.wire}
    wires |= {target.id: target.wire for target in status.targets}
    plain, encrypt = WirePolicy.PLAIN.value, WirePolicy.ENCRYPT.value
    trusting = ", ".join(name for name, wire in wires.items() if wire == plain)
    notes = []
    if trusting:
        notes.append(
            f'bulks have no tags: wire = "plain" on {trusting}; whoever is on the way can change '
            "them"
        )
    if encrypt in wires.values():
        open_ = ", ".join(name for name, wire in wires.items() if wire not in (encrypt, ""))
        if open_:
            notes.append(f'names and bytes can be read on the way: wire = "encrypt" not on {open_}')
    return notes


def _reached(http: str, address: str) -> str:
    """Bound to every address of its host, it is where the coordinator is."""
    host, _, port = http.rpartition(":")
    return f"{address.rpartition(':')[0]}:{port}" if host in ("0.0.0.0", "::") else http


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
    pids = {target.id: target.pid for target in ready.targets if is_running(target.pid)}
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
        held=(folder / HOLD_NAME).exists(),
    )


def _folder(directory: Path, id: str) -> Path:
    return directory / TARGETS_FOLDER / id


# --------------------------------------------------------------------------- for people


def _print(status: Status, secret_file: Path, output: Output) -> None:
    health = output.tone(status.health, _TONES.get(status.health, Tone.BAD))
    output.line(f"cluster  {status.cluster}  {health}")
    for check in status.checks:
        tone = Tone.BAD if check.severity == "error" else Tone.WARN
        output.line(f"         {output.tone(check.name, tone)}: {check.message}")
        for line in (check.remedy, f"$ {check.command}" if check.command else ""):
            if line:
                output.line(f"         {'':<{len(check.name)}}  {line}")
    output.line(f"served   {_served(status)}")
    if status.http and status.term is not None:
        output.line(f"page     {_page(status.http, secret_file)}")
    for note in wire_notes(status):
        output.line(f"wire     {note}")
    up = sum(target.state == "live" for target in status.targets)
    output.line(f"targets  {up}/{len(status.targets)} live, code {status.code}")
    output.line()
    _print_targets(status, output)
    if status.runs:
        output.line()
        _print_runs(status.runs, output)
    if status.attempts:
        output.line()
        _print_attempts(status.attempts, output)
    if status.stores:
        output.line()
        _print_stores(status.stores, output)


def _served(status: Status) -> str:
    place = status.coordinator
    if place.address is None:
        return "not running"
    process = f", process {place.pid}" if place.pid is not None else ""
    return f"{place.address}{process}"


def _page(http: str, secret_file: Path) -> str:
    """An address that opens it, for a while; only for people: `--json` is logged."""
    given = page_pass(read_secret(secret_file), time.time())
    return f"http://{http}/?token={given}  (opens for {PAGE_PASS_LIFE_S // 60} min)"


def _print_targets(status: Status, output: Output) -> None:
    prefix = f"{status.directory}/" if status.directory else ""
    rows = [
        (
            target.id,
            _state_text(target),
            "-" if target.pid is None else str(target.pid),
            target.address or "-",
            format_bytes(target.bytes_used),
            format_bytes(target.bytes_free),
            _read_text(target.scrub),
            target.domain or "-",
            target.directory.removeprefix(prefix),
        )
        for target in status.targets
    ]
    head = (
        "target", "state", ">pid", "address", ">used", ">free", "scrubbed", "domain", "directory",
    )  # fmt: skip
    output.table(head, rows)


def _state_text(target: TargetStatus) -> str:
    remarks = [target.standing] if target.standing != "in" else []
    remarks += ["held"] if target.held else []
    remarks += ["device fails"] if target.device_failing else []
    refused = sum(count for kind, count in target.device_errors.items() if kind != "space")
    remarks += [counted(refused, "device error")] if refused and not target.device_failing else []
    return f"{target.state} ({', '.join(remarks)})" if remarks else target.state


def _read_text(scrub: ScrubView | None) -> str:
    """When the last pass was over, and what was found."""
    if scrub is None:
        return "-"
    ended = age_text(scrub.pass_ended_s) if scrub.pass_ended_s else "not yet"
    return f"{ended}, {counted(scrub.rot_count, 'part')} damaged" if scrub.rot_count else ended


def _print_runs(listed: tuple[RunView, ...], output: Output) -> None:
    rows = [
        (
            view.run,
            "-" if view.latest is None else str(view.latest),
            str(view.steps),
            format_bytes(view.bytes),
            age_text(view.committed_at_s),
        )
        for view in listed
    ]
    output.table(("run", ">newest step", ">steps", ">size", "committed"), rows)


def _print_attempts(attempts: tuple[AttemptView, ...], output: Output) -> None:
    output.line(output.tone("saves under way", Tone.HEAD))
    for view in attempts:
        output.line(
            f"{view.run}@{view.step}: {view.state}, {view.ranks_handed_over} of "
            f"{counted(view.world_size, 'rank')} handed over, {view.ranks_certified} certified, "
            f"{format_bytes(view.bytes)}{awaited_text(view)}"
        )


def _print_stores(stores: tuple[StoreStatus, ...], output: Output) -> None:
    output.line(output.tone("drained to", Tone.HEAD))
    for store in stores:
        parts = [store.state, counted(len(store.workers), "worker")]
        if store.draining:
            done = f", {store.parts_done} of {counted(store.parts, 'part')}" if store.parts else ""
            parts.append(f"at {', '.join(store.draining)}{done}")
        if store.backlog:
            waiting = f"{counted(store.backlog, 'checkpoint')} left"
            parts.append(f"{waiting}, {format_bytes(store.backlog_bytes)}")
            oldest = age_text(store.oldest_undrained_at_s)
            parts.append(f"the oldest, {store.oldest_undrained}, committed {oldest}")
        if store.backlog and store.end_in_s:
            parts.append(f"done in about {format_seconds(store.end_in_s)}")
        if not store.conditional:
            parts.append("one worker at a time, by lease")
        output.line(f"  {store.url}  {', '.join(parts)}")
        if store.error:
            output.line(f"    {output.tone(store.error, Tone.BAD)}")
