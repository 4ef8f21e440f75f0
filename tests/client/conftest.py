"""What several files of commands and clients ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aio import coordinatorkit


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with coordinatorkit.silent_address() as address:
        yield address


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a secret that nobody else knows."""
    path = tmp_path / "secret"
    path.write_text("ab" * 32)
    path.chmod(0o400)
    return path
