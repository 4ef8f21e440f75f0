"""Whatever a soak starts carries a mark of its own, and nothing that carries it is left behind."""

from __future__ import annotations

import faulthandler
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_client.local.processes import end_marked, marked_environment

END_TIMEOUT_S = 30.0
SECONDS_DEFAULT = 300


@pytest.fixture(autouse=True)
def no_dump() -> None:
    """A soak is longer than pytest's patience before it prints where all threads are."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def mark() -> Iterator[str]:
    """An environment of this test's own. What is still there behind it is ended by its id."""
    word = secrets.token_hex(8)
    # Not below tmp_path: a Unix socket's path has 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="ckpt-soak-"))
    try:
        with marked_environment(word, runtime):
            yield word
    finally:
        end_marked(word, END_TIMEOUT_S)
        shutil.rmtree(runtime)


@pytest.fixture
def runtime(mark: str) -> Path:
    """Where stagers have their sockets."""
    return Path(os.environ["XDG_RUNTIME_DIR"]) / "ckpt"


@pytest.fixture
def soak_seconds() -> float:
    """How long a slow soak lasts: $CKPT_SOAK_S."""
    return float(os.environ.get("CKPT_SOAK_S", SECONDS_DEFAULT))


@pytest.fixture
def seed() -> int:
    """$CKPT_SOAK_SEED, else one of this moment's."""
    return int(os.environ.get("CKPT_SOAK_SEED", time.time_ns() // 1_000_000 % 1_000_000))
