"""A lingering stager's memory goes to exactly who asks for exactly what it holds."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ckpt.aio.clock import now_us
from ckpt.aio.net.socketpath import runtime_directory
from ckpt.base.errors import Refused
from ckpt.base.ids import CheckpointId, Generation, Rank, RunName, Step
from ckpt.base.units import MiB
from ckpt_client.stager.arena import Half, drop_half, make_half
from ckpt_client.stager.memory import (
    REQUEST_BYTES_MAX,
    HeldMemory,
    MemoryGrant,
    MemoryRequest,
    MemoryServer,
    answer_reader,
    memory_source,
    socket_prefix,
)
from ckpt_client.stager.readers import Readers
from tests.deep import too_deep

RUN = RunName("a run")
CHECKPOINT = CheckpointId(RUN, Step(3), Generation(1, 2))
DIGEST = b"d" * 16
MANIFEST = b"what the digest is of"


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime directory of the test's own, with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ckpt-") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield


@pytest.fixture
def half() -> Iterator[Half]:
    made = make_half(2 * MiB)
    made.memory[:5] = b"bytes"
    yield made
    drop_half(made)


@pytest.fixture
def serving(half: Half) -> Iterator[None]:
    """A stager's readers, served on a thread until the test ends."""

    def look_up(request: MemoryRequest) -> HeldMemory | None:
        exact = request == MemoryRequest(CHECKPOINT, 0, DIGEST, True)
        return HeldMemory(half.descriptor, 5, MANIFEST) if exact else None

    readers = Readers(Rank(0), look_up)
    readers.serve_runs("cluster", {RUN})
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.002):
            readers.serve(now_us())

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    ended.set()
    thread.join()
    readers.close()


@pytest.mark.usefixtures("serving")
def test_the_exact_generation_is_served_and_cannot_be_written() -> None:
    found = memory_source("cluster", RUN, Rank(0), CHECKPOINT, DIGEST)
    assert found is not None
    assert bytes(found.payload) == b"bytes"
    assert found.payload.readonly
    assert found.manifest == MANIFEST


@pytest.mark.parametrize(("size", "asks", "comes"), [(10, False, 0), (64 << 10, True, 64 << 10)])
def test_a_manifest_comes_to_who_asks_for_it(half: Half, size: int, asks: bool, comes: int) -> None:
    request = msgspec.msgpack.encode(MemoryRequest(CHECKPOINT, 0, DIGEST, asks))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(request)
        answer_reader(theirs, lambda _: HeldMemory(half.descriptor, 5, bytes(size)))
        packet, descriptors, _, _ = socket.recv_fds(ours, 1 << 20, 1)
    os.close(*descriptors)
    assert msgspec.msgpack.decode(packet, type=MemoryGrant) == MemoryGrant(5, 0, bytes(comes))


def test_a_manifest_that_is_too_long_stays_where_it_is(half: Half) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(msgspec.msgpack.encode(MemoryRequest(CHECKPOINT, 0, DIGEST, True)))
        answer_reader(theirs, lambda _: HeldMemory(half.descriptor, 5, bytes((64 << 10) + 1)))
        packet, descriptors, _, _ = socket.recv_fds(ours, 4096, 1)
    os.close(*descriptors)
    assert msgspec.msgpack.decode(packet, type=MemoryGrant) == MemoryGrant(5)


REQUEST = msgspec.msgpack.encode(MemoryRequest(CHECKPOINT, 0, DIGEST, False))


@pytest.mark.parametrize("said", [b"", b"no request", REQUEST[:-1], None])
def test_who_says_what_cannot_be_read_ends_its_connection_alone(said: bytes | None) -> None:
    """Also arrays within arrays, so deep that no decoder goes there: a stager ended by these."""
    if said is None:
        said = b"\x95" + REQUEST[1:] + too_deep(REQUEST_BYTES_MAX - len(REQUEST))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(said)
        answer_reader(theirs, lambda _: None)
        assert ours.recv(1) == b""


def test_a_reader_of_an_earlier_version_is_answered(half: Half) -> None:
    """It names three things, and takes two."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked: list[MemoryRequest] = []

    def look_up(request: MemoryRequest) -> HeldMemory:
        asked.append(request)
        return HeldMemory(half.descriptor, 5, MANIFEST)

    with ours:
        ours.send(msgspec.msgpack.encode((CHECKPOINT, 0, DIGEST)))
        answer_reader(theirs, look_up)
        packet, descriptors, _, _ = socket.recv_fds(ours, 4096, 1)
    os.close(*descriptors)
    assert asked == [MemoryRequest(CHECKPOINT, 0, DIGEST)]
    assert msgspec.msgpack.decode(packet)[:2] == [5, 0]


@pytest.mark.usefixtures("serving")
def test_another_generation_digest_rank_run_or_cluster_is_not() -> None:
    other = CheckpointId(RUN, Step(3), Generation(1, 3))
    assert memory_source("cluster", RUN, Rank(0), other, DIGEST) is None
    assert memory_source("cluster", RUN, Rank(0), CHECKPOINT, b"e" * 16) is None
    assert memory_source("cluster", RUN, Rank(1), CHECKPOINT, DIGEST) is None
    assert memory_source("cluster", RunName("b"), Rank(0), CHECKPOINT, DIGEST) is None
    assert memory_source("cluster2", RUN, Rank(0), CHECKPOINT, DIGEST) is None


def test_a_run_whose_bytes_are_gone_is_not_listened_for(half: Half) -> None:
    readers = Readers(Rank(0), lambda _request: HeldMemory(half.descriptor, 5))
    for number in range(20):
        readers.serve_runs("cluster", {RunName(f"run {number}"), RunName(f"run {number + 1}")})
        assert len(readers.descriptors) == 2
    assert len(list(runtime_directory().iterdir())) == 2
    readers.close()
    assert list(runtime_directory().iterdir()) == []


def test_without_a_stager_there_is_nothing() -> None:
    assert memory_source("cluster", RUN, Rank(0), CHECKPOINT, DIGEST) is None


def test_a_directory_too_long_for_sockets_is_an_error_that_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 25)))
    (tmp_path / ("long" * 25)).mkdir()
    with pytest.raises(OSError, match="too long"):
        MemoryServer("cluster", RUN, Rank(0))


def test_the_socket_of_a_killed_stager_is_cleared_away() -> None:
    server = MemoryServer("cluster", RUN, Rank(0))
    server.socket.close()  # As a SIGKILL leaves it: the name stays.
    assert memory_source("cluster", RUN, Rank(0), CHECKPOINT, DIGEST) is None
    assert not list(runtime_directory().glob(f"{socket_prefix('cluster', RUN, Rank(0))}.*"))
    server.close()


def _bound(name: str, kind: socket.SocketKind) -> Path:
    """A socket that was bound an hour ago by somebody who is gone."""
    path = runtime_directory() / name
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(path))
    os.utime(path, (time.time() - 3600,) * 2)
    return path


@pytest.mark.usefixtures("serving")
def test_a_stager_clears_away_what_killed_ones_of_other_runs_left() -> None:
    listening = next(runtime_directory().iterdir())
    os.utime(listening, (time.time() - 3600,) * 2)
    dead = [_bound("one.1", socket.SOCK_SEQPACKET), _bound("two", socket.SOCK_STREAM)]
    just_bound = _bound("three.3", socket.SOCK_SEQPACKET)
    just_bound.touch()
    no_socket = runtime_directory() / "notes"
    no_socket.write_text("mine")
    os.utime(no_socket, (time.time() - 3600,) * 2)
    server = MemoryServer("cluster", RunName("another run"), 0)
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in (listening, just_bound, no_socket))
    assert memory_source("cluster", RUN, Rank(0), CHECKPOINT, DIGEST) is not None
    server.close()


def test_a_directory_that_others_can_enter_is_refused() -> None:
    runtime_directory().chmod(0o755)
    with pytest.raises(Refused):
        runtime_directory()


def test_who_may_open_nothing_more_finds_nothing_in_memory() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    runtime_directory()
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert memory_source("cluster", RUN, Rank(0), CHECKPOINT, DIGEST) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_arena_memory_cannot_be_shrunk_under_its_users(half: Half) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(half.descriptor, 4096)
