"""Azure Blob as Azurite serves it: the sinks' contract, errors, and one checkpoint drained."""

from __future__ import annotations

import base64
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
from tests.objects.sink_contract import SinkContract
from tests.stores.azurite import Azure, start, why_not
from tests.stores.drained import assert_drained_and_loaded
from tests.stores.gateway import free_port
from tests.stores.proxy import Fault, Proxy

# aiohttp's, of the bytes that the Azure SDK hands it.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
CLUSTER_OPTIONS = "targets=3&code=2+1"
PATIENCE = Patience(20.0)
MANY_BLOCKS = 65 << 20
"""The Azure SDK puts 64 MiB at once, and more in blocks."""
LIBRARIES = ["adlfs", "obstore"]


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    """A process of its own on loopback, ended here."""
    problem = why_not()
    if problem:
        pytest.skip(f"NO AZURE SERVER: {problem}")
    azure, server = start(tmp_path_factory.mktemp("azurite"))
    yield azure
    server.stop()


@pytest.fixture
def place(azure: Azure) -> str:
    """A URL in a new container."""
    from azure.storage.blob import BlobServiceClient

    name = f"test-{uuid.uuid4().hex[:12]}"
    with BlobServiceClient.from_connection_string(azure.connection_string) as service:
        service.create_container(name)
    return f"az://{name}/some/place"


def opened(library: str, azure: Azure, url: str, patience: Patience = PATIENCE) -> Sink:
    if library == "adlfs":
        return FsspecSink(url, azure.fsspec_options, patience)
    return ObstoreSink(url, azure.obstore_options, patience)


class TestAdlfs(SinkContract):
    @pytest.fixture
    def sink(self, azure: Azure, place: str) -> Sink:
        return opened("adlfs", azure, place)


class TestObstore(SinkContract):
    @pytest.fixture
    def sink(self, azure: Azure, place: str) -> Sink:
        return opened("obstore", azure, place)


def test_both_see_the_same_objects(azure: Azure, place: str) -> None:
    one, other = (opened(library, azure, place) for library in LIBRARIES)
    one.put("run=20a@1/x", b"from adlfs")
    other.put("run=20a@1/==2/y", b"from obstore")
    assert list(one.list("")) == list(other.list("")) == ["run=20a@1/==2/y", "run=20a@1/x"]
    found = (other.get("run=20a@1/x"), one.get("run=20a@1/==2/y"))
    assert found == (b"from adlfs", b"from obstore")


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_object_of_more_than_one_request_is_whole(
    azure: Azure, place: str, library: str
) -> None:
    sink, content = opened(library, azure, place), random.Random(1).randbytes(MANY_BLOCKS)
    sink.put("large", content)
    assert sink.checksum("large") == (MANY_BLOCKS, zlib.crc32(content))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("harm", "error", "cause", "hint"),
    [
        ("container", NotFound, "there is no such bucket", "create it, or see the store's URL"),
        ("key", Unauthorized, "AuthorizationFailure", "see the store's credentials"),
        ("down", Unavailable, "failed for 2 s", "see whether the store answers"),
    ],
)
def test_why_a_store_cannot_be_used_is_told(
    azure: Azure, place: str, library: str, harm: str, error: type[CkptError], cause: str, hint: str
) -> None:
    reached = {
        "container": azure,
        "key": Azure(azure.port, key=base64.b64encode(b"wrong").decode()),
        "down": Azure(free_port()),
    }[harm]
    url = "az://nowhere/place" if harm == "container" else place
    sink = opened(library, reached, url, Patience(2.0))
    for ask in (lambda: sink.conditional, lambda: sink.put("a", b".")):
        with pytest.raises(error) as told:
            ask()
        assert cause in told.value.message
        assert (told.value.hint, sink.url in told.value.message) == (hint, True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_listing_tells_a_wrong_key_at_once(azure: Azure, place: str, library: str) -> None:
    wrong = Azure(azure.port, key=base64.b64encode(b"wrong").decode())
    sink = opened(library, wrong, place)
    for ask in (lambda: list(sink.list("")), lambda: sink.children("")):
        with pytest.raises(Unauthorized, match="see the store's credentials"):
            ask()


@pytest.mark.parametrize("library", LIBRARIES)
def test_only_our_patience_tries_again(azure: Azure, library: str) -> None:
    proxy = Proxy(azure.port)
    proxy.decide = lambda _request: Fault.INTERNAL
    try:
        sink = opened(library, Azure(proxy.port), "az://any/place", Patience(0.0))
        for ask in (lambda: sink.put("a", b"."), lambda: sink.get("a"), lambda: sink.head("a")):
            seen = len(proxy.log)
            with pytest.raises(Unavailable):
                ask()
            assert len(proxy.log) == seen + 1
    finally:
        proxy.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_checkpoint_is_drained_and_loads_without_its_cluster(
    cluster: Cluster, store: ckpt.Store, azure: Azure, place: str, library: str, tmp_path: Path
) -> None:
    options = azure.fsspec_options if library == "adlfs" else azure.obstore_options
    assert_drained_and_loaded(
        cluster=cluster,
        store=store,
        sink=opened(library, azure, place),
        options=options,
        environment=azure.environment,
        run=library,
        log=tmp_path / "drain.log",
    )
