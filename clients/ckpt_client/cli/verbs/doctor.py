"""Check, before a training starts, what would fail on this host and as this user.

It contacts the coordinator and every target as a training will, and checks what a training needs
here: the secret, the erasure code, open files, memory for staging, room for saves, and the
cluster's health. Each check prints a line: OK, WARN or FAIL, what it means, and the next step. A
local cluster at rest is started.

The exit code is 0 when all is well and 3 with warnings alone; with failures it is that of the first
one, else 1.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.aio.local_targets import TARGETS_FOLDER
from ckpt.aio.secret import find_secret_file, read_secret
from ckpt.base.errors import CkptError, NotFound, Refused
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.base.units import format_bytes, parse_bytes
from ckpt.erasure.code import Code
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.coordinator.reading.local_advice import with_store
from ckpt_client.cli.cluster import Conversation, read_made
from ckpt_client.cli.cluster_status import advised
from ckpt_client.cli.output import Output
from ckpt_client.cli.tables import Tone
from ckpt_client.control import Control
from ckpt_client.doctor import findings, probes
from ckpt_client.doctor.findings import Finding, Level, Need
from ckpt_client.local.cluster import opened_cluster
from ckpt_client.locate import Locator
from ckpt_client.url import LocalUrl, RemoteUrl, parse_url

EXAMPLE = (
    "ckpt doctor --store ckpt://burst-head:7700\n"
    "ckpt doctor --state-bytes 80GiB --ranks 64 --ranks-here 8 --saves 2"
)

PATIENCE_S: Final = 5.0
"""Patience with a coordinator: shorter than a training's, because a person is waiting."""
_TONES: Final = {Level.OK: Tone.GOOD, Level.WARN: Tone.WARN, Level.FAIL: Tone.BAD}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-bytes", type=_bytes, default=0, metavar="BYTES",
        help="size of one checkpoint, all ranks together, as 80GiB; 0 checks no room [0]",
    )  # fmt: skip
    parser.add_argument("--ranks", type=_count, default=1, metavar="COUNT", help="ranks in all [1]")
    parser.add_argument(
        "--ranks-here", type=_count, default=None, metavar="COUNT",
        help="ranks on this host [$LOCAL_WORLD_SIZE, else 1]",
    )  # fmt: skip
    parser.add_argument(
        "--saves", type=_count, default=1, metavar="COUNT", help="saves that must fit [1]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    here = arguments.ranks_here or _ranks_here()
    need = Need(arguments.state_bytes, arguments.ranks, min(here, arguments.ranks), arguments.saves)
    if need.rank_bytes > PAYLOAD_BYTES_MAX:
        most = format_bytes(PAYLOAD_BYTES_MAX)
        raise Refused(f"a rank saves at most {most}", hint="give the number of ranks: --ranks")
    with output.waiting("looking at the cluster and this host"):
        found = _examined(arguments, need)
    code = findings.exit_code(found)
    output.document({
        "exit_code": code,
        "findings": [
            {"name": one.name, "level": one.level.value, "message": one.message,
             "remedy": one.remedy}
            for one in found
        ],
    })  # fmt: skip
    for one in found:
        level = output.tone(f"{one.level.value:<4}", _TONES[one.level])
        output.prose(f"{level}  ", f"{one.name}: {one.message}")
        if one.remedy:
            output.line(f"      {one.remedy}")
    return code


@dataclass(frozen=True, slots=True)
class _Answered:
    """A coordinator that was asked once."""

    address: str
    cluster: str
    """Its id."""
    protocol: int
    view: StatusView
    seconds: float


def _examined(arguments: argparse.Namespace, need: Need) -> list[Finding]:
    """The cluster, as far as it can be reached, then this host."""
    found: list[Finding] = []
    library = _tried("erasure code", probes.erasure_code)
    # Without it no answer of any size can be read.
    answered = _reached(arguments, found, asks=library.level is Level.OK)
    targets = 0 if answered is None else len(answered.view.targets)
    memory = probes.memory()
    return [
        *found,
        *(_of_cluster(arguments, answered, need) if answered is not None else ()),
        library,
        findings.judge_open_files(*probes.open_files(), targets),
        findings.judge_locked_memory(probes.locked_memory()),
        findings.judge_memory(need, memory.free_bytes, memory.total_bytes),
        findings.judge_sockets(*probes.sockets_folder()),
    ]


def _tried(name: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(name, Level.OK, probe())
    except CkptError as error:
        return findings.failed(name, error)


def _reached(
    arguments: argparse.Namespace, found: list[Finding], *, asks: bool
) -> _Answered | None:
    """The coordinator's answer if it is asked, or None with the reason as the last of what was
    found.
    """
    name = "store"
    try:
        url = parse_url(arguments.store)
        found.append(Finding(name, Level.OK, _place(url)))
        if isinstance(url, LocalUrl):
            read_made(Path(url.directory))
        name = "secret"
        secret_file = _secret_file(url)
        read_secret(secret_file)
        found.append(Finding(name, Level.OK, f"{secret_file} is readable and private"))
        if not asks:
            return None
        name = "coordinator"
        return _asked(url, secret_file, arguments.timeout)
    except NotFound as error:
        found.append(findings.judge_missing(error))
    except CkptError as error:
        found.append(findings.failed(name, error))
    return None


def _of_cluster(
    arguments: argparse.Namespace, answered: _Answered, need: Need
) -> Iterator[Finding]:
    """What the coordinator says, and what of it holds from here."""
    url, view = parse_url(arguments.store), answered.view
    yield findings.judge_coordinator(
        answered.address, answered.seconds, answered.protocol, PROTOCOL_VERSION
    )
    code = Code.parse(view.code)
    folders = _folders(url, view)
    addresses = {target.id: target.address for target in view.targets}
    for id, folder in folders.items():
        addresses[id] = probes.address_here(folder, addresses[id])
    secret = read_secret(_secret_file(url))
    reaches = probes.reach_targets(addresses, secret, answered.cluster)
    yield findings.judge_targets(reaches, code)
    newest_s = max((run.committed_at_s for run in view.runs), default=0.0)
    yield findings.judge_clock(time.time(), newest_s, is_same_host=isinstance(url, LocalUrl))
    live = [target for target in view.targets if target.state == "live"]
    free = {target.id: target.bytes_free for target in live}
    domains = {target.id: target.domain for target in live}
    devices = probes.devices_of(free, domains, folders)
    yield findings.judge_room(need, code, free, devices)
    if isinstance(url, RemoteUrl):
        yield _tried("tags", probes.tags)
    checks = (
        view.checks if isinstance(url, RemoteUrl) else advised(Path(url.directory), view.checks)
    )
    for check in checks:
        yield findings.judge_health(with_store(check, arguments.store))


def _folders(url: LocalUrl | RemoteUrl, view: StatusView) -> dict[str, Path]:
    """Of the targets of this host, as far as that is known."""
    if isinstance(url, RemoteUrl):
        return {}
    folder = Path(url.directory) / TARGETS_FOLDER
    return {target.id: folder / target.id for target in view.targets}


def _asked(url: LocalUrl | RemoteUrl, secret_file: Path, timeout_s: float) -> _Answered:
    """Raises CkptError. A local cluster at rest is started."""
    if isinstance(url, RemoteUrl):
        return _timed(url, Locator("", url.address), secret_file, min(timeout_s, PATIENCE_S))
    with opened_cluster(url, timeout_s):
        return _timed(url, Locator(url.directory, ""), secret_file, min(timeout_s, PATIENCE_S))


def _timed(
    url: LocalUrl | RemoteUrl, locator: Locator, secret_file: Path, timeout_s: float
) -> _Answered:
    control = Control(locator, secret_file, None, Role.ADMIN)
    try:
        begun_s = time.monotonic()
        view = Conversation(url, control, timeout_s).status()
        seconds = time.monotonic() - begun_s
        return _Answered(control.server, control.cluster, control.protocol, view, seconds)
    finally:
        control.close()


def _secret_file(url: LocalUrl | RemoteUrl) -> Path:
    return find_secret_file(Path(url.directory) if isinstance(url, LocalUrl) else None)


def _place(url: LocalUrl | RemoteUrl) -> str:
    return url.directory if isinstance(url, LocalUrl) else url.address


def _ranks_here() -> int:
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else 1


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except CkptError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)
