"""Daemons apart from each other, a client that knows HOST:PORT: losses, restarts, rebuilding."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.ids import RunName, Step
from ckpt.format.messages.asking import Ask, DeleteStep, StepDeleted
from ckpt.format.messages.hello import Role
from ckpt.format.messages.targets import ListColumns
from ckpt.protocol.handshake import Caller
from tests.client.bits import bits_of
from tests.e2e_remote.cluster import RemoteCluster
from tests.waiting import wait_until

RANKS = 2
TIMEOUT_S = 60.0
MANY = 4600
NAME_CHARS = 240


def state_of(rank: int, version: int) -> dict[str, object]:
    seed = np.random.default_rng(100 * version + rank)
    return {
        "own": seed.standard_normal(60_000),
        "same": ckpt.Replicated({"p": np.full(300_000, version, "f4"), "lr": 0.1}),
        "m": ckpt.Shard(np.full((10, 100), rank + version), (10 * RANKS, 100), (10 * rank, 0)),
        "step": version,
    }


def save(store: ckpt.Store, run: str, step: int) -> list[ckpt.Save]:
    return [
        store.save(run, step, state_of(r, step), rank=r, world_size=RANKS) for r in range(RANKS)
    ]


def check(store: ckpt.Store, run: str, step: int) -> None:
    """Every rank's tree is there, bit by bit."""
    for rank in range(RANKS):
        found = store.load(run, step, rank=rank, world_size=RANKS)
        assert isinstance(found, dict)
        wanted = state_of(rank, step)
        assert bits_of(found["own"]) == bits_of(wanted["own"])
        assert bits_of(found["m"].array) == bits_of(wanted["m"].array)  # type: ignore[attr-defined]
        assert bits_of(found["same"]["p"]) == bits_of(np.full(300_000, step, "f4"))
        assert found["step"] == step


def end_stagers(store: ckpt.Store) -> None:
    """So that bytes come from the targets, and nothing is handed over again."""
    for link in store._stagers.links.values():
        os.kill(link.pid, signal.SIGKILL)


def test_a_lost_host_costs_nothing_but_redundancy(
    cluster: RemoteCluster, store: ckpt.Store
) -> None:
    commits = [saved.wait(TIMEOUT_S) for saved in save(store, "hosts", 1)]
    commit = commits[0]
    assert set(commits) == {commit}
    assert (commit.targets_survivable, commit.domains_survivable) == (2, 1)
    (at_commit,) = store.steps("hosts")
    assert at_commit.domains_survivable == 1
    end_stagers(store)
    cluster.kill_host(2)
    try:
        check(store, "hosts", 1)
        health = {each.name for each in cluster.status().checks}
        assert {"TARGET_DOWN", "REDUNDANCY_LOW"} <= health
        degraded = [saved.wait(TIMEOUT_S) for saved in save(store, "hosts", 2)]
        assert degraded[0].domains_survivable == 1, "three hosts hold two columns each"
        check(store, "hosts", 2)
    finally:
        cluster.start_host(2)
        cluster.wait_live()
    check(store, "hosts", 1)


def test_a_coordinator_that_is_killed_comes_back_on_its_port_and_saves_go_on(
    cluster: RemoteCluster, store: ckpt.Store
) -> None:
    for saved in save(store, "restart", 1):
        saved.wait(TIMEOUT_S)
    first = cluster.coordinator.address
    under_way = save(store, "restart", 2)
    cluster.coordinator.end()
    cluster.start_coordinator()
    assert cluster.coordinator.address == first
    assert {saved.wait(TIMEOUT_S).step for saved in under_way} == {2}
    assert [commit.step for commit in store.steps("restart")] == [1, 2]
    for step in (1, 2):
        check(store, "restart", step)


def test_an_open_save_waits_for_the_rank_that_comes_only_after_a_restart(
    cluster: RemoteCluster,
) -> None:
    with ckpt.open(cluster.url, launch="job/0") as store:
        early = store.save("open", 1, {"a": 1}, rank=0, world_size=2)
        wait_until(lambda: len(cluster.status().attempts) == 1, "the attempt is open")
        cluster.coordinator.end()
        cluster.start_coordinator()
        late = store.save("open", 1, {"a": 2}, rank=1, world_size=2)
        assert early.wait(TIMEOUT_S) == late.wait(TIMEOUT_S)


def test_without_the_secret_nothing_is_told(
    cluster: RemoteCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "secret"
    wrong.touch(mode=0o600)
    wrong.write_text(secrets.token_hex(32))
    name = str(cluster.coordinator.ready["cluster"])
    with monkeypatch.context() as patched:
        patched.setenv("CKPT_SECRET_FILE", str(wrong))
        with pytest.raises(ckpt.Unauthorized) as caught:
            ckpt.open(cluster.url)
    assert name not in str(caught.value)
    assert caught.value.message.startswith(f"{cluster.coordinator.address}: the coordinator there")
    assert f"secret is in {wrong}" in caught.value.hint
    target = next(iter(cluster.targets.values())).address
    questions = ((cluster.coordinator.address, Ask("runs")), (target, ListColumns()))
    for address, question in questions:
        with (
            RpcClient(address, Caller(b"x" * 32, Role.ADMIN, "spy")) as spy,
            pytest.raises(ckpt.Unauthorized),
        ):
            spy.call(question)
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=30.0) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
            heard = b""
            while part := raw.recv(4096):
                heard += part
        assert name.encode() not in heard
        assert len(heard) < 256


def rebuilt(cluster: RemoteCluster, *program: str) -> dict[str, object]:
    """What the command prints; nothing may run on the catalog meanwhile."""
    addresses = " ".join(daemon.address for daemon in cluster.targets.values())
    command = [sys.executable, "-W", "error", "-m", *program, "--targets", addresses]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_a_deleted_catalog_is_rebuilt_from_the_targets_and_says_what_stays_away(
    cluster: RemoteCluster, store: ckpt.Store
) -> None:
    for saved in save(store, "lost", 1):
        saved.wait(TIMEOUT_S)
    random = np.random.default_rng(1)
    letters = random.integers(ord("a"), ord("z") + 1, (MANY, NAME_CHARS), dtype=np.uint8)
    many = {row.tobytes().decode(): np.full(2, n) for n, row in enumerate(letters)}
    store.save("large", 1, many).wait(TIMEOUT_S)
    index_bytes = max(
        file.stat().st_size
        for id in cluster.targets
        for file in (cluster.directory / id / "documents").iterdir()
    )
    assert index_bytes > 1 << 20
    store.save("deleted", 1, {"a": 1}).wait(TIMEOUT_S)
    with cluster.client() as client:
        answer, _ = client.call(DeleteStep(RunName("deleted"), Step(1)), timeout_s=30.0)
    assert isinstance(answer, StepDeleted)
    half = store.save("half", 1, {"a": 1}, rank=0, world_size=2)
    wait_until(
        lambda: any(a.run == "half" and a.ranks_certified for a in cluster.status().attempts),
        "one rank's columns are sealed",
    )
    end_stagers(store)
    with pytest.raises(ckpt.Aborted):
        half.wait(TIMEOUT_S)
    before = {run: store.steps(run) for run in ("lost", "large")}

    directory = str(cluster.coordinator_directory)
    programs = (
        ("ckptd.cli", "rebuild-catalog", "--directory", directory),
        ("ckpt_client.cli.main", "--json", "catalog", "rebuild", directory),
    )
    for program in programs:
        cluster.lose_catalog()
        found = rebuilt(cluster, *program)
        if "catalogs" in found:
            (found,) = found["catalogs"]  # type: ignore[misc]
        committed, refused = found["committed"], found["refused"]
        assert isinstance(committed, list)
        assert isinstance(refused, list)
        assert {"lost@1", "large@1"} <= {each.partition("#")[0] for each in committed}
        reasons = {each["checkpoint"].partition("#")[0]: each["reason"] for each in refused}
        # Its tombstones stay until every target has confirmed that it holds nothing more.
        assert reasons.get("deleted@1") in (None, "tombstoned: deleted on request")
        assert "deleted@1" not in {each.partition("#")[0] for each in committed}
        assert "never committed" in reasons["half@1"]
        cluster.start_coordinator()
        cluster.wait_live()
        assert {run: store.steps(run) for run in ("lost", "large")} == before
        assert store.steps("deleted") == store.steps("half") == []
        check(store, "lost", 1)
    found_many = store.load("large", 1)
    assert isinstance(found_many, dict)
    assert all(bits_of(found_many[name]) == bits_of(value) for name, value in many.items())
    assert len(found_many) == MANY
    for saved in save(store, "lost", 2):
        assert saved.wait(TIMEOUT_S).step == 2
