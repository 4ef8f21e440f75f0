"""Stop the cluster that runs in a directory: its supervisor, coordinator and targets.

Nothing that was committed is lost; the next `ckpt.open()` starts it again. A
directory in which nothing runs is left as it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ckpt.aio.process_identity import pid_of
from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused, Unavailable
from ckpt.base.units import format_seconds
from ckpt_client.cli.cluster import is_running, read_local_ready, read_made
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.given import given_place
from ckpt_client.cli.output import Output
from ckpt_client.local.cluster import SUPERVISOR_LOCK_NAME, is_supervised
from ckpt_client.url import LocalUrl, parse_url

EXAMPLE = "ckpt local stop /scratch/burst"

POLL_S = 0.02


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("stop",), help="what to do")
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        type=given_place,
        help="of the cluster; else that of --store",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    directory = cluster_directory(arguments.directory, arguments.store)
    _check_made(directory)
    begun_s = time.monotonic()
    pid = _find_supervisor(directory)
    was_running = is_supervised(directory)
    if was_running:
        if pid is not None:
            _signal(pid, directory)
        with output.waiting(f"stopping the cluster in {directory}"):
            _wait_stopped(directory, pid, begun_s + arguments.timeout)
    seconds = time.monotonic() - begun_s
    output.document(
        {
            "directory": str(directory),
            "was_running": was_running,
            "pid": pid if was_running else None,
            "took_s": seconds,
            # As 0.1.0 calls it.
            "seconds": seconds,
        }
    )
    output.line(
        f"stopped the cluster in {directory} in {format_seconds(seconds)}"
        if was_running
        else f"the cluster in {directory} was not running"
    )
    return ExitCode.OK


def _check_made(directory: Path) -> None:
    """Raises as `read_made`; a cluster that runs is stopped whatever became of its file."""
    try:
        read_made(directory)
    except (NotFound, Corrupt):
        if not is_supervised(directory):
            raise


def cluster_directory(named: str | None, store: str | None) -> Path:
    """DIR of a local cluster, given as a path or a URL, else by the store."""
    if named is not None and "://" not in named:
        return Path(named).absolute()
    url = parse_url(named or store)
    if isinstance(url, LocalUrl):
        return Path(url.directory)
    raise Refused(
        f"{url.address} is not a cluster of this machine",
        hint="stop its daemons where they were started",
    )


def _find_supervisor(directory: Path) -> int | None:
    """Its process id: the lock's holder, if it is still the process that took the lock."""
    try:
        holder = (directory / SUPERVISOR_LOCK_NAME).read_text()
    except OSError:
        return None
    ready, pid = read_local_ready(directory), pid_of(holder)
    return pid if ready is None or ready.pid == pid else None


def _signal(pid: int, directory: Path) -> None:
    """SIGTERM to exactly this process: the descriptor is taken first, then looked at once more."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if _find_supervisor(directory) == pid:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        except PermissionError:
            raise CkptError(
                f"process {pid}, which runs the cluster in {directory}, belongs to somebody else",
                hint="its owner can stop it",
            ) from None
        finally:
            os.close(descriptor)


def _wait_stopped(directory: Path, pid: int | None, deadline_s: float) -> None:
    while is_supervised(directory) or is_running(pid):
        if time.monotonic() >= deadline_s:
            who = "its children" if pid is None else f"process {pid}"
            raise Unavailable(
                f"the cluster in {directory} has not stopped yet, {who} still runs",
                hint=f"see {directory / 'logs' / 'supervisor.log'}; --timeout waits longer",
            )
        time.sleep(POLL_S)
