"""Clusters of separate daemons, for a module or a test; what was started inside is ended."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

import ckpt
from ckpt_client.local.processes import end_marked, marked_environment
from tests.e2e_remote.cluster import RemoteCluster

END_TIMEOUT_S = 30.0

Made = TypeVar("Made", bound=RemoteCluster)


@contextmanager
def started(made: Made) -> Iterator[Made]:
    """Everything of it runs inside, and nothing behind."""
    mark = secrets.token_hex(8)
    # Not below tmp_path: a Unix socket's path has 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="ckpt-e2e-"))
    try:
        with marked_environment(mark, runtime):
            os.environ["CKPT_SECRET_FILE"] = str(made.secret_file)
            try:
                made.start()
                yield made
            finally:
                made.end()
    finally:
        end_marked(mark, END_TIMEOUT_S)  # Stagers.
        shutil.rmtree(runtime)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteCluster]:
    with started(RemoteCluster(tmp_path_factory.mktemp("remote"))) as made:
        yield made


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[RemoteCluster]:
    """Of one test alone, which harms it."""
    with started(RemoteCluster(tmp_path)) as made:
        yield made


@pytest.fixture
def store(cluster: RemoteCluster) -> Iterator[ckpt.Store]:
    opened = ckpt.open(cluster.url)
    yield opened
    opened.close(0.0)
