"""A drain worker that lacks descriptors (F18), memory (F30), or room in its store (F5): it says so,
spoils nothing, holds no save up, and goes on by itself once it has what it needs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.errors import CkptError
from ckpt.base.units import MiB
from ckpt.objects.sinks.file_sink import FileSink
from ckptd.drain.daemon import DrainConfig, run_drain
from ckptd.drain.worker import StoreWorker
from tests.e2e.cluster import Cluster, command
from tests.objects.drainkit import (
    DRAIN_TIMEOUT_S,
    Drain,
    assert_once_and_whole,
    assert_same,
    save,
    wait_drained,
)
from tests.waiting import ASKED_S, wait_until

CLUSTER_OPTIONS = "targets=3&code=2+1"
SMALL_DISK = 'mount -t tmpfs -o size=8m none "$1" && shift && exec "$@"'
MEMORY_BYTES = 128 * MiB
"""What the worker is told that it may use, the least for two threads."""
ELSE_BYTES = 160 * MiB
"""Threads' stacks, connections, the allocator's own."""
BIG_BYTES = 400 * MiB
"""Of a checkpoint: more than the worker could hold at once."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path)


def stores(cluster: Cluster) -> dict[str, str]:
    """Those that are served, and what `ckpt status` says is wrong with each."""
    shown = json.loads(command("status", "--json", "--store", cluster.url).out)
    return {str(one["url"]): str(one["error"]) for one in shown["stores"]}


def told(cluster: Cluster, url: str) -> str:
    return stores(cluster).get(url, "")


def started(cluster: Cluster, sink: FileSink, run: str, *options: str) -> Iterator[Drain]:
    """A worker that has drained once, so that all its code is there; ended behind the test."""
    to = f"{sink.url}?runs={run}"
    drain = Drain(cluster.directory, to, "--compression", "none", *options, cold=True)
    try:
        wait_drained(sink, run, 1)
        yield drain
        assert drain.stop() == 0
    finally:
        drain.process.kill()


def number_of_descriptors(drain: Drain) -> int:
    return len(os.listdir(f"/proc/{drain.process.pid}/fd"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_without_descriptors_says_so_and_goes_on_when_it_has_some(
    cluster: Cluster, store: ckpt.Store, sink: FileSink
) -> None:
    save(store, "descriptors", 1)
    for drain in started(cluster, sink, "descriptors"):
        pid = drain.process.pid
        whole = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (number_of_descriptors(drain), whole[1]))
        save(store, "descriptors", 2)
        said = lambda: "Too many open files" in told(cluster, sink.url)  # noqa: E731
        wait_until(said, "status names the cause", DRAIN_TIMEOUT_S, ASKED_S)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, whole)
        wait_drained(sink, "descriptors", 1, 2)
        assert_once_and_whole(sink, "descriptors", 2)
        assert_same(ckpt.load(f"{sink.url}/descriptors@2", whole=True), 2)
        wait_until(lambda: not told(cluster, sink.url), "nothing is wrong any more")
        assert drain.process.poll() is None


def test_a_worker_keeps_the_memory_that_it_was_told(
    cluster: Cluster, store: ckpt.Store, sink: FileSink
) -> None:
    options = ("--threads", "2", "--memory-bytes", str(MEMORY_BYTES), "--compression", "none")
    drain = Drain(cluster.directory, f"{sink.url}?runs=capped", *options, cold=True)
    try:
        wait_until(lambda: sink.url in stores(cluster), "it serves", DRAIN_TIMEOUT_S, ASKED_S)
        cap(drain, MEMORY_BYTES + ELSE_BYTES)  # Before it has anything in hand.
        words = np.arange(BIG_BYTES // 8, dtype="<i8")
        store.save("capped", 1, {"w": words}, rank=0, world_size=1).wait(DRAIN_TIMEOUT_S)
        wait_drained(sink, "capped", 1)
        # The cap is the proof: what is beyond it would have been refused by the system.
        assert not stores(cluster)[sink.url]
        assert_once_and_whole(sink, "capped", 1)
        assert drain.stop() == 0
    finally:
        drain.process.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_gets_too_little_memory_goes_on_when_it_gets_enough(
    cluster: Cluster, store: ckpt.Store, sink: FileSink
) -> None:
    save(store, "starved", 1)
    for drain in started(cluster, sink, "starved"):
        cap(drain, 0)
        save(store, "starved", 2)
        said = lambda: "memory" in told(cluster, sink.url)  # noqa: E731
        wait_until(said, "status names the cause", DRAIN_TIMEOUT_S, ASKED_S)
        resource.prlimit(drain.process.pid, resource.RLIMIT_DATA, (-1, -1))
        wait_drained(sink, "starved", 1, 2)
        assert_once_and_whole(sink, "starved", 2)
        assert_same(ckpt.load(f"{sink.url}/starved@2", whole=True), 2)
        assert drain.process.poll() is None


def cap(drain: Drain, more_bytes: int) -> None:
    """From now on it gets so much more private memory, then no more."""
    pid = drain.process.pid
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmData:"))
    limit = int(line.split()[1]) * 1024 + more_bytes
    resource.prlimit(pid, resource.RLIMIT_DATA, (limit, -1))


def test_a_store_without_room_is_told_and_filled_when_there_is_some(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh"]
    try:
        subprocess.run([*namespace, str(tmp_path), "true"], capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no user namespaces here, so no small file system without root")
    save(store, "full", 1)
    url = f"file://{tmp_path}"
    options = ("--compression", "none")
    drain = Drain(
        cluster.directory, f"{url}?runs=full", *options, within=(*namespace, str(tmp_path))
    )
    try:
        disk = Path(f"/proc/{drain.process.pid}/root{tmp_path}")
        sink = FileSink(disk)
        said = lambda: "No space left" in told(cluster, url)  # noqa: E731
        wait_until(said, "status names the cause", DRAIN_TIMEOUT_S, ASKED_S)
        assert not [key for key in sink.list("") if "COMMITTED" in key]
        save(store, "full", 2)
        assert [commit.step for commit in store.steps("full")] == [1, 2]
        grow(drain, tmp_path)
        wait_drained(sink, "full", 1, 2)
        for step in (1, 2):
            assert_once_and_whole(sink, "full", step)
        assert drain.stop() == 0
    finally:
        with suppress(ProcessLookupError):
            drain.process.kill()


def grow(drain: Drain, place: Path) -> None:
    """Its disk gets larger."""
    enter = ["nsenter", "--user", "--mount", "--preserve-credentials"]
    line = [*enter, "--target", str(drain.process.pid), "mount"]
    subprocess.run([*line, "-o", "remount,size=512m", str(place)], check=True)


def test_a_defect_of_a_worker_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With nobody to serve its store it would look alive for ever."""

    def run(_worker: StoreWorker, _poll_s: float, _stopped: threading.Event) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(StoreWorker, "run", run)
    monkeypatch.setattr(signal, "signal", lambda _number, _handler: None)
    with pytest.raises(CkptError, match="stopped by a defect: ZeroDivisionError: planted"):
        run_drain(DrainConfig(to=f"file://{tmp_path}", coordinator="127.0.0.1:1"), bytes(32))
