"""Real daemons whose descriptors are used up: they rest, say why, and go on when some are free."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Unavailable
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from tests.aio.strangers import Crowd
from tests.landing import in_turn
from tests.waiting import wait_until

SECRET = bytes(range(32))
DESCRIPTORS = 100
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Daemon:
    """A coordinator with few descriptors, hard and soft, that has said it is ready."""

    def __init__(self, directory: Path, limits: tuple[int, int]) -> None:
        self.secret_file = directory / "secret"
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(SECRET.hex())
        self.log = directory / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ckptd.cli", "coordinator", "--code", "2+1"),
                    *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                    *("--directory", str(directory), "--secret-file", str(self.secret_file)),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
            )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    def where(self, plane: str) -> tuple[str, int]:
        host, _, port = self.ready[plane].rpartition(":")
        return host, int(port)

    def client(self, role: Role) -> RpcClient:
        return RpcClient(self.ready["address"], Caller(SECRET, role, "test"))

    def checks(self) -> dict[str, str]:
        """Name to message; asked as `ckpt status` asks."""
        with self.client(Role.ADMIN) as client:
            _, bulk = client.call(Ask("status"), timeout_s=20.0)
        return {c["name"]: c["message"] for c in json.loads(bytes(bulk))["checks"]}

    def cpu_ticks(self) -> int:
        """Of this process, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def elapsed_ticks(self) -> int:
        return int(float(Path("/proc/uptime").read_text().split()[0]) * TICKS_PER_S)

    def busy_share(self, stretch_ticks: int) -> float:
        """How much of a processor it used over a stretch that begins now."""
        cpu, begun = self.cpu_ticks(), self.elapsed_ticks()
        wait_until(lambda: self.elapsed_ticks() - begun >= stretch_ticks, "the stretch is over")
        return (self.cpu_ticks() - cpu) / (self.elapsed_ticks() - begun)

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path, (DESCRIPTORS, DESCRIPTORS))
    yield made
    made.process.kill()
    made.process.communicate()


def why_not(reader: RpcClient) -> Unavailable | None:
    """What keeps a reader with the secret out; None when it is in."""
    try:
        reader.call(Ask("status"), timeout_s=3.0)
    except Unavailable as error:
        return error
    return None


def fill_with_sessions(daemon: Daemon, stack: ExitStack) -> Unavailable:
    """Readers that stay, until one is told that there is no room: what it is told."""
    for _ in range(DESCRIPTORS):
        error = why_not(stack.enter_context(daemon.client(Role.READER)))
        if error is not None:
            return error
    raise AssertionError(f"{DESCRIPTORS} readers with {DESCRIPTORS} descriptors")


def test_the_limit_is_raised_at_start(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, (100, 3000))
    try:
        (line,) = [
            line
            for line in Path(f"/proc/{daemon.process.pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        ]
        assert line.split()[3:5] == ["3000", "3000"]
    finally:
        daemon.process.kill()
        daemon.process.communicate()


def test_a_daemon_full_of_sessions_says_so_to_tools_and_trainers_and_recovers(
    daemon: Daemon,
) -> None:
    with ExitStack() as stack:
        told = fill_with_sessions(daemon, stack)
        assert "the coordinator has" in told.message
        assert "LimitNOFILE" in told.hint
        assert "CONNECTIONS_FULL" in daemon.checks()
        code = subprocess.run(
            [
                *(sys.executable, "-m", "ckpt_client.cli.main", "status", "--json"),
                *("--store", f"ckpt://{daemon.ready['address']}"),
            ],
            env={**os.environ, "CKPT_SECRET_FILE": str(daemon.secret_file)},
            capture_output=True,
            check=False,
        )
        (check,) = [c for c in json.loads(code.stdout)["checks"] if c["name"] == "CONNECTIONS_FULL"]
        assert "LimitNOFILE" in check["remedy"]
        assert "no room for peers" in daemon.log.read_text()
    wait_until(lambda: "CONNECTIONS_FULL" not in daemon.checks(), "there is room again")
    with daemon.client(Role.READER) as reader:
        reader.call(Ask("status"), timeout_s=20.0)


@pytest.mark.parametrize(
    ("plane", "machine_wide"),
    in_turn([("address", False), ("address", True), ("http", True), ("http", False)], every=2),
)
def test_a_daemon_without_a_descriptor_rests(
    daemon: Daemon, plane: str, *, machine_wide: bool
) -> None:
    # As if its own files had taken all the others, and eight of what it has are beyond the limit;
    # or as if other processes had taken what the machine has: what it gives up is of no use to it.
    allowed = 3 if machine_wide else daemon.open_descriptors() - 8
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (allowed, DESCRIPTORS))
    with Crowd(daemon.where(plane), 60, b"GET / HTTP/1.1\r\n") as crowd:
        crowd.wait_connected(60)
        assert daemon.busy_share(3 * TICKS_PER_S) < 0.2
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    assert daemon.checks().keys() == {"CATALOG_UNPROVED", "TOO_FEW_TARGETS"}, "there are no targets"
    assert len(daemon.log.read_text().splitlines()) < 20


def test_strangers_alone_never_use_up_the_descriptors(daemon: Daemon) -> None:
    with Crowd(daemon.where("address"), 300) as crowd, Crowd(daemon.where("http"), 100) as guests:
        crowd.wait_connected(300)
        guests.wait_connected(100)
        assert "CONNECTIONS_FULL" not in daemon.checks()
        with daemon.client(Role.READER) as reader:
            reader.call(Ask("status"), timeout_s=20.0)
