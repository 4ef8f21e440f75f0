"""`ckpt+local:///DIR`: one open starts the supervisor, the others wait;
all find it running afterwards.

DIR/lock is held from the look at DIR until the caller is connected, so that two opens never start
two supervisors and an idle supervisor does not stop between the look and the connection. The
supervisor runs on its own: it is nobody's child and has its own session.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.aio.net.reaching import check_loopback
from ckpt.aio.net.wire_policy import insisted
from ckpt.aio.private import make_private_directory, user_name
from ckpt.aio.process_identity import has_ended, process_state
from ckpt.aio.secret import find_secret_file, make_secret, read_secret
from ckpt.base.errors import (
    ERROR_OF_EXIT,
    CkptError,
    Corrupt,
    NotFound,
    Refused,
    Unauthorized,
    Unavailable,
)
from ckpt.base.printable import UTF_8_HINT
from ckpt.base.system_errors import LOCKS_REMEDY, system_error
from ckpt_client.local.detach import start_detached
from ckpt_client.locate import READY_NAME, ReadyFile, read_ready
from ckpt_client.url import LocalOptions, LocalUrl
from ckpt_client.wait_notice import WaitNotice

CLUSTER_NAME: Final = "cluster.toml"
ID_NAME: Final = "cluster.id"
"""Of the coordinator that has its catalog there."""
LOCK_NAME: Final = "lock"
SUPERVISOR_LOCK_NAME: Final = "supervisor.lock"
POLL_S: Final = 0.02
START_AGAIN_S: Final = 30.0
"""For a cluster that was killed to serve again."""
LOG_TAIL_BYTES: Final = 2000
_KEYS: Final = (
    # (option in the URL, key in cluster.toml, flag of `ckptd local`)
    ("targets", "targets", "--targets"),
    ("code", "code", "--code"),
    ("keep", "keep", "--keep"),
    ("restart", "restart", "--restart"),
    ("linger", "linger_s", "--linger-s"),
    ("capacity", "capacity_bytes", "--capacity-bytes"),
    ("pretend_domains", "pretend_domains", "--pretend-domains"),
    ("cell", "cell_bytes", "--cell-bytes"),
    ("unprotected", "unprotected", "--unprotected"),
)


@dataclass(frozen=True, slots=True)
class ServingCluster:
    """A cluster that was serving a moment ago."""

    directory: Path
    secret_file: Path
    ready: ReadyFile

    def start_again(self) -> None:
        """Inside the `with`: start it if it was killed meanwhile. Raises as `opened_cluster`."""
        if has_fallen(self.directory):
            _start(self.directory, LocalOptions(), time.monotonic() + START_AGAIN_S)


@contextmanager
def opened_cluster(url: LocalUrl, timeout_s: float, known: str = "") -> Iterator[ServingCluster]:
    """The running cluster of DIR, started if need be. Connect inside the `with`.

    known: id of the cluster that was opened there before; no other one is begun in its place.

    Raises NotFound when the known one is no longer there; Refused when the URL's options contradict
    those that DIR was made with or DIR belongs to another host, or for another word than the
    policy's in $CKPT_WIRE, which the daemons inherit; Unauthorized when DIR is another user's;
    Unavailable when the cluster does not come up in time.
    """
    insisted()
    directory = Path(url.directory)
    if known:
        _check_still_there(directory, known)
    try:
        make_private_directory(directory)
    except OSError as error:
        reason = "a file is there" if isinstance(error, FileExistsError) else error.strerror
        raise Refused(f"the cluster's directory {directory} cannot be made: {reason}") from None
    except UnicodeEncodeError as error:
        raise Refused(
            f"the name of the cluster's directory {directory} is no text in {error.encoding}",
            hint=UTF_8_HINT,
        ) from None
    lock, cluster = _held(directory, url.options, time.monotonic() + timeout_s)
    try:
        yield cluster
    finally:
        os.close(lock)


def _held(directory: Path, options: LocalOptions, deadline_s: float) -> tuple[int, ServingCluster]:
    """DIR's lock, and its cluster, which serves."""
    try:
        check_loopback()
        lock = _wait_for_lock(directory, deadline_s)
        try:
            check_options(directory, options)
            secret_file = _secret_of(directory)
            ready = serving(directory) or _start(directory, options, deadline_s)
        except BaseException:
            os.close(lock)
            raise
    except PermissionError as error:
        raise not_ours(directory, error) from None
    except OSError as error:
        at = f": {error.filename}" if error.filename else ""
        raise system_error(f"cannot open the cluster in {directory}{at}", error) from None
    return lock, ServingCluster(directory, secret_file, ready)


def _secret_of(directory: Path) -> Path:
    """Its file, which can be read; made unless the cluster runs. Raises Unauthorized, Refused."""
    file = find_secret_file(directory)
    if file == directory / "secret" and not is_there(file):
        if serving(directory) is not None:
            raise Unauthorized(
                f"the secret of the cluster in {directory} is gone, and its daemons go on with it",
                hint=f"put a copy of it back as {file}; without one `ckpt local stop {directory} &&"
                " ckpt ls` serves with a new one: nothing that is stored depends on it",
            )
        make_secret(file)
    read_secret(file)
    return file


def not_ours(directory: Path, error: PermissionError) -> Unauthorized:
    """Why another user's cluster cannot be used."""
    hint = "a local cluster serves the user who made it: name a DIR of your own"
    try:
        owner = os.stat(error.filename or directory).st_uid
    except OSError:
        owner = os.geteuid()
    whose = "" if owner == os.geteuid() else f" of user {user_name(owner)}"
    text = f"no access to the cluster{whose} in {directory}: {error.filename}: {error.strerror}"
    return Unauthorized(text, hint=hint)


def revive(directory: Path) -> None:
    """Start a cluster that was killed. Raises as `opened_cluster`."""
    if has_fallen(directory):
        with opened_cluster(LocalUrl(str(directory), LocalOptions()), START_AGAIN_S) as cluster:
            cluster.start_again()


def is_supervised(directory: Path) -> bool:
    """Whether a supervisor (or a child of one that was killed) holds DIR. Raises Unauthorized where
    it is another user's.
    """
    try:
        descriptor = os.open(directory / SUPERVISOR_LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise not_ours(directory, error) from None
    except OSError as error:
        raise system_error(f"cannot look whether {directory} is served", error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise _no_locks(directory / SUPERVISOR_LOCK_NAME, error) from None
    finally:
        os.close(descriptor)
    return False


def serving(directory: Path) -> ReadyFile | None:
    """What the supervisor that holds DIR reports; None while it reports nothing, or if it was
    killed: its children end soon, and its report stays until the next supervisor removes it.
    """
    ready, holder = read_ready(directory), _holder(directory)
    if ready is None or not is_supervised(directory) or has_ended(holder):
        return None
    return ready if holder.partition(" ")[0] == str(ready.pid) else None


def has_fallen(directory: Path) -> bool:
    """Whether what served DIR was killed: a supervisor that stops in order reports that it
    stopped.
    """
    return is_there(directory / READY_NAME) and not is_supervised(directory)


def _holder(directory: Path) -> str:
    """Which process became DIR's supervisor last; empty when none did."""
    try:
        return (directory / SUPERVISOR_LOCK_NAME).read_text(errors="replace")
    except OSError:
        return ""


def what_makes_one(directory: Path) -> str:
    """For who has found no cluster there. One that has lost its file gets that back: nobody begins
    another one there.
    """
    try:
        id = (directory / ID_NAME).read_text(errors="replace").strip()
    except OSError:
        return "ckpt.open() of a training script makes one, or `ckptd local DIR`"
    return f'put it back, with cluster = "{id}"; docs/configuration.md shows one'


def of_another_cluster(directory: Path, found: str, known: str) -> NotFound:
    """For who was connected to the known one."""
    return NotFound(
        f"{directory} is of cluster {found} now; this process was connected to cluster {known}",
        hint="its directory was moved or removed: move it back, or start this process again, for "
        "what is there now",
    )


def _check_still_there(directory: Path, known: str) -> None:
    """Raises NotFound. A file that is damaged or missing alone is somebody else's to say."""
    try:
        found = tomllib.loads((directory / CLUSTER_NAME).read_text("utf-8")).get("cluster", known)
    except FileNotFoundError:
        if is_there(directory / ID_NAME):
            return
        raise NotFound(
            f"cluster {known} is no longer in {directory}: the directory was moved or removed",
            hint="move it back; the next ckpt.open() makes an empty cluster there",
        ) from None
    except (OSError, ValueError):
        return
    if found != known:
        raise of_another_cluster(directory, str(found), known)


def of_another_host(directory: Path, host: object) -> Refused:
    """For a machine that has not made what is there."""
    here = socket.gethostname()
    return Refused(
        f"{directory} belongs to host {host}, this is {here}",
        hint="a local cluster serves the machine that made it; use ckpt://HOST:PORT elsewhere; if "
        f'this one was renamed or has got the disk, say host = "{here}" in '
        f"{directory / CLUSTER_NAME}",
    )


def check_options(directory: Path, options: LocalOptions) -> None:
    """Raises Refused naming both sides when DIR was made otherwise, or on another host.

    A new DIR takes all.
    """
    path = directory / CLUSTER_NAME
    try:
        made = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        options.shape()
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} does not parse: {error}") from None
    host = made.get("host")
    if host is None:
        raise Corrupt(f"{path} does not parse: host is missing")
    if host != socket.gethostname():
        raise of_another_host(directory, host)
    for option, key, _ in _KEYS:
        asked, kept = getattr(options, option), made.get(key)
        if asked is not None and asked != kept and option != "unprotected":
            raise Refused(
                f"the URL says {option}={_text(asked)}, {path} says {key}={_text(kept)}",
                hint="options count only when DIR is made; leave them out or use another DIR",
            )


def start_arguments(directory: Path, options: LocalOptions) -> list[str]:
    """The supervisor's command: `ckptd local DIR` with what the URL says; DIR remembers the rest.
    Nobody has to end what an open starts.
    """
    arguments = ["-m", "ckptd.cli", "local", str(directory), "--json", "--ends-idle"]
    for option, _, flag in _KEYS:
        value = getattr(options, option)
        if option == "targets" and value is None and not is_there(directory / CLUSTER_NAME):
            with warnings.catch_warnings(action="ignore"):
                value = options.shape()[0]
        if value is None or value is False:
            continue
        arguments += [flag] if value is True else [flag, _text(value)]
    return arguments


def _start(directory: Path, options: LocalOptions, deadline_s: float) -> ReadyFile:
    logs = directory / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    log = logs / "supervisor.log"
    supervised = is_supervised(directory)  # One that is just starting, or about to end.
    started = 0 if supervised else start_detached(start_arguments(directory, options), log=log)
    waiting = WaitNotice(f"the cluster in {directory} is starting; its log is {log}")
    while time.monotonic() < deadline_s:
        ready = serving(directory)
        if ready is not None:
            return ready
        if not is_supervised(directory) and not (started and process_state(started)):
            if started:
                raise _why_ended(directory, log)
            started = start_detached(start_arguments(directory, options), log=log)
        waiting.say()
        time.sleep(POLL_S)
    raise Unavailable(f"the cluster in {directory} did not come up in time", hint=f"see {log}")


def _why_ended(directory: Path, log: Path) -> CkptError:
    """What the supervisor said last: its own error, where it had one."""
    said = last_line(log)
    try:
        told = json.loads(said)
        error = ERROR_OF_EXIT[told["code"]](told["message"], hint=told["hint"] or f"see {log}")
    except (ValueError, KeyError, TypeError):
        return CkptError(f"the supervisor of {directory} ended: {said}", hint=f"see {log}")
    return error


def _wait_for_lock(directory: Path, deadline_s: float) -> int:
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    waiting = WaitNotice(f"another process opens or starts the cluster in {directory}")
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                os.close(descriptor)
                raise Unavailable(
                    f"another process is still starting the cluster in {directory}"
                ) from None
            waiting.say()
            time.sleep(POLL_S)
        except OSError as error:
            os.close(descriptor)
            raise _no_locks(directory / LOCK_NAME, error) from None


def _no_locks(path: Path, error: OSError) -> Refused:
    return Refused(f"cannot lock {path}: {error.strerror}", hint=LOCKS_REMEDY)


def last_line(log: Path) -> str:
    """Of a log, for people."""
    try:
        lines = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
    except OSError:
        return "it left no log"
    return lines[-1] if lines else "it said nothing"


def _text(value: object) -> str:
    match value:
        case bool():
            return str(int(value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)
