"""One local cluster for all tests of the filesystem, and a filesystem on it."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import ckpt
from ckpt_client.fs.step_files import CkptFileSystemBase
from ckpt_client.local.processes import end_marked, marked_environment

END_TIMEOUT_S = 30.0


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a cluster of three targets that stay dead when they die."""
    made = tmp_path_factory.mktemp("fs")
    word = secrets.token_hex(8)
    runtime = Path(tempfile.mkdtemp(prefix="ckpt-fs-"))
    try:
        with marked_environment(word, runtime):
            ckpt.open(f"ckpt+local://{made}?targets=4&code=2%2B1&restart=never").close()
            yield made
    finally:
        end_marked(word, END_TIMEOUT_S)
        shutil.rmtree(runtime)


@pytest.fixture(scope="session")
def url(directory: Path) -> str:
    """What stands in front of RUN/STEP/FILE."""
    return f"ckpt+local://{directory}"


@pytest.fixture(scope="session")
def fs(url: str) -> Iterator[CkptFileSystemBase]:
    made = fsspec.core.url_to_fs(url)[0]
    yield made
    made.close()


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """A run of this test's own."""
    return f"{request.node.name[:60].replace('[', '-').replace(']', '')}-{secrets.token_hex(3)}"
