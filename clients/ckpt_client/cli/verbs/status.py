"""The cluster on one screen: health with named checks, targets, runs, saves under way.

The exit code follows the health: 0 for HEALTH_OK and HEALTH_WARN (with --check that is 3), 3 for
HEALTH_ERR, 4 when a checkpoint is lost or the catalog cannot be read, 75 when the coordinator does
not answer. A local cluster that does not run is reported from its directory, but not started; the
exit code is 3.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.aio.secret import find_secret_file, read_secret
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.native.version import version_line
from ckpt.protocol.coordinator.reading.answers import (
    AttemptView,
    RunView,
    ScrubView,
    StoreStatus,
)
from ckpt.protocol.coordinator.reading.checks import exit_code
from ckpt.protocol.coordinator.reading.local_advice import with_store
from ckpt.protocol.page_pass import PAGE_PASS_LIFE_S, page_pass
from ckpt_client.cli.cluster_status import Status, TargetStatus, local_status, remote_status
from ckpt_client.cli.output import Output, age_text
from ckpt_client.cli.tables import Tone
from ckpt_client.cli.verbs.ls import awaited_text
from ckpt_client.url import LocalUrl, parse_url

EXAMPLE = (
    "ckpt status --store ckpt+local:///scratch/burst\n"
    "ckpt status --json | jq '.targets[] | select(.pid == null) | .id'"
)

_TONES: Final = {"HEALTH_OK": Tone.GOOD, "HEALTH_WARN": Tone.WARN, "HEALTH_ERR": Tone.BAD}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="also exit with 3 for a warning")


def run(arguments: argparse.Namespace, output: Output) -> int:
    url = parse_url(arguments.store)
    if isinstance(url, LocalUrl):
        status = local_status(Path(url.directory), arguments, output)
        secret_file = find_secret_file(Path(url.directory))
    else:
        status = remote_status(arguments, output)
        secret_file = find_secret_file()
    checks = tuple(with_store(each, arguments.store) for each in status.checks)
    status = replace(status, checks=checks)
    if output.json:
        output.document(replace(status, asked_by=version_line("ckpt")))
    else:
        _print(status, secret_file, output)
    return exit_code(checks, strict=arguments.check)


# --------------------------------------------------------------------------- for people


def _print(status: Status, secret_file: Path, output: Output) -> None:
    health = output.tone(status.health, _TONES.get(status.health, Tone.BAD))
    output.line(f"cluster  {status.cluster}  {health}")
    for check in status.checks:
        tone = Tone.BAD if check.severity == "error" else Tone.WARN
        below = f"         {'':<{len(check.name)}}  "
        output.prose(f"         {output.tone(check.name, tone)}: ", check.message)
        if check.remedy:
            output.prose(below, check.remedy)
        if check.command:  # Whoever copies it needs it in one line.
            output.line(f"{below}$ {check.command}")
    output.line(f"served   {_served(status)}")
    if status.http and status.term is not None:
        output.line(f"page     {_page(status.http, secret_file)}")
    for note in wire_notes(status):
        output.prose("wire     ", note)
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
    output.table(head, rows, spare=("domain", "directory", "scrubbed"))


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
    head = ("run", ">newest step", ">steps", ">size", "committed")
    output.table(head, rows, spare=("steps",), grouped=True)


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
