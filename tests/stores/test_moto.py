"""moto beside the real gateway: a second S3, with other habits.

It honours conditional puts and completions, checks neither checksum nor secret, and lists uploads
in its own way. What holds for both holds for more stores than one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest

import ckpt
from ckpt.objects import names
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.obstore_sink import ObstoreSink
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.objects.sink_contract import SinkContract
from tests.objects.sources import HEADER, MemorySource, many_kinds, same_bits
from tests.stores.gateway import S3, free_port
from tests.waiting import wait_until

PROBE = """
import json, sys, zarr
group = zarr.open_group(sys.argv[1], mode="r", storage_options=json.loads(sys.argv[2]))
for name, node in group.members(max_depth=None):
    if isinstance(node, zarr.Array):
        assert node[...].shape == node.shape
        print(name)
"""
PATIENCE = Patience(20.0)
START_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A process of its own on loopback, ended here."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    pytest.importorskip("obstore")
    store = S3(free_port())
    log = tmp_path_factory.mktemp("moto") / "log"
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(store.port)]
    with log.open("wb") as file:
        process = subprocess.Popen(line, stdout=file, stderr=file)
    try:
        wait_until(lambda: answers(store), f"moto answers, see {log}", START_TIMEOUT_S)
        yield store
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def place(moto: S3) -> str:
    """A URL in a new bucket."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    FsspecSink("s3://", moto.fsspec_options, PATIENCE).call_s3("create_bucket", Bucket=name)
    return f"s3://{name}/some/place"


class TestS3fsAtMoto(SinkContract):
    @pytest.fixture
    def sink(self, moto: S3, place: str) -> Sink:
        return FsspecSink(place, moto.fsspec_options, PATIENCE)


class TestObstoreAtMoto(SinkContract):
    @pytest.fixture
    def sink(self, moto: S3, place: str) -> Sink:
        return ObstoreSink(place, moto.obstore_options, PATIENCE)


def test_a_checkpoint_is_written_once_and_loads_bit_by_bit(
    moto: S3, place: str, tmp_path: Path
) -> None:
    kinds = many_kinds()
    sink = FsspecSink(place, moto.fsspec_options, PATIENCE)
    options = WriteOptions(compression="none", chunk_bytes=4 << 20)
    marker = write_checkpoint(sink, MemorySource(kinds), options, WriteLimits())
    assert write_checkpoint(sink, MemorySource(kinds), options, WriteLimits()) == marker
    run, step, _ = HEADER.key
    stored = open_stored(sink, run, step)
    stored.verify()
    stored.close()
    assert not sink.pending_uploads("")
    url = f"{place}//{run}@{step}"
    found = ckpt.load(url, whole=True, storage_options=moto.fsspec_options)
    assert isinstance(found, dict)
    assert all(same_bits(found[name], array) for name, array in kinds.items())
    group = f"{place}/{names.generation_prefix(*HEADER.key)}"
    assert_zarr_opens(f"zip::{group}packed/0.zip", {"s3": moto.fsspec_options})
    assert_zarr_opens(group, moto.fsspec_options)


def assert_zarr_opens(url: str, options: object) -> None:
    """In a process of its own, which knows nothing of ckpt: small tensors, and large ones."""
    line = [sys.executable, "-I", "-c", PROBE, url, json.dumps(options)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = many_kinds()
    names_in = (each for each in kinds if (kinds[each].nbytes < 1 << 20) == ("zip::" in url))
    assert sorted(done.stdout.split()) == sorted(f"tensors/{names.node_path(n)}" for n in names_in)


def answers(store: S3) -> bool:
    try:
        with urllib.request.urlopen(f"{store.endpoint}/moto-api/", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
