"""The coordinator daemon as a process: its start, its planes, its end."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ckpt.aio.net.address import endpoints_by_resolver, parse_address
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Corrupt, Refused, Unauthorized, Unavailable
from ckpt.base.ids import BootId, LaunchNumber, TargetId
from ckpt.format.messages.asking import Answer, Ask, StepDown
from ckpt.format.messages.hello import Role
from ckpt.format.messages.targets import RegisterTarget
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.image import CatalogRow
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.checks import check
from ckpt.protocol.handshake import Caller
from ckpt.testing.catalog_entries import checkpoint
from ckptd.catalog import checkpoint_tables
from ckptd.catalog.sqlite import SqliteCatalog
from ckptd.coordinator.alone import Alone
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.coordinator.front import listening
from ckptd.coordinator.shell import CoordinatorShell
from ckptd.http.client import HttpAsker
from tests.reference.metrics import not_on_the_page

SECRET = bytes(range(32))
FLAGS = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--code", "2+1")


class Daemon:
    """One coordinator process that has said it is ready, or has ended."""

    def __init__(self, directory: Path) -> None:
        (directory / "secret").touch(mode=0o600)
        (directory / "secret").write_text(SECRET.hex())
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ckptd.cli", "coordinator", *FLAGS),
                *("--directory", str(directory), "--secret-file", str(directory / "secret")),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready: dict[str, Any] = json.loads(line) if line else {}

    def client(self, secret: bytes = SECRET, role: Role = Role.ADMIN) -> RpcClient:
        return RpcClient(self.ready["address"], Caller(secret, role, "test"))

    def end(self, signal_number: int = signal.SIGTERM) -> tuple[int, str]:
        """(exit status, stderr)"""
        self.process.send_signal(signal_number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors.decode()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[list[Daemon]]:
    running: list[Daemon] = []
    yield running
    for daemon in running:
        daemon.process.kill()
        daemon.process.communicate()


def start(daemons: list[Daemon], directory: Path) -> Daemon:
    daemons.append(daemon := Daemon(directory))
    return daemon


def test_it_answers_on_both_planes_alike_and_stops_cleanly(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    daemon = start(daemons, tmp_path)
    assert daemon.ready["pid"] == daemon.process.pid
    with daemon.client() as client:
        answer, bulk = client.call(Ask("status"))
        assert isinstance(answer, Answer)
        status = json.loads(bytes(bulk))
        asker = HttpAsker(daemon.ready["http"], SECRET, timeout_s=30)
        assert asker.ask("/v1/status") == status
        with pytest.raises(Unavailable, match="no target has come"):
            asker.ask("/v1/show?run=run&step=1")
        sessions = asker.ask("/v1/sessions")
        assert sessions == {
            "clients": 1, "idle_s": 0.0, "live": [], "refused": [], "catalog": "gathering",
            "repair_due": False,
        }  # fmt: skip
    with (
        daemon.client(role=Role.READER) as reader,
        pytest.raises(Refused, match="StepDown is not said in the role reader, but as admin"),
    ):
        reader.call(StepDown())
    assert status["cluster"] == daemon.ready["cluster"]
    pid, address = daemon.ready["pid"], daemon.ready["address"]
    http = daemon.ready["http"]
    assert status["coordinator"] == {
        "address": address,
        "pid": pid,
        "http": http,
        "wire": "auto",
    }
    assert daemon.end()[0] == 0


def test_another_secret_gets_in_on_neither_plane(tmp_path: Path, daemons: list[Daemon]) -> None:
    daemon = start(daemons, tmp_path)
    with daemon.client(b"x" * 32) as client, pytest.raises(Unauthorized):
        client.call(Ask("status"))
    with pytest.raises(Unauthorized):
        HttpAsker(daemon.ready["http"], b"x" * 32, timeout_s=30).ask("/v1/status")


def test_metrics_are_read_with_the_token_of_the_directory(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    daemon = start(daemons, tmp_path)
    token = (tmp_path / "metrics.token").read_text().strip()
    connection = http.client.HTTPConnection(daemon.ready["http"], timeout=30)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    assert "ckpt_coordinator_term 1\n" in text
    assert 'ckpt_sessions{role="stager"} 0\n' in text
    assert not_on_the_page(text) == []


def test_a_second_one_on_the_directory_is_refused_and_the_first_serves_on(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    first = start(daemons, tmp_path)
    second = start(daemons, tmp_path)
    assert second.ready == {}
    assert second.process.wait(timeout=30) == 11
    with first.client() as client:
        client.call(Ask("status"))


def test_a_killed_one_comes_back_with_a_higher_term_and_the_same_cluster(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    first = start(daemons, tmp_path)
    first.end(signal.SIGKILL)
    second = start(daemons, tmp_path)
    assert second.ready["cluster"] == first.ready["cluster"]
    assert second.ready["term"] > first.ready["term"]


def test_a_target_that_obeyed_another_catalogs_term_proves_this_one_old_for_good(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    daemon = start(daemons, tmp_path)
    register = RegisterTarget(
        target=TargetId("t0"), boot=BootId(1), address="127.0.0.1:1", unix="", domain="p/r/h/d",
        directory="/d", pid=os.getpid(), bytes_total=1, bytes_free=1, bytes_used=0, term_seen=41,
    )  # fmt: skip
    old = pytest.raises(Corrupt, match="older than its targets")
    with daemon.client(role=Role.TARGET) as client, old as caught:
        client.call(register)
    assert f"ckpt catalog rebuild {tmp_path} --targets '127.0.0.1:1'" in caught.value.hint
    daemon.end()
    again = start(daemons, tmp_path)
    with again.client() as client, pytest.raises(Corrupt, match="obeyed a coordinator of term 41"):
        client.call(Ask("runs"))


def test_an_entry_of_the_catalog_that_cannot_be_read_is_named_with_the_command(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    start(daemons, tmp_path).end()
    row = CatalogRow(checkpoint(1), RowState.COMMITTED, LaunchNumber(7), None, 1, b"no record")
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as connection, connection:
        checkpoint_tables.insert(connection, row)
    ended = start(daemons, tmp_path)
    assert ended.ready == {}
    code, errors = ended.end()
    assert code == 4
    assert f"the catalog's entry of {checkpoint(1)}" in errors
    assert f"run: ckpt catalog rebuild {tmp_path}" in errors
    assert "Traceback" not in errors


def test_options_that_cannot_be_are_refused() -> None:

    with pytest.raises(Refused):
        CoordinatorConfig(Path("d"), listen="nowhere")
    with pytest.raises(Refused):
        CoordinatorConfig(Path("d"), level="galaxy")
    with pytest.raises(Refused):
        CoordinatorConfig(Path("d"), orphan_grace_s=-1)


@pytest.mark.parametrize("host", ["http://b", "b:7070", "a,b", "[::1]", "b c", "b/"])
def test_what_others_cannot_dial_is_not_advertised(host: str) -> None:
    """All the others would send whoever comes to it there."""

    with pytest.raises(Refused, match="without a port"):
        CoordinatorConfig(Path("d"), advertise=host)
    for good in ("", "b", "node-1.cluster_a.local", "10.0.0.1", "fe80::1"):
        CoordinatorConfig(Path("d"), advertise=good)


def test_an_ipv6_address_is_said_as_others_dial_it(tmp_path: Path) -> None:
    """That of the page as well: `http://::1:7080` is no URL."""

    if not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    config = CoordinatorConfig(tmp_path, listen="[::1]:0", http="[::1]:0")

    async def said() -> str:
        async with listening(config, bytes(32), "c") as front:
            return f"{front.view.address} {front.server.port} {front.view.http}"

    address, port, http = asyncio.run(said()).split()
    assert address == f"[::1]:{port}"
    assert urlsplit(f"http://{http}/").hostname == "::1"


def test_all_addresses_of_ipv6_are_those_of_ipv4_as_well(tmp_path: Path) -> None:
    """Others are given this host's name, which they may find to be an IPv4 address alone."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    config = CoordinatorConfig(tmp_path, listen="[::]:0", http="[::]:0")

    async def reached() -> None:
        async with listening(config, bytes(32), "c") as front:
            for port in (front.server.port, int(front.view.http.rpartition(":")[2])):
                for host in ("127.0.0.1", "::1"):
                    socket.create_connection((host, port), timeout=30).close()

    asyncio.run(reached())


def test_an_address_of_a_link_alone_is_listened_at(tmp_path: Path) -> None:
    """Those of an interface that is up, as the kernel lists them, have 128 bits in hex."""
    listed = Path("/proc/net/if_inet6")
    lines = listed.read_text().splitlines() if listed.exists() else []
    links = [line.split() for line in lines if line.startswith("fe80")]
    if not links:
        pytest.skip("no interface here has an IPv6 address of its link")
    digits, *_, interface = links[0]
    address = f"[{IPv6Address(int(digits, 16))}%{interface}]:0"
    config = CoordinatorConfig(tmp_path, listen=address, http=address)

    async def said() -> tuple[str, str]:
        async with listening(config, bytes(32), "c") as front:
            for each in (front.view.address, front.view.http):
                (endpoint,) = endpoints_by_resolver(parse_address(each))
                with socket.socket(endpoint.family) as peer:
                    peer.connect(endpoint.sockaddr)
            return front.view.address, front.view.http

    for each in asyncio.run(said()):
        assert each.startswith(address.removesuffix("0"))


@pytest.mark.parametrize(
    ("listen", "advertise", "others", "named"),
    [
        ("0.0.0.0:0", "", (), f"{socket.gethostname()}:PORT"),
        ("0.0.0.0:0", "n1.rack", (), "n1.rack:PORT"),
        ("127.0.0.1:0", "fd00::1", (), "[fd00::1]:PORT"),
        ("127.0.0.1:0", "", ("[fd00::1]:7070", "n2:7070"), "[fd00::1]:7070,n2:7070"),
    ],
)
def test_a_command_for_another_host_names_coordinators_as_it_reaches_them(
    tmp_path: Path, listen: str, advertise: str, others: tuple[str, ...], named: str
) -> None:
    """0.0.0.0 is that host itself; a target that is given one of three ends with that one; and a
    shell looks for files where brackets are not quoted.
    """
    config = CoordinatorConfig(tmp_path, listen=listen, advertise=advertise)

    async def said() -> tuple[str, int]:
        catalog = SqliteCatalog.open(tmp_path, None, "c1")
        shell = CoordinatorShell(
            config.policy("c1"), catalog, tmp_path, SECRET, lambda *_: None, pytest.fail
        )
        async with listening(config, SECRET, "c1") as front:
            front.people = Alone(front, "", 1)
            front.lead(shell, others)
            checks = json.loads(shell.answer("status", None, None))["checks"]
            (found,) = (each for each in checks if each["name"] == "TOO_FEW_TARGETS")
            front.retire()
            await catalog.close()
            return str(found["command"]), front.server.port

    command, port = asyncio.run(said())
    assert command.count("[") == command.count("'[")
    words = shlex.split(command)
    assert words[words.index("--coordinator") + 1] == named.replace("PORT", str(port))


def test_who_stands_by_says_in_its_metrics_what_stands_while_nobody_can_lead(
    tmp_path: Path,
) -> None:
    class People(Alone):
        def checks(self) -> tuple[Check, ...]:
            return (check("CATALOG_NO_QUORUM", "e1 is silent", "start it"),)

    async def said(why: str) -> str:
        async with listening(CoordinatorConfig(tmp_path, listen="127.0.0.1:0"), SECRET, "c1") as it:
            it.people = People(it, "", 1)
            it.reception.why = why
            return it.metrics()

    stands = 'ckpt_health_check{check="CATALOG_NO_QUORUM",severity="error"} 1'
    assert stands in asyncio.run(said("e1 is silent")).splitlines()
    assert "ckpt_health_check" not in asyncio.run(said("")), "the leader says it"


def test_its_options_are_what_the_machine_goes_by() -> None:

    policy = CoordinatorConfig(Path("d"), orphan_grace_s=5, spare_count=2, keep=3).policy("c")
    assert (policy.orphan_grace_us, policy.spare_count, policy.keep) == (5_000_000, 2, 3)
    policy = CoordinatorConfig(Path("d")).policy("c")
    assert (policy.orphan_grace_us, policy.spare_count, policy.keep) == (60_000_000, 1, None)


def test_ctrl_c_before_it_is_ready_is_one_line(tmp_path: Path) -> None:
    """While it waits for an etcd that does not answer, say."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET.hex())
    daemon = subprocess.Popen(
        [
            *(sys.executable, "-m", "ckptd.cli", "coordinator", "--directory", str(tmp_path / "c")),
            *("--listen", "127.0.0.1:0", "--catalog", "etcd://127.0.0.1:9/x"),
            *("--secret-file", str(secret)),
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert daemon.stderr is not None
    assert '"starting"' in daemon.stderr.readline()
    daemon.send_signal(signal.SIGINT)
    assert daemon.stderr.read().splitlines() == ["ckptd coordinator: interrupted"]
    assert daemon.wait(60) == 130
    daemon.stderr.close()


@pytest.mark.parametrize("program", ["coordinator", "local"])
@pytest.mark.parametrize("inside", ["", "columns/deep"])
def test_nothing_else_begins_in_the_directory_of_a_target(
    tmp_path: Path, program: str, inside: str
) -> None:
    """The target may delete what it finds there, or take it for its own."""
    target = tmp_path / "disk"
    target.mkdir()
    (target / "target.toml").write_text('target = "t3"\ncluster = "c"\n')
    directory = target / inside
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET.hex())
    place = [str(directory)] if program == "local" else ["--directory", str(directory)]
    done = subprocess.run(
        [*(sys.executable, "-m", "ckptd.cli", program), *place, "--secret-file", str(secret)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == Refused.exit_code, done.stderr
    around = (
        f"inside {target}, the directory of a target" if inside else "the directory of a target"
    )
    assert f"{directory} is {around}; name a directory of its own" in done.stderr
    assert [one.name for one in target.iterdir()] == ["target.toml"], "nothing was made"


def test_what_an_earlier_version_has_begun_beside_a_target_goes_on(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    (tmp_path / "target.toml").write_text('target = "t3"\ncluster = "c"\n')
    (tmp_path / "coordinator.lock").touch()
    assert start(daemons, tmp_path).ready


def test_a_target_that_is_refused_again_and_again_is_one_line_of_the_log(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    """It dials twice a second for as long as it runs: the disk with the log must not fill."""
    daemon = start(daemons, tmp_path)
    register = RegisterTarget(
        TargetId("t1"), BootId(1), "a:1", "", "p/r/h/d", "/d/t1", 77, 1, 1, 0, 0,
        incarnation=b"short",
    )  # fmt: skip
    for _ in range(3):
        with daemon.client(role=Role.TARGET) as client, pytest.raises(Refused, match="incarnation"):
            client.call(register)
    _, log = daemon.end()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["why"] for line in lines if line["msg"] == "target refused"] == [
        "an incarnation has 16 bytes"
    ]
    assert [line for line in lines if line["msg"] == "session closed"] == []
