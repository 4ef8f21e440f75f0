"""Keep a target of a local cluster from being started again; say which directory a target is.

hold, release   of a local cluster: a held target that runs goes on until it exits; end it by its
                process id, which `ckpt status` shows.
replace         a directory that was emptied, or another one, asks for the place of target ID
                (DIRECTORY_UNKNOWN in `ckpt status`): from now on it is the target. What the old
                directory holds counts no more, also when it comes back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ckpt.aio.private import make_private_directory
from ckpt.base.errors import CkptError, NotFound, Refused
from ckpt.base.ids import TargetId
from ckpt_client.cli.cluster import (
    HOLD_NAME,
    TARGETS_FOLDER,
    conversation,
    is_running,
    named_local,
    read_local_ready,
    read_made,
)
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

EXAMPLE = (
    "ckpt target hold t3 --store ckpt+local:///scratch/burst\n"
    "ckpt target release t3 --store ckpt+local:///scratch/burst\n"
    "ckpt target replace node7-nvme0 --store ckpt://10.0.0.1:7070"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("hold", "release", "replace"), help="what to do")
    parser.add_argument("id", metavar="ID", help="of the target, as `ckpt status` names it")
    parser.add_argument(
        "--incarnation", metavar="HEX", help="of replace: which directory, when several ask"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.action == "replace":
        return _replace(arguments, output)
    if arguments.incarnation:
        raise Refused("only replace takes --incarnation")
    directory = named_local(arguments, f"target {arguments.action}")
    ids = read_made(directory).target_ids
    if arguments.id not in ids:
        raise NotFound(
            f"the cluster in {directory} has no target {arguments.id!r}",
            hint=f"it has {', '.join(ids)}",
        )
    marker = directory / TARGETS_FOLDER / arguments.id / HOLD_NAME
    is_held = arguments.action == "hold"
    was_held = marker.exists()
    _mark(marker, is_held)
    pid = _pid(directory, arguments.id)
    output.document(
        {"id": arguments.id, "held": is_held, "changed": was_held != is_held, "pid": pid}
    )
    output.line(_told(arguments.id, pid, is_held=is_held, was_held=was_held))
    return ExitCode.OK


def _replace(arguments: argparse.Namespace, output: Output) -> int:
    try:
        incarnation = bytes.fromhex(arguments.incarnation or "")
    except ValueError:
        raise Refused(f"--incarnation {arguments.incarnation} is no hexadecimal number") from None
    with conversation(arguments, output) as talk:
        done = talk.replace_target(TargetId(arguments.id), incarnation)
    output.document(
        {
            "id": done.target,
            "directory": done.directory,
            "domain": done.domain,
            "incarnation": done.incarnation.hex(),
        }
    )
    output.line(f"{done.target} is {done.directory} from now on; it joins within seconds")
    return ExitCode.OK


def _mark(marker: Path, is_held: bool) -> None:
    try:
        if is_held:
            make_private_directory(marker.parent)
            marker.touch(mode=0o600)
        else:
            marker.unlink(missing_ok=True)
    except OSError as error:
        raise CkptError(f"cannot change {marker}: {error.strerror}") from None


def _pid(directory: Path, id: str) -> int | None:
    ready = read_local_ready(directory)
    pids = {} if ready is None else {target.id: target.pid for target in ready.targets}
    pid = pids.get(id)
    return pid if is_running(pid) else None


def _told(id: str, pid: int | None, *, is_held: bool, was_held: bool) -> str:
    again = " already" if is_held and was_held else ""
    if not is_held:
        return f"{id} is released" if was_held else f"{id} was not held"
    if pid is None:
        return f"{id} is{again} held: it will not be started"
    return f"{id} is{again} held: process {pid} runs on, and is not started again once it has ended"
