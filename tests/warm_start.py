"""Supervisors, stagers, daemons and ranks that start warm: forked by a process that has imported
what they import.

Each cluster of a test has a supervisor, and each rank a stager beside it. Started as `python -m
MODULE ARGUMENT...` they spend more on imports than on most tests. Here a server imports once and
forks. What it forks is the same process in all that can be seen: nobody's child, in a session that
is not ours, with its own command line and environment (also in /proc), descriptors, umask and
signals; its module runs from the first line, as `__main__`, to its end. What was imported before it
was forked is not taken apart then.

Cold are: whatever tests start as a command (`ckpt`, `ckptd`, scripts, and what these start) but by
tests/warm_child.py, and what is to run in another interpreter, whose own variables differ
(PYTHONPATH, LD_PRELOAD).
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn, TextIO

from ckpt_client.local import cluster
from ckpt_client.local.detach import child_environment, start_detached
from ckpt_client.local.processes import MARK_NAME
from ckpt_client.save.links import stager_link
from tests.ending import end_process

IMPORTED = {
    "ckptd.cli": (
        "ckptd.local.supervisor", "ckptd.coordinator.daemon", "ckptd.target.daemon",
        "ckptd.http.server", "ckptd.drain.daemon", "ckptd.catalog.rebuild",
    ),
    "ckpt_client.stager": ("ckpt_client.stager.shell",),
    "tests.e2e.rank_agent": (
        "ckpt_client.store", "ckpt_client.load.checkpoint", "tests.e2e.states", "tests.warm_start",
    ),
    "tests.e2e.preempted_rank": ("ckpt_client.preemption.guard",),
    "tests.warm_script": ("ckpt_client.store",),
    "ckptbench.bench_target": ("ckptd.target.daemon",),
}  # fmt: skip
"""Module that is run -> what it imports when it is run."""
INTERPRETERS = ("PYTHON", "LD_", "FAKETIME", "COVERAGE", "OPENBLAS", "OMP", "MALLOC")
"""How variables begin that count at an interpreter's start."""
PATH_NAME = "WARM_START"
"""Ranks find the server by it, for their stagers."""
ROOM_NAME = "WARM_START_ROOM"
ROOM_BYTES = 32 << 10
"""For the command line, and for the environment, of what is forked."""
NEEDED = ("--directory", "/", "--coordinator", "host:1")
ORDER_BYTES_MAX = 4 * ROOM_BYTES
FILES_MAX = 8
ABOVE_ALL = 512
"""Descriptors that are received are moved there, out of the way of those that they become."""
DETACHED = (signal.SIGUSR1, signal.SIGUSR2)
"""Ignored by what `start_detached` starts."""
END_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Order:
    """What a child is told to do."""

    words: list[str]
    """Its command line: [python, options..., -m, MODULE, ARGUMENT...]."""
    environ: dict[str, str]
    descriptors: list[int]
    """The numbers of its own, besides 0, 1 and 2."""
    ignored: list[int]
    """Signals."""
    directory: str
    umask: int
    descriptors_max: int
    is_awaited: bool = False
    """Who gave it hears how it ends."""

    @property
    def program(self) -> list[str]:
        """[MODULE, ARGUMENT...]"""
        return self.words[self.words.index("-m") + 1 :]

    @property
    def fits(self) -> bool:
        """Whether it is one of ours, and the room is enough for it."""
        return self.program[0] in IMPORTED and len(json.dumps(vars(self))) < ROOM_BYTES

    def give(self, path: str, files: Sequence[int]) -> int:
        """To the server. Its files 0, 1, 2 and those of `descriptors`; returns its pid."""
        pid, connection = self.begin(path, files)
        connection.close()
        return pid

    def begin(self, path: str, files: Sequence[int]) -> tuple[int, socket.socket]:
        """The same; and through what we hear how it ends."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(vars(self)).encode()], list(files))
        return int(connection.recv(64)), connection

    def carry_out(self) -> NoReturn:
        gc.enable()
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.directory)
        os.umask(self.umask)
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
        # Where the fields of /proc/PID/stat say that the words begin and end.
        _overwrite(48, self.words)
        _overwrite(50, [f"{name}={value}" for name, value in self.environ.items()])
        sys.argv[:] = self.program
        if "-W" in self.words:
            warnings.simplefilter("error")
        # The supervisor imports the file that runs it.
        if not hasattr(sys.modules.get(self.program[0]), "__path__"):
            sys.modules.pop(self.program[0], None)
        status = 0
        try:
            runpy.run_module(self.program[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                raise
            status = end.code or 0
        end_process(status)


class WarmRank:
    """A process that is not our child: it is signalled and awaited by a descriptor of it."""

    def __init__(self, pid: int, stdin: TextIO, stdout: TextIO) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._pidfd = os.pidfd_open(pid)

    def send_signal(self, number: signal.Signals) -> None:
        """One that has ended is left alone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL, and gone on return."""
        self.send_signal(signal.SIGKILL)
        assert _readable(self._pidfd, timeout_s=END_TIMEOUT_S)

    def close(self) -> None:
        """What we hold of it."""
        # A word may still be on its way to it.
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()
        os.close(self._pidfd)


class WarmStart:
    """I start processes. The server, if there is none, runs from the first start on, and another
    one once this process has gone to namespaces of its own: benches do, for their own loopback.
    """

    def __init__(self) -> None:
        self._path = ""
        #: Those that I started, by their socket's path; the newest serves.
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        #: Where the server is.
        self._namespaces: list[str] = []
        #: The interpreter's variables of the server.
        self._interpreters: dict[str, str] = {}

    def detached(self, arguments: Sequence[str], *, log: Path, pass_fds: Sequence[int] = ()) -> int:
        """I stand in the place of `start_detached`."""
        words = [sys.executable, "-P", *arguments]
        order = Order(words, child_environment(), list(pass_fds), [*DETACHED], "/", *_own())
        if not self._serves(order):
            return start_detached(arguments, log=log, pass_fds=pass_fds)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return order.give(self._path, [empty, file, file, *pass_fds])
        finally:
            os.close(file)
            os.close(empty)

    def rank(self, module: str, environ: Mapping[str, str]) -> WarmRank:
        """`python -m MODULE`, its stderr ours, which starts its stagers warm."""
        own = {**environ, **_interpreters(child_environment())}
        order = Order([sys.executable, "-m", module], own, [], [], os.getcwd(), *_own())
        assert self._serves(order)
        order.environ.update(self.environment())
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        try:
            pid = order.give(self._path, [theirs_in, theirs_out, 2])
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return WarmRank(pid, os.fdopen(ours_out, "w"), os.fdopen(ours_in))

    def child(
        self, words: Sequence[str], environ: Mapping[str, str], outputs: Sequence[int]
    ) -> tuple[int, socket.socket] | None:
        """A process with that command line that we await: its pid, and through what. None where it
        is to run in another interpreter.
        """
        ours = _interpreters(child_environment())
        if _interpreters(environ) not in (_interpreters(os.environ), ours):
            return None
        own = {**environ, **ours}
        order = Order([*words], own, [], [], os.getcwd(), *_own(), is_awaited=True)
        if not self._serves(order):
            return None
        empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return order.begin(self._path, [empty, *outputs])
        finally:
            os.close(empty)

    def environment(self) -> dict[str, str]:
        """For ranks that start elsewhere: from `start_warm` on their stagers start here."""
        here = _namespaces()
        if here != self._namespaces:
            inherited = "" if self._path else os.environ.get(PATH_NAME, "")
            self._namespaces, self._interpreters = here, _interpreters(child_environment())
            self._path = inherited or self._serve()
        return {PATH_NAME: self._path}

    def _serves(self, order: Order) -> bool:
        self.environment()
        return order.fits and _interpreters(order.environ) == self._interpreters

    def _serve(self) -> str:
        """Its socket's path. Not below tmp_path: such a path has 107 bytes."""
        path = tempfile.mkdtemp(prefix="ckpt-warm-") + "/server"
        # What it forks writes its own command line and environment over these.
        room = {ROOM_NAME: "-" * ROOM_BYTES, "SPT_NOENV": "1"}
        environ = child_environment() | room
        # A test that ends what carries its mark does not mean the server.
        environ.pop(MARK_NAME, None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            number = listener.fileno()
            line = [sys.executable, "-P", __file__, str(number), "-" * ROOM_BYTES]
            self._servers[path] = subprocess.Popen(
                line, stdin=subprocess.PIPE, env=environ, pass_fds=[number], cwd="/"
            )
        return path

    def close(self) -> None:
        """End the servers that are mine; what they have forked goes on."""
        for server in self._servers.values():
            # A word, since a child that was forked here may hold the pipe's end open.
            server.communicate(b".", timeout=END_TIMEOUT_S)


WARM = WarmStart()
"""This process's own; in a rank, that of the process which started it."""


def start_warm() -> None:
    """What this process starts is forked warm from now on."""
    cluster.start_detached = stager_link.start_detached = WARM.detached


def _readable(*descriptors: int, timeout_s: float | None = None) -> list[int]:
    """Those that are, of any numbers."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return [number for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1e3)]


def _own() -> tuple[int, int]:
    """This process's umask, and how many descriptors it may have: its children's as well."""
    return _umask(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _namespaces() -> list[str]:
    """Those of this process: what they are called, and which they are."""
    folder = Path("/proc/self/ns")
    return sorted(os.readlink(folder / name) for name in os.listdir(folder))


def _interpreters(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(INTERPRETERS)}


# ------------------------------------------------------------------------------- the server's side


def serve(listener: socket.socket) -> Order | None:
    """Forks, until stdin says anything, or ends. Returns in each child, with its order, and in the
    server with None.

    A relay between us makes the child nobody's, as a cold start does; of one that is awaited it
    stays, and says how it ended.
    """
    gc.disable()
    for modules in IMPORTED.values():
        for module in modules:
            import_module(module)
    _warm_up()
    # It finds its room now, before a child has written there.
    import_module("setproctitle").getproctitle()
    gc.collect()
    gc.freeze()  # A collection in a child would touch, and so copy, every page that it shares.
    while True:
        if 0 in _readable(0, listener.fileno()):
            return None
        client, _ = listener.accept()
        message, files, _, _ = socket.recv_fds(client, ORDER_BYTES_MAX, FILES_MAX)
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"a fork takes one thread along, not {threads}"
        relay = os.fork()
        if relay == 0:
            os.setsid()
            order = Order(**json.loads(message))
            if order.is_awaited and os.fork():
                # Whoever serves waits for none that stays.
                os._exit(0)
            if child := os.fork():
                for file in files:
                    os.close(file)
                listener.close()
                _tell_and_end(client, child, order.is_awaited)
            listener.detach()
            client.detach()
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (order.descriptors_max, most))
            _keep_only(files, [0, 1, 2, *order.descriptors])
            return order
        client.close()
        for file in files:
            os.close(file)
        os.waitpid(relay, 0)


def _warm_up() -> None:
    """What each would find out at its start, and all find the same."""
    from ckpt.erasure.selftest import self_test_once
    from ckpt.format import frame
    from ckpt.native.version import release
    from ckptd.config import load
    from ckptd.target.daemon import TargetConfig

    import_module("encodings.idna")  # Of a host's name.
    self_test_once()
    release()
    for number in frame.MESSAGE_TYPES:
        assert frame._DECODERS[number]
    # Most of all, regular expressions of argparse.
    load(TargetConfig, program="target", description="", example="", argv=NEEDED, environ={})


def _tell_and_end(client: socket.socket, child: int, awaits: bool) -> NoReturn:
    with suppress(OSError):
        client.send(str(child).encode())
        if awaits:
            _tell_its_end(client, child)
    os._exit(0)


def _tell_its_end(client: socket.socket, child: int) -> None:
    """It is reaped when its end has been heard: until then nobody else has its id."""
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    number = ended.si_status
    client.send(str(number if ended.si_code == os.CLD_EXITED else -number).encode())
    client.recv(64)
    os.waitpid(child, 0)


def _keep_only(files: Sequence[int], numbers: Sequence[int]) -> None:
    """The files get these numbers; nothing else stays open."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, ABOVE_ALL) for file in files]
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number not in moved:
            with suppress(OSError):  # The listing's own.
                os.close(number)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _overwrite(field: int, words: Sequence[str]) -> None:
    """Write the words where that field of /proc/PID/stat and the next one say."""
    stat = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = int(stat[field - 3]), int(stat[field - 2])
    content = b"".join(os.fsencode(word) + b"\0" for word in words)
    assert len(content) <= end - start
    ctypes.memmove(start, content.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    door = socket.socket(fileno=int(sys.argv[1]))
    folder = Path(door.getsockname()).parent
    told = serve(door)
    if told is None:
        # Also when who started the server has ended without a word to it: a killed worker does.
        shutil.rmtree(folder)
    else:
        told.carry_out()
