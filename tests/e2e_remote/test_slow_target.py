"""A target that becomes slow in mid-stream, never silent, loses its column to the spare."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

import ckpt
from ckpt.aio.net.rpc import RpcClient
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.handshake import Caller
from ckpt_client.local.processes import end_marked, marked_environment
from tests.e2e_remote.cluster import Daemon
from tests.e2e_remote.slowing import Proxy, Victim
from tests.waiting import wait_until

TARGETS = ("t0", "t1", "t2", "t3")
"""Of 2+1: one of them is spare."""
PROXIED = "127.0.0.2"
"""What targets advertise; they themselves listen on 127.0.0.1."""
PAYLOAD_BYTES = 128 << 20
WAIT_S = 60.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Targets that are reached through proxies only."""

    directory: Path
    coordinator: Daemon
    targets: dict[str, Daemon]
    victim: Victim

    def live(self) -> set[str]:
        secret = bytes.fromhex((self.directory / "secret").read_text())
        with RpcClient(self.coordinator.address, Caller(secret, Role.ADMIN, "test")) as client:
            answer, bulk = client.call(Ask("status"), timeout_s=30.0)
        assert isinstance(answer, Answer)
        status = msgspec.json.decode(bytes(bulk), type=StatusView)
        return {target.id for target in status.targets if target.state == "live"}

    def holders(self) -> set[str]:
        """Who has a sealed column."""
        return {id for id in TARGETS if any((self.directory / id / "columns").iterdir())}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    # Not below tmp_path: a Unix socket's path has 107 bytes.
    runtime, mark = Path(tempfile.mkdtemp(prefix="ckpt-e2e-")), secrets.token_hex(8)
    daemons: list[Daemon] = []
    proxies: list[Proxy] = []
    with marked_environment(mark, runtime):
        os.environ["CKPT_SECRET_FILE"] = str(secret)
        try:
            coordinator = Daemon(
                "coordinator", "--directory", str(tmp_path / "coordinator"), "--listen",
                "127.0.0.1:0", "--code", "2+1", "--level", "target",
            )  # fmt: skip
            daemons.append(coordinator)
            targets = {id: target(tmp_path / id, coordinator.address) for id in TARGETS}
            daemons += targets.values()
            made = Cluster(tmp_path, coordinator, targets, Victim())
            for id, daemon in targets.items():
                port = int(daemon.address.rpartition(":")[2])
                proxies.append(Proxy(id, PROXIED, port, made.victim))
            wait_until(lambda: made.live() == set(TARGETS), "all targets are live")
            yield made
        finally:
            for proxy in proxies:
                proxy.close()
            for daemon in daemons:
                daemon.end(signal.SIGTERM)
            end_marked(mark, END_TIMEOUT_S)  # Stagers.
            shutil.rmtree(runtime)


def target(directory: Path, coordinator: str) -> Daemon:
    return Daemon(
        "target", "--directory", str(directory), "--id", directory.name, "--coordinator",
        coordinator, "--advertise", PROXIED, "--no-unix", "--capacity-bytes", "4GiB",
    )  # fmt: skip


def test_a_target_that_slows_in_mid_stream_loses_its_column_to_the_spare(cluster: Cluster) -> None:
    payload = np.random.default_rng(5).integers(0, 256, PAYLOAD_BYTES, "u1")
    with ckpt.open(f"ckpt://{cluster.coordinator.address}") as store:
        commit = store.save("slow", 1, {"a": payload}).wait(WAIT_S)
        assert (commit.targets_survivable, commit.columns_missing) == (1, 0)
        victim = cluster.victim
        assert victim.parts > 1, "it went on, slowly"
        assert cluster.live() == set(TARGETS), "nobody is dead"
        assert cluster.holders() == set(TARGETS) - {victim.id}
        for stager in store._stagers.links.values():
            os.kill(stager.pid, signal.SIGKILL)
        found = store.load("slow")
        assert isinstance(found, dict)
        assert np.array_equal(found["a"], payload)
