"""Google's storage as fake-gcs-server serves it: gcsfs's sink whole, and obstore as a reader."""

from __future__ import annotations

import random
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt.base.errors import CkptError, NotFound, Unauthorized, Unavailable
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.obstore_sink import ObstoreSink
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.sink import Sink
from tests.e2e.cluster import Cluster
from tests.objects.drainkit import assert_same
from tests.objects.sink_contract import SinkContract
from tests.stores.drained import assert_drained_and_loaded
from tests.stores.fake_gcs import ONE_KIND_OF_BUCKET, Google, start, why_not
from tests.stores.proxy import Fault, Proxy

# aiohttp's, of the bytes that gcsfs hands it.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
CLUSTER_OPTIONS = "targets=3&code=2+1"
PATIENCE = Patience(20.0)
MANY_CHUNKS = 51 << 20
"""gcsfs puts 50 MiB at once, and more by a resumable upload."""


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    """A process of its own on loopback, ended here."""
    problem = why_not()
    if problem:
        pytest.skip(f"NO SERVER OF GOOGLE'S STORAGE: {problem}")
    google, server = start(tmp_path_factory.mktemp("google"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ONE_KIND_OF_BUCKET.items():
            patch.setenv(name, value)
        yield google
    server.stop()


@pytest.fixture
def place(google: Google) -> str:
    """A URL in a new bucket."""
    from gcsfs import GCSFileSystem

    name = f"test-{uuid.uuid4().hex[:12]}"
    GCSFileSystem(**google.fsspec_options).mkdir(name)
    return f"gs://{name}/some/place"


class TestGcsfs(SinkContract):
    @pytest.fixture
    def sink(self, google: Google, place: str) -> Sink:
        return FsspecSink(place, google.fsspec_options, PATIENCE)


def test_a_resumable_upload_is_whole(google: Google, place: str) -> None:
    sink = FsspecSink(place, google.fsspec_options, PATIENCE)
    content = random.Random(1).randbytes(MANY_CHUNKS)
    sink.put("large", content)
    assert sink.checksum("large") == (MANY_CHUNKS, zlib.crc32(content))


@pytest.mark.parametrize(
    ("harm", "error", "cause", "hint"),
    [
        (None, NotFound, "there is no such bucket", "create it, or see the store's URL"),
        (Fault.FORBIDDEN, Unauthorized, "AccessDenied", "see the store's credentials"),
        (Fault.STALL, Unavailable, "failed for 2 s", "see whether the store answers"),
    ],
)
def test_why_a_store_cannot_be_used_is_told(
    google: Google,
    place: str,
    harm: Fault | None,
    error: type[CkptError],
    cause: str,
    hint: str,
) -> None:
    proxy = Proxy(google.port)
    proxy.decide = lambda _request: harm or Fault.NONE
    # A limit that gcsfs itself does not try again after.
    options = {**Google(proxy.port).fsspec_options, "requests_timeout": 0.5}
    sink = FsspecSink(place if harm else "gs://nowhere/place", options, Patience(2.0))
    try:
        for ask in (lambda: sink.conditional, lambda: sink.put("a", b".")):
            with pytest.raises(error) as told:
                ask()
            assert cause in told.value.message
            assert (told.value.hint, sink.url in told.value.message) == (hint, True)
    finally:
        proxy.close()


def test_a_checkpoint_is_drained_and_loads_without_its_cluster(
    cluster: Cluster, store: ckpt.Store, google: Google, place: str, tmp_path: Path
) -> None:
    """By gcsfs; obstore, which cannot put here, reads the same."""
    sink = FsspecSink(place, google.fsspec_options, PATIENCE)
    assert_drained_and_loaded(
        cluster=cluster,
        store=store,
        sink=sink,
        options=google.fsspec_options,
        environment=google.environment,
        run="gcsfs",
        log=tmp_path / "drain.log",
    )
    other = ObstoreSink(place, google.obstore_options, PATIENCE)
    assert list(other.list("")) == list(sink.list(""))
    assert other.children("") == sink.children("")
    url = f"{other.url}//gcsfs@1"
    found = ckpt.load(url, whole=True, storage_options=google.obstore_options)
    assert_same(found, 1)
