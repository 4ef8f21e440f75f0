"""Hold a target of a local cluster, so that its supervisor does not start it again; and end its
process.
"""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import suppress
from pathlib import Path

from ckpt.aio.durable import is_there
from ckpt.aio.local_targets import TARGETS_FOLDER, target_ids
from ckpt.aio.private import make_private_directory
from ckpt.base.errors import CkptError, NotFound
from ckpt_client.cli.cluster import HOLD_NAME, is_running, named_local, read_local_ready, read_made
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output


def hold(arguments: argparse.Namespace, output: Output) -> int:
    """`ckpt target hold`, or `release`."""
    directory = named_local(arguments, f"target {arguments.action}")
    ids = target_ids(directory, read_made(directory).targets)
    if arguments.id not in ids:
        raise NotFound(
            f"the cluster in {directory} has no target {arguments.id!r}",
            hint=f"it has {', '.join(ids)}",
        )
    is_held = arguments.action == "hold"
    was_held = mark_held(directory, arguments.id, is_held)
    pid = pid_of(directory, arguments.id)
    output.document(
        {"id": arguments.id, "held": is_held, "changed": was_held != is_held, "pid": pid}
    )
    output.line(_told(arguments.id, pid, is_held=is_held, was_held=was_held))
    return ExitCode.OK


def end_process(directory: Path, id: str) -> None:
    """SIGTERM to exactly this process: the descriptor is taken first, then looked at once more."""
    pid = pid_of(directory, id)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid_of(directory, id) == pid:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        finally:
            os.close(descriptor)


def is_held(directory: Path, id: str) -> bool:
    """Whether its supervisor leaves it alone."""
    return is_there(directory / TARGETS_FOLDER / id / HOLD_NAME)


def mark_held(directory: Path, id: str, is_held: bool) -> bool:
    """Whether it was held before."""
    marker = directory / TARGETS_FOLDER / id / HOLD_NAME
    was_held = is_there(marker)
    try:
        if is_held:
            make_private_directory(marker.parent)
            marker.touch(mode=0o600)
        else:
            marker.unlink(missing_ok=True)
    except OSError as error:
        raise CkptError(f"cannot change {marker}: {error.strerror}") from None
    return was_held


def pid_of(directory: Path, id: str) -> int | None:
    """Of the process that is this target now; None where none runs."""
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
