"""One real cluster for each module.

Whatever was started inside is gone behind it, ended by its own id.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt_client.local.processes import end_marked, find_marked, marked_environment
from tests.e2e.cluster import OPTIONS, Cluster

END_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """An environment of this module's own: its processes carry the mark,
    its sockets a directory of theirs.
    """
    word = secrets.token_hex(8)
    # Not below tmp_path: a Unix socket's path has 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="ckpt-e2e-"))
    try:
        with marked_environment(word, runtime):
            yield word
    finally:
        left = [one.command for one in find_marked(word) if not one.is_stager]
        end_marked(word, END_TIMEOUT_S)
        shutil.rmtree(runtime)
    assert not left, "only stagers linger behind their cluster"


@pytest.fixture(scope="module")
def runtime(mark: str) -> Path:
    """Where stagers have their sockets."""
    return Path(os.environ["XDG_RUNTIME_DIR"]) / "ckpt"


@pytest.fixture(scope="module")
def cluster_options(request: pytest.FixtureRequest) -> str:
    """The module's own CLUSTER_OPTIONS, else targets that stay dead."""
    return str(getattr(request.module, "CLUSTER_OPTIONS", f"{OPTIONS}&restart=never"))


@pytest.fixture(scope="module")
def cluster(
    mark: str, tmp_path_factory: pytest.TempPathFactory, cluster_options: str
) -> Iterator[Cluster]:
    """Started here, stopped by `ckpt local stop`."""
    made = Cluster(tmp_path_factory.mktemp("e2e"), cluster_options)
    ckpt.open(made.url).close()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[ckpt.Store]:
    """An open store of the test process itself, for what needs no rank processes."""
    opened = ckpt.open(cluster.url)
    yield opened
    opened.close(0.0)
