"""Why a store cannot be used at all is told, and the next step; it is not hammered meanwhile."""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path

import pytest

import ckpt
from ckpt.base.errors import CkptError, NotFound, Unauthorized, Unavailable
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.obstore_sink import ObstoreSink
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.sink import Sink
from tests.e2e.cluster import Cluster, command
from tests.objects.drainkit import Drain, assert_once_and_whole, save, wait_drained
from tests.stores.gateway import S3, free_port
from tests.stores.proxy import Fault, Proxy, Request
from tests.waiting import wait_until

PATIENCE = Patience(2.0)
REQUESTS_OF_A_TRY_MAX = 8
START_TIMEOUT_S = 120.0


CLUSTER_OPTIONS = "targets=3&code=2+1"


def opened(kind: str, s3: S3, bucket: str) -> Sink:
    if kind == "s3fs":
        return FsspecSink(f"s3://{bucket}/place", s3.fsspec_options, PATIENCE)
    return ObstoreSink(f"s3://{bucket}/place", s3.obstore_options, PATIENCE, timeout_s=2.0)


@pytest.mark.parametrize("kind", ["s3fs", "obstore"])
@pytest.mark.parametrize(
    ("harm", "error", "cause", "hint"),
    [
        ("bucket", NotFound, "there is no such bucket", "create it, or see the store's URL"),
        ("secret", Unauthorized, "SignatureDoesNotMatch", "see the store's credentials"),
        ("key", Unauthorized, "InvalidAccessKeyId", "see the store's credentials"),
        ("down", Unavailable, "onnect", "see whether the store answers"),
    ],
)
def test_why_a_store_cannot_be_used_is_told(
    s3: S3, bucket: str, kind: str, harm: str, error: type[CkptError], cause: str, hint: str
) -> None:
    reached = {
        "bucket": s3,
        "secret": S3(s3.port, s3.access_key, "wrong"),
        "key": S3(s3.port, "nobody", s3.secret_key),
        "down": s3.at(free_port()),
    }[harm]
    sink = opened(kind, reached, "nowhere" if harm == "bucket" else bucket)
    for ask in (lambda: sink.conditional, lambda: sink.put("a", b".")):
        with pytest.raises(error) as told:
            ask()
        assert cause in told.value.message or (kind == "obstore" and harm == "down")
        assert (told.value.hint, sink.url in told.value.message) == (hint, True)


@pytest.mark.parametrize("harm", ["secret", "key"])
def test_obstores_listing_tells_wrong_credentials_at_once(s3: S3, bucket: str, harm: str) -> None:
    wrong = {"secret": S3(s3.port, s3.access_key, "wrong"), "key": S3(s3.port, "nobody", "x")}
    sink = opened("obstore", wrong[harm], bucket)
    for ask in (lambda: list(sink.list("")), lambda: sink.children("")):
        with pytest.raises(Unauthorized, match="see the store's credentials"):
            ask()


@pytest.mark.parametrize("kind", ["s3fs", "obstore"])
def test_a_probe_whose_answer_was_lost_finds_the_store_conditional(
    s3: S3, bucket: str, kind: str
) -> None:
    proxy, struck = Proxy(s3.port), list[int]()

    def decide(request: Request) -> Fault:
        if request.method == "PUT" and not struck:
            struck.append(request.number)
            return Fault.CUT_AFTER
        return Fault.NONE

    proxy.decide = decide
    try:
        sink = opened(kind, s3.at(proxy.port), bucket)
        assert sink.conditional
        assert struck
        assert list(sink.list("")) == []
    finally:
        proxy.close()


def test_a_drain_waits_for_its_bucket_says_so_and_goes_on(
    cluster: Cluster, store: ckpt.Store, s3: S3, tmp_path: Path
) -> None:
    proxy, run = Proxy(s3.port), "early"
    bucket = f"late-{secrets.token_hex(6)}"
    sink = FsspecSink(f"s3://{bucket}/place", s3.fsspec_options)
    save(store, run, 1)
    log = tmp_path / "drain.log"
    to, through = f"{sink.url}?runs={run}", s3.at(proxy.port).environment
    drain = Drain(Path(cluster.directory), to, environment=through, log=log)

    def told() -> int:
        return log.read_text().count("cannot drain")

    try:
        wait_until(lambda: told() > 2, "it tells more than once", START_TIMEOUT_S)
        assert "there is no such bucket" in log.read_text()
        shown = store_status(cluster, sink.url)
        assert shown["state"] == "unreached"
        assert "there is no such bucket" in str(shown["error"])
        assert len(proxy.log) <= REQUESTS_OF_A_TRY_MAX * (told() + 1)
        FsspecSink("s3://", s3.fsspec_options).call_s3("create_bucket", Bucket=bucket)
        wait_drained(sink, run, 1)
        assert_once_and_whole(sink, run, 1)
        assert store_status(cluster, sink.url)["error"] == ""
    finally:
        assert drain.stop() == 0
        proxy.close()


def test_stores_that_go_away_in_the_middle_of_a_drain_are_told_and_gone_on_with(
    cluster: Cluster, store: ckpt.Store, s3: S3, bucket: str, tmp_path: Path
) -> None:
    run, urls = "midst", [f"s3://{bucket}/parts", f"obstore+s3://{bucket}/once"]
    sinks = [FsspecSink(f"s3://{bucket}/{name}", s3.fsspec_options) for name in ("parts", "once")]
    save(store, run, 1)
    proxy, begun, away = Proxy(s3.port), set[str](), threading.Event()

    def decide(request: Request) -> Fault:
        place = request.path.split("/")[2:3]
        if request.method == "PUT" and "/tensors/" in request.path:
            begun.update(place)
        if len(begun) == len(urls):
            away.set()
        return Fault.CUT_BEFORE if begun.issuperset(place) and place else Fault.NONE

    proxy.decide = decide
    to, through = " ".join(f"{url}?runs={run}" for url in urls), s3.at(proxy.port).environment
    patience = ("--compression", "none", "--patience-s", "2")
    log = tmp_path / "drain.log"
    drain = Drain(Path(cluster.directory), to, *patience, environment=through, log=log)
    try:
        assert away.wait(START_TIMEOUT_S)
        proxy.close()  # Nobody listens there any more.

        def told() -> bool:
            shown = [store_status(cluster, url) for url in urls]
            return all(one["state"] == "failing" and one["error"] for one in shown)

        wait_until(told, "status tells that both fail", START_TIMEOUT_S)
        assert [store_status(cluster, url)["backlog"] for url in urls] == [1, 1]
        proxy = Proxy(s3.port, proxy.port)
        for sink in sinks:
            wait_drained(sink, run, 1)
        for url in urls:
            wait_until(lambda url=url: store_status(cluster, url)["state"] == "idle", "idle again")
            assert store_status(cluster, url)["error"] == ""
        for sink in sinks:
            assert_once_and_whole(sink, run, 1)
    finally:
        assert drain.stop() == 0
        proxy.close()


def store_status(cluster: Cluster, url: str) -> dict[str, object]:
    """What `ckpt status` says of it."""
    shown = json.loads(command("status", "--json", "--store", cluster.url).out)
    (found,) = [one for one in shown["stores"] if one["url"] == url]
    return dict(found)
