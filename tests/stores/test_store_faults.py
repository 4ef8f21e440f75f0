"""A checkpoint goes through a store that misbehaves: once, whole, nothing left over."""

from __future__ import annotations

import itertools
import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import md5

import numpy as np
import pytest

from ckpt.base.errors import Corrupt, Unauthorized, Unavailable
from ckpt.base.ids import RunName
from ckpt.objects import names
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.obstore_sink import ObstoreSink
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.s3_upload import PART_BYTES
from ckpt.objects.sinks.sink import Sink, create_once
from ckpt.objects.sinks.stores import open_sink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.landing import in_turn
from tests.objects.sources import HEADER, MemorySource, random_bits
from tests.stores.gateway import S3
from tests.stores.proxy import Fault, Proxy, Request

RUN = RunName(HEADER.run)
OPTIONS = WriteOptions(chunk_bytes=4 << 20, shard_bytes=64 << 20, compression="none")
LIMITS = WriteLimits(threads=2, memory_bytes=128 << 20)
READ_TIMEOUT_S = 3.0
FAULTY = (
    Fault.SLOW_DOWN, Fault.INTERNAL, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.CUT_ANSWER,
    Fault.STALL,
)  # fmt: skip

Open = Callable[[int, Patience], Sink]


@pytest.fixture
def proxy(s3: S3) -> Iterator[Proxy]:
    made = Proxy(s3.port)
    yield made
    made.close()


@pytest.fixture(params=["s3fs", "obstore"])
def open_at(request: pytest.FixtureRequest, s3: S3, bucket: str) -> Open:
    """A sink on the bucket through a port, with short timeouts."""

    def s3fs(port: int, patience: Patience) -> Sink:
        config = {"read_timeout": READ_TIMEOUT_S, "connect_timeout": READ_TIMEOUT_S}
        options = {**s3.at(port).fsspec_options, "config_kwargs": config}
        return FsspecSink(f"s3://{bucket}/place", options, patience)

    def obstore(port: int, patience: Patience) -> Sink:
        options = s3.at(port).obstore_options
        return ObstoreSink(f"s3://{bucket}/place", options, patience, timeout_s=READ_TIMEOUT_S)

    return s3fs if request.param == "s3fs" else obstore


@pytest.fixture
def direct(s3: S3, bucket: str) -> Sink:
    return FsspecSink(f"s3://{bucket}/place", s3.fsspec_options)


def source() -> MemorySource:
    return MemorySource({"w": random_bits("<f4", (5000, 2001)), "small": np.arange(9)})


@pytest.mark.parametrize("seed", in_turn(range(3), every=3))
def test_a_store_that_fails_often_holds_the_checkpoint_once_and_whole(
    open_at: Open, direct: Sink, proxy: Proxy, seed: int
) -> None:
    # A checkpoint is few requests: dealt like cards, so that several kinds come whatever they are.
    rng = random.Random(seed)
    kinds = itertools.cycle(rng.sample(FAULTY, len(FAULTY)))
    turns = itertools.cycle(rng.sample(range(4), 4))

    def decide(_request: Request) -> Fault:
        return next(kinds) if next(turns) == 0 else Fault.NONE

    proxy.decide = decide
    marker = write_checkpoint(open_at(proxy.port, Patience(60.0)), source(), OPTIONS, LIMITS)
    hit = {fault for _, fault in proxy.log}
    assert len(hit) > 2, f"seed {seed}: {hit}"
    assert_once_and_whole(direct)
    assert write_checkpoint(direct, source(), OPTIONS, LIMITS) == marker
    stored = open_stored(open_at(proxy.port, Patience(60.0)), RUN)
    stored.verify()
    stored.close()


def assert_once_and_whole(direct: Sink) -> None:
    stored = open_stored(direct, RUN)
    stored.verify()
    stored.close()
    shards = sum(len(objects) for objects in stored.manifest.objects)
    expected = shards + len(stored.manifest.files) + 2
    assert len(list(direct.list(""))) == expected, "each object once, and nothing else"
    assert direct.pending_uploads("") == []


@pytest.mark.parametrize(
    "fault", in_turn([Fault.CUT_AFTER, Fault.CONFLICT, Fault.STALL, Fault.INTERNAL], every=2)
)
def test_the_markers_lost_answer_is_looked_up(
    open_at: Open, direct: Sink, proxy: Proxy, fault: Fault
) -> None:
    struck: list[int] = []

    def decide(request: Request) -> Fault:
        if request.method == "PUT" and names.COMMITTED in request.path and not struck:
            struck.append(request.number)
            return fault
        return Fault.NONE

    proxy.decide = decide
    write_checkpoint(open_at(proxy.port, Patience(30.0)), source(), OPTIONS, LIMITS)
    assert struck
    assert_once_and_whole(direct)


def test_a_marker_that_another_wrote_first_is_not_overwritten(
    open_at: Open, direct: Sink, proxy: Proxy
) -> None:
    direct.put("marker", b"theirs")
    proxy.decide = lambda request: (
        Fault.CUT_AFTER if request.method == "PUT" and request.number < 1 else Fault.NONE
    )
    assert create_once(open_at(proxy.port, Patience(20.0)), "marker", b"ours") == b"theirs"
    assert direct.get("marker") == b"theirs"


def test_bits_that_rot_on_the_way_are_found_before_the_commit(
    open_at: Open, direct: Sink, proxy: Proxy
) -> None:
    proxy.decide = lambda request: (
        Fault.ROT_SENT if request.method == "PUT" and "tensors/w/c/" in request.path else Fault.NONE
    )
    with pytest.raises((Corrupt, Unavailable), match="tensors/w/c/0/0"):
        write_checkpoint(open_at(proxy.port, Patience(5.0)), source(), OPTIONS, LIMITS)
    prefix = names.generation_prefix(*HEADER.key)
    assert direct.head(prefix + names.COMMITTED) is None
    assert direct.pending_uploads("") == []
    proxy.decide = lambda _request: Fault.NONE
    write_checkpoint(open_at(proxy.port, Patience(20.0)), source(), OPTIONS, LIMITS)
    assert_once_and_whole(direct)


def test_a_store_that_compares_no_crc_is_told_the_md5_of_each_body(
    direct: Sink, proxy: Proxy, s3: S3
) -> None:
    sink = open_sink(direct.url, s3.at(proxy.port).fsspec_options, None, "md5")
    content = random_bits("|u1", (PART_BYTES + 1000,)).tobytes()
    sink.put("document", content[:99])
    with sink.upload("object") as upload:
        upload.part(content)
        upload.complete()
    bodies = [one.body for one, _ in proxy.log if one.method == "PUT"]
    assert sorted(map(len, bodies)) == [99, 1000, PART_BYTES]
    told = [one.md5 for one, _ in proxy.log if one.method == "PUT"]
    assert told == [b64encode(md5(body).digest()).decode() for body in bodies]
    assert (direct.get("document"), direct.get("object")) == (content[:99], content)


def test_bits_that_rot_while_reading_are_told_by_name(
    open_at: Open, direct: Sink, proxy: Proxy
) -> None:
    write_checkpoint(direct, source(), OPTIONS, LIMITS)
    proxy.decide = lambda request: Fault.ROT_READ if "tensors/w/c/" in request.path else Fault.NONE
    stored = open_stored(open_at(proxy.port, Patience(20.0)), RUN)
    with pytest.raises(Corrupt, match="tensors/w/c/0/0"):
        stored.verify()
    stored.close()


def test_a_store_that_never_answers_ends_at_the_deadline(open_at: Open, proxy: Proxy) -> None:
    proxy.decide = lambda _request: Fault.SLOW_DOWN
    with pytest.raises(Unavailable, match="failed for 2 s"):
        open_at(proxy.port, Patience(2.0)).put("a", b".")


def test_a_slow_store_is_waited_for(open_at: Open, direct: Sink, proxy: Proxy) -> None:
    proxy.bytes_per_s = 20e6
    write_checkpoint(open_at(proxy.port, Patience(60.0)), source(), OPTIONS, LIMITS)
    assert_once_and_whole(direct)


def test_a_wrong_secret_is_told_at_once(s3: S3, bucket: str) -> None:
    options = {**s3.fsspec_options, "secret": "wrong"}
    with pytest.raises(Unauthorized):
        FsspecSink(f"s3://{bucket}", options).put("a", b".")
    options = {**s3.obstore_options, "secret_access_key": "wrong"}
    with pytest.raises(Unauthorized):
        ObstoreSink(f"s3://{bucket}", options).put("a", b".")
