"""F18, F30: a repair worker that gets no more memory than it says it needs, and one that has no
descriptors for a while.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import ckpt
from ckpt.base.units import MiB
from ckpt.format.messages.asking import Ask
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.e2e_remote.test_memory_caps import cap
from tests.e2e_remote.test_repair import (
    AGAIN_S,
    RUN,
    check,
    is_whole,
    lose,
    repair_worker,
    replace_target,
    state,
)
from tests.waiting import ASKED_S, wait_until

WHOLE_S = 2 * AGAIN_S
"""What has failed twice in the same way rests for a minute."""
WORKER_BYTES = 256 * MiB
"""What a worker takes for what it makes."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")


@pytest.fixture
def mending(tmp_path: Path) -> Iterator[RemoteCluster]:
    with started(RemoteCluster(tmp_path, ("--rebuild-after-s", "1"))) as made:
        yield made


def wait_whole(cluster: RemoteCluster) -> None:
    wait_until(lambda: is_whole(cluster, 1), "all is whole", timeout_s=WHOLE_S, poll_s=ASKED_S)


def loses_one(cluster: RemoteCluster) -> None:
    """And an empty disk takes its place."""
    id = min(cluster.targets)
    lose(cluster, id)
    replace_target(cluster, id)


def test_a_worker_keeps_to_the_memory_that_it_needs(mending: RemoteCluster) -> None:
    worker = repair_worker(mending)
    try:
        cap(worker, WORKER_BYTES)
        with ckpt.open(mending.url) as store:
            store.save(RUN, 1, state(1)).wait(AGAIN_S)
            loses_one(mending)
            wait_whole(mending)
            check(store, 1)
        # The cap is the proof: what is beyond it would have been refused, and ended it.
        assert worker.process.poll() is None
    finally:
        worker.end(signal.SIGTERM)
    assert "MemoryError" not in (mending.directory / "repair.log").read_text()


def test_a_worker_without_descriptors_makes_all_when_it_has_some(mending: RemoteCluster) -> None:
    worker = repair_worker(mending)
    try:
        with ckpt.open(mending.url) as store:
            store.save(RUN, 1, state(1)).wait(AGAIN_S)
            soft, hard = allowed(worker, None)
            allowed(worker, (open_files(worker), hard))
            loses_one(mending)
            wait_until(
                lambda: failures(mending) > 0, "it has failed at one", timeout_s=AGAIN_S,
                poll_s=ASKED_S,
            )  # fmt: skip
            assert not is_whole(mending, 1)
            allowed(worker, (soft, hard))
            wait_whole(mending)
            check(store, 1)
        assert worker.process.poll() is None
    finally:
        worker.end(signal.SIGTERM)
    log = (mending.directory / "repair.log").read_text()
    assert os.strerror(errno.EMFILE) in log
    assert "Traceback" not in log


def allowed(worker: Daemon, limits: tuple[int, int] | None) -> tuple[int, int]:
    """How many descriptors it may have, and may be given; as it was before."""
    if limits is None:
        return resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE, limits)


def open_files(worker: Daemon) -> int:
    return len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir()))


def failures(cluster: RemoteCluster) -> int:
    """Tasks that ended with an error, as the coordinator counts them."""
    with cluster.client() as client:
        _, bulk = client.call(Ask("repair"), timeout_s=30.0)
    return msgspec.json.decode(bytes(bulk), type=RepairView).failed
