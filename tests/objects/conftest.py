"""The end-to-end tests' real cluster, for the drain."""

from __future__ import annotations

import pytest

from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.conftest import cluster, cluster_options, mark, runtime, store

__all__ = ["cluster", "cluster_options", "mark", "runtime", "store"]


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> FileSink:
    """Where a module's cluster drains to."""
    return FileSink(tmp_path_factory.mktemp("drained"))
