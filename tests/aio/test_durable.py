"""What is written aside is there before its name is, and names of a user's directory are synced as
far as its file system can.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpt.aio.durable import is_there, sync_directory, sync_names, write_aside

UNSYNCED = Path("/proc/self")
"""A directory that the kernel does not sync, as that of some network file systems."""


def test_a_directory_that_cannot_be_synced_ends_no_export() -> None:
    with pytest.raises(OSError) as found:
        sync_directory(UNSYNCED)
    assert found.value.errno == errno.EINVAL
    sync_names(UNSYNCED)


def test_what_the_device_does_not_say_is_no_free_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert is_there(tmp_path / "file")
    for name in ("none", "file/below", "loop", "a\0b"):
        assert not is_there(tmp_path / name)
    with pytest.raises(OSError, match="name too long"):
        is_there(tmp_path / ("x" * 5000))


def test_a_directory_that_is_gone_is_no_such_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_names(tmp_path / "gone")


def test_a_file_is_synced_whole_before_it_has_the_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, found = tmp_path / "x", []
    file.write_bytes(b"old")
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synced = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found.append((synced.is_dir(), synced.read_bytes() if synced != tmp_path else b""))
        found.append((file.name, file.read_bytes()))

    monkeypatch.setattr(os, "fsync", recorded)
    write_aside(file, b"the new one")
    aside, name = [(False, b"the new one"), ("x", b"old")], [(True, b""), ("x", b"the new one")]
    assert found == aside + name
