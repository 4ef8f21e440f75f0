"""One real S3 server for all of these tests; without one they are skipped, and say why."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.retry import Patience
from tests.e2e.conftest import cluster, cluster_options, mark, runtime, store
from tests.meeting import meeting_of
from tests.stores.gateway import S3, shared_gateway, why_not

__all__ = ["bucket", "cluster", "cluster_options", "mark", "place", "runtime", "s3", "store"]


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One for all workers of a run."""
    problem = why_not()
    if problem:
        pytest.skip(f"NO REAL S3 SERVER: {problem}")
    with shared_gateway(meeting_of(tmp_path_factory)) as port:
        yield S3(int(port))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the tier's targets lie."""
    made = tmp_path / "tier"
    made.mkdir()
    return made


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new bucket's name."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    FsspecSink("s3://", s3.fsspec_options, Patience(20.0)).call_s3("create_bucket", Bucket=name)
    return name
