"""A real S3 server through s3fs and through obstore: the same contract as a directory's."""

from __future__ import annotations

import pytest

from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.obstore_sink import ObstoreSink
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.sink import Sink
from tests.objects.sink_contract import SinkContract
from tests.stores.gateway import S3

PATIENCE = Patience(20.0)


class TestS3fs(SinkContract):
    @pytest.fixture
    def sink(self, s3: S3, bucket: str) -> Sink:
        return FsspecSink(f"s3://{bucket}/some/place", s3.fsspec_options, PATIENCE)

    def test_what_a_killed_writer_left_is_found_and_aborted(self, sink: Sink) -> None:
        upload = sink.upload("dir/half")
        upload.__enter__().part(bytes(20 << 20))
        (found,) = sink.pending_uploads("dir/")
        assert found.key == "dir/half"
        sink.abort_upload(found)
        sink.abort_upload(found)
        assert sink.pending_uploads("") == []


class TestObstore(SinkContract):
    @pytest.fixture
    def sink(self, s3: S3, bucket: str) -> Sink:
        return ObstoreSink(f"s3://{bucket}/some/place", s3.obstore_options, PATIENCE)


def test_both_see_the_same_objects(s3: S3, bucket: str) -> None:
    url = f"s3://{bucket}/place"
    one, other = FsspecSink(url, s3.fsspec_options), ObstoreSink(url, s3.obstore_options)
    one.put("run=20a@1/x", b"from s3fs")
    other.put("run=20a@1/==2/y", b"from obstore")
    assert list(one.list("")) == list(other.list("")) == ["run=20a@1/==2/y", "run=20a@1/x"]
    assert (other.get("run=20a@1/x"), one.get("run=20a@1/==2/y")) == (b"from s3fs", b"from obstore")
