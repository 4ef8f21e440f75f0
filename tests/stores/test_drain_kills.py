"""`ckptd drain` into a real S3 server, killed with SIGKILL at a random request of its own.

The proxy strikes in the middle of a request, before or after the store has done it: between any two
effects of a drain there is such a point. A worker that comes after it must find the checkpoint
whole or finish it, without writing finished items again and without leaving a part behind.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import ckpt
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from tests.e2e.cluster import Cluster
from tests.landing import in_turn
from tests.objects.drainkit import Drain, assert_once_and_whole, assert_same, save, wait_drained
from tests.stores.gateway import S3
from tests.stores.proxy import Fault, Proxy, Request
from tests.waiting import wait_until

KILLS = int(os.environ.get("CKPT_DRAIN_KILLS", "2"))
"""Seeds of `make test-stores`, others at each landing; `make soak` runs all the rest."""
KILLS_SOAK = max(200, KILLS)
END_TIMEOUT_S = 120.0
"""Its python has to start first, on a busy machine."""


CLUSTER_OPTIONS = "targets=3&code=2+1"


@pytest.fixture(scope="module")
def request_count(cluster: Cluster, store: ckpt.Store, s3: S3) -> int:
    """How many requests one drain makes here, measured once."""
    proxy = Proxy(s3.port)
    sink = new_bucket(s3)
    save(store, "measured", 1)
    drain = start(cluster, s3.at(proxy.port), sink, "measured")
    try:
        wait_drained(sink, "measured", 1)
        assert_once_and_whole(sink, "measured", 1)
    finally:
        assert drain.stop() == 0
        proxy.close()
    return len(writes(proxy))


@pytest.mark.parametrize("seed", in_turn(range(KILLS_SOAK), KILLS_SOAK // KILLS))
def test_killed_anywhere_once_and_whole(
    cluster: Cluster, store: ckpt.Store, s3: S3, request_count: int, seed: int
) -> None:
    rng = random.Random(seed)
    run, sink, proxy = f"killed-{seed}", new_bucket(s3), Proxy(s3.port)
    at, fault = rng.randrange(request_count), rng.choice((Fault.CUT_BEFORE, Fault.CUT_AFTER))
    save(store, run, 1)
    drain = start(cluster, s3.at(proxy.port), sink, run)

    def decide(request: Request) -> Fault:
        if len(writes(proxy)) < at or request.method == "GET":
            return Fault.NONE
        drain.process.kill()
        return fault if fault is Fault.CUT_BEFORE or len(writes(proxy)) == at else Fault.CUT_BEFORE

    proxy.decide = decide
    try:
        wait_until(lambda: drain.process.poll() is not None, f"seed {seed}: killed", END_TIMEOUT_S)
    finally:
        drain.kill()
        proxy.close()
    again = start(cluster, s3, sink, run)
    try:
        wait_drained(sink, run, 1)
        assert_once_and_whole(sink, run, 1)
        found = ckpt.load(f"{sink.url}/{run}@1", whole=True, storage_options=s3.fsspec_options)
        assert_same(found, 1)
    finally:
        assert again.stop() == 0, f"seed {seed}: request {at}, {fault.value}"


def writes(proxy: Proxy) -> list[Request]:
    """Requests that may have changed something."""
    return [request for request, _ in list(proxy.log) if request.method != "GET"]


def start(cluster: Cluster, s3: S3, sink: FsspecSink, run: str) -> Drain:
    options = ("--compression", "none", "--threads", "2")
    to = f"{sink.url}?runs={run}"
    return Drain(Path(cluster.directory), to, *options, environment=s3.environment)


def new_bucket(s3: S3) -> FsspecSink:
    """An empty place, seen directly."""
    name = f"kills-{random.Random().getrandbits(48):012x}"
    FsspecSink("s3://", s3.fsspec_options).call_s3("create_bucket", Bucket=name)
    return FsspecSink(f"s3://{name}/place", s3.fsspec_options)
