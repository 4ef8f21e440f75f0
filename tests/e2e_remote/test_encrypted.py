"""Daemons with `wire = "encrypt"`: all works, and nobody on the way reads a name or a byte."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import RunName, Step
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.stored_steps import stored_steps
from tests.aio.tap import Tap, Way
from tests.client.clikit import environment, run
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.e2e_remote.test_repair import is_whole
from tests.waiting import ASKED_S, wait_until

RUN = "run"
"""As `is_whole` has it: the handshake's names are in the clear, and it is in none of them."""
NAME = "a-layer-with-a-name-of-its-own"
HOST = "127.0.0.3"
"""Daemons listen on 127.0.0.1, and say that they are to be found here, on the same port."""
WAIT_S = 120.0
VALUES = np.random.default_rng(3).integers(0, 256, (9 << 20) + 5, np.uint8)
APART_BYTES = 50_021
KNOWN_BYTES = 40


class TappedCluster(RemoteCluster):
    """Somebody stands before the coordinator and before each target, and records all."""

    def __init__(self, directory: Path, wire: str) -> None:
        super().__init__(
            directory, ("--wire", wire, "--rebuild-after-s", "1"),
            ("--wire", wire, "--advertise", HOST, "--no-unix"),
        )  # fmt: skip
        self.taps: dict[str, Tap] = {}

    def start_coordinator(self) -> None:
        super().start_coordinator()
        self._listen = self._stand_before("coordinator", self.coordinator)

    @property
    def url(self) -> str:
        return f"ckpt://{self._listen}"

    def start_target(self, id: str) -> None:
        super().start_target(id)
        self._stand_before(id, self.targets[id])

    def _stand_before(self, name: str, daemon: Daemon) -> str:
        port = int(daemon.address.rpartition(":")[2])
        self.taps[name] = Tap(port, at=(HOST, port))
        return f"{HOST}:{port}"

    def end(self) -> None:
        super().end()
        for tap in self.taps.values():
            tap.close()

    def said(self, way: Way) -> bytes:
        """Of all connections."""
        return b"".join(bytes(tap.said[way]) for tap in self.taps.values())


@pytest.fixture
def tapped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TappedCluster]:
    with started(TappedCluster(tmp_path, request.param)) as made:
        yield made


def seen(said: bytes) -> tuple[int, bool]:
    """How many of some places of the values are in it, and whether a name is."""
    data = VALUES.tobytes()
    parts = [data[at : at + KNOWN_BYTES] for at in range(0, len(data), APART_BYTES)]
    return sum(part in said for part in parts), NAME.encode() in said


@pytest.mark.parametrize("tapped", ["mac"], indirect=True)
def test_with_tags_alone_all_can_be_read(tapped: TappedCluster) -> None:
    """That the other test looks where something is."""
    with ckpt.open(tapped.url) as store:
        store.save(RUN, 1, {NAME: VALUES}).wait(WAIT_S)
        check(store)
    for way in Way:
        count, named = seen(tapped.said(way))
        assert count >= len(VALUES) // APART_BYTES
        assert named


@pytest.mark.parametrize("tapped", ["encrypt"], indirect=True)
def test_nothing_can_be_read_of_all_that_a_cluster_does(
    tapped: TappedCluster, tmp_path: Path
) -> None:
    status = tapped.status()
    assert {target.wire for target in status.targets} == {"encrypt"}
    assert status.coordinator.wire == "encrypt"
    with ckpt.open(tapped.url) as store:
        store.save(RUN, 1, {NAME: VALUES}).wait(WAIT_S)
        check(store)
        drained(tapped, tmp_path / "store")
        lose_a_host(tapped)
        check(store)
        mended(tapped)
        assert store.verify(RUN, 1).state == "healthy"
        store.save(RUN, 2, {NAME: VALUES[::-1].copy()}).wait(WAIT_S)
        assert np.array_equal(store.load(RUN, 2)[NAME], VALUES[::-1])
    assert seen(tapped.said(Way.UP)) == (0, False)
    assert seen(tapped.said(Way.DOWN)) == (0, False)
    assert len(tapped.said(Way.UP)) > 3 * len(VALUES), "two saves of 4+2, and they were here"


@pytest.mark.parametrize("tapped", ["auto"], indirect=True)
def test_a_client_that_insists_is_not_read_where_others_may_be(
    tapped: TappedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_WIRE", "encrypt")
    with ckpt.open(tapped.url) as store:
        store.save(RUN, 1, {NAME: VALUES}).wait(WAIT_S)
        check(store)
    for way in Way:
        assert seen(tapped.said(way))[0] == 0
    assert len(tapped.said(Way.UP)) > len(VALUES)


@pytest.mark.parametrize("tapped", ["plain"], indirect=True)
def test_a_client_that_insists_uses_no_cluster_that_gives_less(
    tapped: TappedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_WIRE", "mac")
    with pytest.raises(ckpt.Refused, match="CKPT_WIRE=mac"), ckpt.open(tapped.url) as store:
        store.save(RUN, 1, {NAME: VALUES}).wait(WAIT_S)
    known = environment(CKPT_SECRET_FILE=str(tapped.secret_file))
    found = run("status", "--store", tapped.url, environ=known)
    assert found.code == ckpt.Refused.exit_code
    assert "the coordinator gives its sessions 'plain'" in found.err
    assert "set wire to" in found.err


def check(store: ckpt.Store) -> None:
    assert np.array_equal(store.load(RUN, 1)[NAME], VALUES)


def worker(cluster: TappedCluster, program: str, *flags: str) -> Daemon:
    return Daemon(
        program, "--coordinator", cluster.coordinators, "--poll-s", "0.1",
        "--secret-file", str(cluster.secret_file), *flags, log=cluster.log_of(program),
    )  # fmt: skip


def drained(cluster: TappedCluster, bucket: Path) -> None:
    bucket.mkdir()
    drain = worker(cluster, "drain", "--to", bucket.as_uri())
    try:
        wait_until(
            lambda: [step for step, _ in stored_steps(FileSink(bucket), RunName(RUN))] == [Step(1)],
            "it is in the store", WAIT_S,
        )  # fmt: skip
    finally:
        drain.end(signal.SIGTERM)


def lose_a_host(cluster: TappedCluster) -> None:
    cluster.kill_host(0)
    assert not is_whole(cluster, 1)


def mended(cluster: TappedCluster) -> None:
    repair = worker(cluster, "repair")
    try:
        wait_until(lambda: is_whole(cluster, 1), "it is whole", WAIT_S, ASKED_S)
    finally:
        repair.end(signal.SIGTERM)
