"""Processes that start warm: forked by one that has imported what their scripts import.

    python warm.py serve LISTENER                      imports and forks, until its stdin closes
    python warm.py run SOCKET... -- SCRIPT ARGUMENT... runs the script so, and ends as it ends
    python warm.py run SOCKET -- OPTION... -c CODE ... the same, for multiprocessing's spawn

Importing torch and its friends costs 3 to 9 s of CPU, and a test of restarts starts dozens of
processes. A child is a process as any other: it has its own pid, environment, files and signals,
and its script runs from the first line to its end. What it shares with its siblings is a hash seed,
so there are two servers, and ranks alternate between them: the order of a set must not be the same
for all. And what was imported before it was forked is not taken apart at its end.

Scripts of JAX have a server of their own, whose imports no other has: JAX may be forked as long as
it has made no devices. Flags that are read when it makes them are each script's own.

What a child that started warm spawns by multiprocessing starts warm as well: torch's checkpointing
processes import as much as its trainers. What a script that started cold spawns is cold.
"""

from __future__ import annotations

import ast
import fcntl
import gc
import json
import os
import re
import runpy
import select
import shlex
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn, Self

ORDER_BYTES_MAX = 128 << 10
FILES_MAX = 64
ABOVE_ALL = 512
"""Descriptors that are received are moved there, out of the way of those that they become."""
PIPES = re.compile(r"(\w+)=(\d+)")
SPAWN = """#!/bin/sh
case "$*" in
*spawn_main*) exec '{python}' -S '{warm}' run '{socket}' -- "$@" ;;
*) exec '{python}' "$@" ;;
esac
"""
"""What stands for the interpreter of what multiprocessing spawns; it has other helpers, too."""
SERVERS = 2
OF_JAX = "jax"
"""What the socket of JAX's server is called. There JAX is imported, which it is for a CPU."""
LAZY = {
    # At the first optimizer.
    "torch": ("torch._dynamo",),
    # At each fit: is the folder in one of these? Where they are, it imports them all.
    "lightning": ("adlfs", "gcsfs", "s3fs"),
}
"""Package that was imported -> what it imports later."""
NOT_BESIDE = ("jax", "ckpt_jax", "tests")
"""Ranks of torch have no JAX; what a test's module keeps is its process's own."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What the process that stands for one that started warm passes on to it."""
RENDEZVOUS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
"""torchrun's, which calls each event by the name of the method that it happens in."""
ENDING = "tests.ending"
STAGERS, SERVER_NAME = "tests.warm_start", "WARM_START"
"""Starts a script's stagers warm as well, by the server that its environment names."""


@dataclass(frozen=True)
class Warm:
    """Servers that run."""

    sockets: tuple[str, ...]
    of_jax: str
    """The socket of JAX's own."""

    @classmethod
    def serving(cls, folder: Path) -> Self:
        """Those whose sockets lie there."""
        numbers = range(SERVERS)
        return cls(tuple(str(folder / str(number)) for number in numbers), str(folder / OF_JAX))

    def command(self, script: Path, *arguments: str) -> list[str]:
        """A command line that does what `python SCRIPT ARGUMENT...` does."""
        return _command(self.sockets, script, arguments)

    def jax_command(self, script: Path, *arguments: str) -> list[str]:
        """The same of a script that uses JAX, on a CPU."""
        return _command([self.of_jax], script, arguments)

    def interpreter(self, folder: Path) -> Path:
        """A `python` for scripts, made in that folder, which may stand on a shell's PATH."""
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join(self.command(folder)[:-1])} "$@"\n')
        python.chmod(0o755)
        return python

    def start(
        self, number: int, script: Path, stdin: int, beside: Sequence[Path] = ()
    ) -> tuple[int, socket.socket]:
        """Its pid, and what must stay open: the child is killed when it closes. `beside`: modules
        that it will run; the packages that they import are there before it.
        """
        path = self.sockets[number % len(self.sockets)]
        return _order(path, [str(script)], {0: stdin, 1: 1, 2: 2}, beside)


def _command(sockets: Sequence[str], script: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-S", __file__, "run", *sockets, "--", str(script), *arguments]


@contextmanager
def warm_servers() -> Iterator[str]:
    """The folder of their sockets, short enough for such paths, which have 107 bytes; they end
    here, or when this process does.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ckpt-warm-") as folder, _servers(Path(folder)):
        yield folder


def spawner_of(path: str) -> Path:
    """What a child of the server with this socket spawns by."""
    return Path(f"{path}.spawn")


@contextmanager
def _servers(folder: Path) -> Iterator[None]:
    import subprocess

    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environ["JAX_PLATFORMS"] = "cpu"
    servers = []
    warm = Warm.serving(folder)
    for path in (*warm.sockets, warm.of_jax):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            spawner = spawner_of(path)
            spawner.write_text(SPAWN.format(python=sys.executable, warm=__file__, socket=path))
            spawner.chmod(0o755)
            number = listener.fileno()
            line = [sys.executable, __file__, "serve", str(number)]
            servers.append(
                subprocess.Popen(line, stdin=subprocess.PIPE, env=environ, pass_fds=[number])
            )
    try:
        yield
    finally:
        for server in servers:
            server.communicate(timeout=60)


# ------------------------------------------------------------------------------- the client's side


def run(sockets: Sequence[str], line: list[str]) -> int:
    """The script's exit status; a signal that ended it ends this process too."""
    path = sockets[int(os.environ.get("LOCAL_RANK", "0")) % len(sockets)]
    # Descriptors that a spawned process inherits have the numbers that its pickles name.
    pid, connection = _order(path, line, {number: number for number in _open_now()})

    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    status = os.waitstatus_to_exitcode(int(connection.recv(64)))
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def _open_now() -> list[int]:
    """This process's descriptors that are to be its child's as well."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    # The listing's own is closed by now.
    return [number for number in numbers if number <= 2 or _is_inherited(number)]


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def _order(
    path: str, line: list[str], files: Mapping[int, int], beside: Sequence[Path] = ()
) -> tuple[int, socket.socket]:
    """`files`: number in the child -> number here."""
    order = {
        "line": line, "environ": dict(os.environ), "directory": os.getcwd(),
        "beside": [str(one) for one in beside], "numbers": list(files),
    }  # fmt: skip
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    socket.send_fds(connection, [json.dumps(order).encode()], list(files.values()))
    return int(connection.recv(64)), connection


# ------------------------------------------------------------------------------- the server's side


@dataclass(frozen=True)
class Order:
    """What a child is told to do."""

    line: list[str]
    environ: dict[str, str]
    directory: str
    beside: list[str]
    """Modules whose packages are imported as well."""
    numbers: list[int]
    """Of the descriptors that come with it."""

    @property
    def is_spawned(self) -> bool:
        """Whether multiprocessing has ordered it: no script, but a line of code."""
        return "--multiprocessing-fork" in self.line

    def carry_out(self) -> NoReturn:
        gc.enable()
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.directory)
        if SERVER_NAME in self.environ:
            import_module(STAGERS).start_warm()
        status = 0
        try:
            if self.is_spawned:
                self._run_spawned()
            else:
                sys.argv[:] = self.line
                sys.path.insert(0, str(Path(self.line[0]).parent))
                runpy.run_path(self.line[0], run_name="__main__")
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                raise
            status = end.code or 0
        import_module(ENDING).end_process(status)

    def _run_spawned(self) -> None:
        """The line calls `spawn_main` with numbers of pipes; what it is to do comes through one."""
        at = self.line.index("-c")
        sys.argv[:] = ["-c", *self.line[at + 2 :]]
        sys.modules["__main__"] = ModuleType("__main__")
        pipes = {name: int(number) for name, number in PIPES.findall(self.line[at + 1])}
        import_module("multiprocessing.spawn").spawn_main(**pipes)


class Server:
    """I fork. `serve` returns in each child, with its order, and in the server at its end."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        #: pid and client, by pidfd.
        self._children: dict[int, tuple[int, socket.socket]] = {}
        #: Clients that ended before their child.
        self._gone: set[socket.socket] = set()

    def serve(self) -> Order | None:
        import_module(STAGERS)
        while True:
            clients = {client: pid for pid, client in self._children.values()}
            watched = [client for client in clients if client not in self._gone]
            ready, _, _ = select.select([0, self._listener, *self._children, *watched], [], [])
            if 0 in ready:
                for pid in clients.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            for one in ready:
                if isinstance(one, int):
                    self._tell(one)
                elif one is self._listener:
                    order = self._fork()
                    if order is not None:
                        return order
                elif one in watched and one.fileno() >= 0:
                    self._gone.add(one)
                    os.kill(clients[one], signal.SIGKILL)

    def _fork(self) -> Order | None:
        client, _ = self._listener.accept()
        message, files, _, _ = socket.recv_fds(client, ORDER_BYTES_MAX, FILES_MAX)
        if not message:  # It was killed before it could ask.
            client.close()
            return None
        order = Order(**json.loads(message))
        if not order.is_spawned:
            import_for(Path(order.line[0]))
        for module in order.beside:
            import_for(Path(module), without=NOT_BESIDE)
        spare_agents()
        gc.freeze()  # A collection in a child would touch, and so copy, every page that it shares.
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"a fork takes one thread along, not {threads}"
        pid = os.fork()
        if pid == 0:
            spawner = spawner_of(self._listener.getsockname())
            for pidfd, (_, other) in self._children.items():
                os.close(pidfd)
                other.close()
            client.close()
            self._listener.close()
            _number(files, order.numbers)
            import_module("multiprocessing").set_executable(str(spawner))
            return order
        with suppress(OSError):
            client.send(str(pid).encode())
        self._children[os.pidfd_open(pid)] = (pid, client)
        for file in files:
            os.close(file)
        return None

    def _tell(self, pidfd: int) -> None:
        pid, client = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            client.send(str(status).encode())
        client.close()
        self._gone.discard(client)


def _number(files: Sequence[int], numbers: Sequence[int]) -> None:
    """The files get these numbers."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, ABOVE_ALL) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def import_for(script: Path, without: Collection[str] = ()) -> None:
    """What the script imports first of all, but for those packages; what cannot be imported is the
    child's to report.
    """
    body = ast.parse(script.read_text()).body
    for node in [*body, *_only_as_main(body)]:
        with suppress(Exception):
            match node:
                case ast.Import(names=names):
                    for one in names:
                        if one.name.partition(".")[0] not in without:
                            import_module(one.name)
                case ast.ImportFrom(module=str(module), names=names):
                    if module.partition(".")[0] in without:
                        continue
                    __import__(module, fromlist=[one.name for one in names])
    for package, later in LAZY.items():
        for name in later if package in sys.modules else ():
            with suppress(ImportError):
                import_module(name)


def spare_agents() -> None:
    """torchrun's finds a method's name by `inspect.stack`, twice for each event, which looks for
    each frame's file through all modules: with as many as are imported here a second of CPU for an
    agent, for names that nobody records.
    """
    if RENDEZVOUS in sys.modules:
        sys.modules[RENDEZVOUS].get_method_name = method_name  # type: ignore[attr-defined]


def method_name(depth: int = 2) -> str:
    """Of the frame that is so far out, as torch's own."""
    return sys._getframe(depth).f_code.co_name


def _only_as_main(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """What stands below `if __name__ == "__main__":`."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            yield from node.body


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if sys.argv[1] == "serve":
        # A quarter of the imports of torch and its friends was to look for garbage among them.
        gc.disable()
        told = Server(socket.socket(fileno=int(sys.argv[2]))).serve()
        if told is not None:
            told.carry_out()
    else:
        border = sys.argv.index("--")
        sys.exit(run(sys.argv[2:border], sys.argv[border + 1 :]))
