"""A target's own health and metrics, over HTTP from a real process."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import secrets
import signal
import socket
from pathlib import Path

import pytest

from ckpt.aio.disk import RealDisk
from ckpt.aio.net.dial import Dialer
from ckpt.aio.net.serving.server import serve
from ckpt.aio.slots import SlotPool
from ckpt.base.ids import BootId, TargetId
from ckpt.base.limits import BLOCK_BYTES, FRAME_BULK_BYTES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, MiB
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import VerifyColumn
from ckpt.format.messages.targets import RenewLease
from ckpt.format.messages.writing import ColumnSealed
from ckpt.protocol.handshake import Caller, Identity
from ckpt.protocol.target.core import TargetIdentity, TargetLimits, column_name
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    DiskFailed,
    RemoveFile,
    SyncFile,
    WriteAt,
)
from ckpt.protocol.target.machine import TargetMachine
from ckptd.http.auth import CHALLENGE_HEADER, http_key, sign_request
from ckptd.http.server import TOKEN_NAME
from ckptd.log import reporter
from ckptd.target.disk_probe import OVERDUE_US, PROBE_OP, PROBE_US, DiskProbe
from ckptd.target.handlers import CoordinatorHandler, Relay
from ckptd.target.metrics import family_of_counter
from ckptd.target.reports import TargetReports
from ckptd.target.shell import TargetShell
from tests.ckptd.target_peers import (
    ANSWER_S,
    CLUSTER,
    SECRET,
    Coordinator,
    Daemon,
    Peer,
    reserve,
    run,
)
from tests.protocol.target_world import Column
from tests.reference.metrics import not_on_the_page
from tests.waiting import wait_until, wait_until_async

ANY_PORT = ("--http", "127.0.0.1:0")


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()
    finally:
        connection.close()


def signed(address: str, path: str) -> tuple[int, dict[str, str], str]:
    challenge = get(address, path)[1][CHALLENGE_HEADER]
    nonce = secrets.token_hex(16)
    given = sign_request(http_key(SECRET), "GET", path, b"", challenge, nonce)
    return get(address, path, Authorization=given)


def metrics(address: str, directory: Path) -> dict[str, float]:
    """Sample (name with labels) to value."""
    token = (directory / TOKEN_NAME).read_text().strip()
    status, _, text = get(address, "/metrics", Authorization=f"Bearer {token}")
    assert status == 200
    assert not_on_the_page(text) == []
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def readiness(address: str) -> tuple[int, str]:
    status, _, body = get(address, "/readyz")
    return status, body


def loaded_libraries(daemon: Daemon) -> str:
    return Path(f"/proc/{daemon.process.pid}/maps").read_text()


async def start(
    directory: Path, coordinator: Coordinator, *flags: str, cold: bool = False
) -> Daemon:
    flags = ("--id", "t1", *flags)
    return await asyncio.to_thread(Daemon, directory, coordinator.address, *flags, cold=cold)


def test_without_the_option_there_is_no_plane_and_its_library_is_not_loaded(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        with await start(tmp_path / "t", coordinator, cold=True) as daemon:
            assert "http" not in daemon.ready
            assert "aiohttp" not in loaded_libraries(daemon)
            assert not (tmp_path / "t" / TOKEN_NAME).exists()
            assert daemon.end(signal.SIGTERM) == 0
        with await start(tmp_path / "t", coordinator, *ANY_PORT, cold=True) as daemon:
            assert "aiohttp" in loaded_libraries(daemon)
            assert get(str(daemon.ready["http"]), "/livez")[0::2] == (200, "ok\n")
            log = [json.loads(line) for line in daemon.log.read_text().splitlines()]
            assert daemon.ready["http"] in [line.get("http") for line in log]
            assert daemon.end(signal.SIGTERM) == 0

    run(story)


def test_it_lives_before_its_cluster_is_known_and_is_ready_once_it_has_joined(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    log = tmp_path / "t.log"

    async def story() -> None:
        coordinator = Coordinator()
        waiting = asyncio.ensure_future(
            asyncio.to_thread(
                lambda: Daemon(tmp_path / "t", f"127.0.0.1:{port}", *ANY_PORT, cluster="")
            )
        )

        def address() -> str | None:
            text = log.read_text() if log.exists() else ""
            found = re.search(r'"msg": "http", "http": "([^"]+)"', text)
            return found[1] if found else None

        await wait_until_async(lambda: address() is not None, "the plane listens")
        http_address = str(address())
        assert (await asyncio.to_thread(get, http_address, "/livez"))[0] == 200
        assert await asyncio.to_thread(readiness, http_address) == (503, "not ready\n")
        found = await asyncio.to_thread(metrics, http_address, tmp_path / "t")
        assert [name.partition("{")[0] for name in found] == ["ckpt_build_info"]
        coordinator.listen(port)
        with await waiting as daemon:
            assert daemon.ready["http"] == http_address

            def ready() -> bool:
                return readiness(http_address) == (200, "ok\n")

            await asyncio.to_thread(wait_until, ready, "it is ready")
            assert coordinator.server is not None
            await coordinator.server.close(linger_s=0)
            await asyncio.to_thread(wait_until, lambda: not ready(), "it has no coordinator")
            assert (await asyncio.to_thread(get, http_address, "/livez"))[0] == 200

    asyncio.run(story())


def test_it_is_not_ready_while_its_device_takes_no_writes(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        directory = tmp_path / "t"
        with await start(directory, coordinator, *ANY_PORT) as daemon:
            address = str(daemon.ready["http"])

            def ready() -> bool:
                return readiness(address)[0] == 200

            await asyncio.to_thread(wait_until, ready, "it is ready")
            (directory / "staging").rename(directory / "away")
            await asyncio.to_thread(wait_until, lambda: not ready(), "a write failed")
            (directory / "away").rename(directory / "staging")
            await asyncio.to_thread(wait_until, ready, "a write went through again")
            assert list((directory / "staging").glob("probe*")) == []

    run(story)


def test_it_is_not_ready_once_it_was_told_to_stop(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        disk, pool, relay = RealDisk(tmp_path), SlotPool(FRAME_BULK_BYTES_MAX), Relay()
        boot, stop = BootId(1), asyncio.Event()
        machine = TargetMachine(
            TargetIdentity(CLUSTER, TargetId("t1"), boot, "p/r/h/d"), SECRET, TargetLimits()
        )
        server = serve(
            relay, listen=("127.0.0.1", 0), unix=None, secret=SECRET, pool=pool,
            identity=Identity(CLUSTER, Role.TARGET, "t1", boot),
        )  # fmt: skip
        report = reporter("test")
        shell = relay.shell = TargetShell(machine, disk, report)
        shell.server = server
        shell.dialer = Dialer(
            CoordinatorHandler(shell, stop.set),
            Caller(SECRET, Role.TARGET, "t1", cluster=CLUSTER),
            address=coordinator.address,
        )
        reports = TargetReports(disk, stop)
        try:
            shell.start()
            reports.begin(shell, server, pool)
            shell.dialer.start()
            await wait_until_async(reports.is_ready, "it has joined and its probe came back")
            stop.set()
            assert not reports.is_ready()
        finally:
            await shell.dialer.close()
            await server.close()
            await shell.close()
            disk.close()

    run(story)


def test_only_a_credential_opens_the_metrics_and_there_is_neither_page_nor_question(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "t"
    directory.mkdir()
    (directory / TOKEN_NAME).write_text("n" * 40 + "\n")

    async def story(coordinator: Coordinator) -> None:
        with await start(directory, coordinator, *ANY_PORT) as daemon:
            address = str(daemon.ready["http"])
            for path in ("/metrics", "/", "/v1/status"):
                assert get(address, path)[0] == 401
            assert get(address, "/metrics", Authorization="Bearer " + "m" * 40)[0] == 401
            assert get(address, "/metrics", Authorization="Bearer " + "n" * 40)[0] == 200, (
                "one token may be put into the directories of many"
            )
            assert signed(address, "/metrics")[0] == 200
            for path in ("/", "/v1/status"):
                assert signed(address, path)[0] == 404

    run(story)


def test_an_address_that_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        taken = coordinator.address
        with await start(tmp_path / "t", coordinator, "--http", taken) as daemon:
            assert await asyncio.to_thread(daemon.process.wait, ANSWER_S) == 75
        assert f"cannot listen on {taken}" in daemon.log.read_text()

    run(story)


def test_the_metrics_tell_what_happened_to_columns_peers_disk_and_memory(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        whole, spoilt = (Column(3 * MiB, cell_bytes=512 * KiB, rank=rank) for rank in (0, 1))
        directory = tmp_path / "t"
        with await start(directory, coordinator, *ANY_PORT) as daemon:
            await coordinator.registrations.get()
            await reserve(coordinator, [whole, spoilt])
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(whole, 1), ColumnSealed)
                await stager.send(8, spoilt.begin(2))
                await stager.next()
                message, cell = spoilt.fragment(0)
                await stager.send(8, message, bytes(len(cell)))
                refused, _ = await stager.next()
                assert isinstance(refused, Failed)
                assert refused.code == "corrupt"
                flip_a_byte(directory / "columns" / column_name(whole.id))
                await stager.ask(9, VerifyColumn(whole.id))
            await asyncio.to_thread(send_garbage, daemon.address)
            found = await asyncio.to_thread(metrics, str(daemon.ready["http"]), directory)
            renewed = await latest(coordinator)

        def of(name: str, **labels: str) -> float:
            text = ",".join(f'{k}="{v}"' for k, v in {"target": "t1", **labels}.items())
            return found[f"ckpt_target_{name}{{{text}}}"]

        assert {family_of_counter(name).name for name in renewed.counters} <= {
            name.partition("{")[0] for name in found
        }, "what the coordinator tells of a target has the same name here"
        assert (of("up"), of("columns"), of("columns_sealed_total")) == (1, 1, 1)
        assert of("fragments_total") >= whole.layout.stripe_count
        assert of("columns_refused_total") == 1
        assert of("columns_refused_by_reason_total", reason="corrupt") == 1
        assert of("reservations") == 1, "the sealed column's was used up"
        assert of("blocks_damaged_total") == 1
        assert of("peers_cut_total", reason="malformed") == 1
        assert of("peers_cut_total", reason="unread") == 0
        assert of("fsync_seconds_count") >= 2, "the column and its directory"
        assert of("device_bytes", state="total") > of("device_bytes", state="free") > 0
        assert of("capacity_bytes", state="used") > whole.file_bytes - PAGE_BYTES
        assert of("capacity_bytes", state="reserved") == spoilt.file_bytes
        assert of("pool_bytes", pool="receive") == 64 * MiB
        assert of("pool_used_bytes", pool="receive") == 0
        assert of("pool_bytes", pool="read") == 32 * MiB

    run(story)


async def latest(coordinator: Coordinator) -> RenewLease:
    async with asyncio.timeout(ANSWER_S):
        return await coordinator.renewals.get()


def flip_a_byte(file: Path) -> None:
    with file.open("r+b") as handle:
        handle.seek(PAGE_BYTES + BLOCK_BYTES + 100)
        byte = handle.read(1)
        handle.seek(-1, 1)
        handle.write(bytes([byte[0] ^ 1]))


def send_garbage(address: str) -> None:
    """Until the target has cut us off."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(4096))
        try:
            while peer.recv(4096):
                continue
        except ConnectionResetError:
            return


# --------------------------------------------------------------------------- the probe alone


class Asked:
    """Collects what a probe asks; answers when told to."""

    def __init__(self) -> None:
        self.actions: list[DiskAction] = []
        self.probe = DiskProbe(self.actions.append)

    def answer(self, *errno_names: str) -> None:
        """All that was asked; the first ones fail so."""
        actions, self.actions[:] = list(self.actions), []
        for number, action in enumerate(actions):
            failed = number < len(errno_names) and errno_names[number]
            op = action.op
            self.probe.answered(DiskFailed(0, op, failed, "") if failed else DiskDone(0, op))


def test_a_page_is_written_synced_and_removed_and_not_again_before_its_time() -> None:
    asked = Asked()
    asked.probe.tick(100)
    assert [type(action) for action in asked.actions] == [WriteAt, SyncFile, RemoveFile]
    assert {action.op for action in asked.actions} == {PROBE_OP}
    assert not asked.probe.takes_writes(100), "nothing is known yet"
    asked.probe.tick(100 + PROBE_US)
    assert len(asked.actions) == 3, "one at a time"
    asked.answer()
    assert asked.probe.takes_writes(100 + PROBE_US)
    asked.probe.tick(99 + PROBE_US)
    assert asked.actions == []
    asked.probe.tick(100 + PROBE_US)
    assert len(asked.actions) == 3


@pytest.mark.parametrize(
    ("errnos", "writable"),
    [(("EIO",), False), (("", "EIO"), False), (("EROFS",), False), (("ENOSPC", "ENOSPC"), True)],
)
def test_an_error_says_that_it_takes_no_writes_and_a_full_device_does_not(
    errnos: tuple[str, ...], *, writable: bool
) -> None:
    asked = Asked()
    asked.probe.tick(0)
    asked.answer(*errnos)
    assert asked.probe.takes_writes(0) is writable


def test_a_device_that_hangs_takes_no_writes_until_it_answers() -> None:
    asked = Asked()
    asked.probe.tick(0)
    asked.answer()
    asked.probe.tick(PROBE_US)
    assert asked.probe.takes_writes(PROBE_US + OVERDUE_US)
    assert not asked.probe.takes_writes(PROBE_US + OVERDUE_US + 1)
    asked.answer()
    assert asked.probe.takes_writes(PROBE_US + OVERDUE_US + 1)
