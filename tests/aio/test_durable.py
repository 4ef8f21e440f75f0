"""Names of a user's directory are synced as far as its file system can."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ckpt.aio.durable import sync_directory, sync_names

UNSYNCED = Path("/proc/self")
"""A directory that the kernel does not sync, as that of some network file systems."""


def test_a_directory_that_cannot_be_synced_ends_no_export() -> None:
    with pytest.raises(OSError) as found:
        sync_directory(UNSYNCED)
    assert found.value.errno == errno.EINVAL
    sync_names(UNSYNCED)


def test_a_directory_that_is_gone_is_no_such_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_names(tmp_path / "gone")
