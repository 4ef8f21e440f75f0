"""One real S3 server for all of these tests; without one they are skipped, and say why."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.objects.fsspec_sink import FsspecSink
from ckpt.objects.retry import Patience
from tests.e2e.conftest import cluster, cluster_options, mark, runtime, store
from tests.stores.gateway import S3, Gateway, why_not

__all__ = ["bucket", "cluster", "cluster_options", "mark", "runtime", "s3", "store"]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """Started here, ended here."""
    problem = why_not()
    if problem:
        pytest.skip(f"NO REAL S3 SERVER: {problem}")
    # Not below tmp_path: the path of a Unix socket has 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="ckpt-rgw-"))
    gateway = Gateway(directory)
    try:
        yield gateway.start()
    finally:
        gateway.stop()
        shutil.rmtree(directory)


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new bucket's name."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    FsspecSink("s3://", s3.fsspec_options, Patience(20.0)).call_s3("create_bucket", Bucket=name)
    return name
