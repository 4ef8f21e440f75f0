"""What every Disk does, real or fake: subclass DiskContract and give it a `disk` fixture.

class TestFakeDisk(DiskContract):
    @pytest.fixture
    def disk(self): ...
"""

from __future__ import annotations

import mmap

import pytest

from ckpt.aio.disk import Disk
from ckpt.aio.disk_actions import perform
from ckpt.base.limits import PAGE_BYTES
from ckpt.protocol.target.disk_events import (
    DiskDone,
    DiskFailed,
    Preallocate,
    ReadAt,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteAt,
)


def read(disk: Disk, file: str, offset: int, length: int) -> bytes:
    """The bytes, with the disk's buffer given back."""
    view = disk.read_at(file, offset, length)
    data = bytes(view)
    disk.release(view)
    return data


class DiskContract:
    """One suite for all disks. Each has the directories `a` and `b`."""

    def test_what_was_written_is_read_back(self, disk: Disk) -> None:
        disk.write_at("a/x", 0, b"hello")
        assert read(disk, "a/x", 0, 5) == b"hello"
        assert read(disk, "a/x", 1, 3) == b"ell"

    def test_a_read_beyond_the_end_is_short(self, disk: Disk) -> None:
        disk.write_at("a/x", 0, bytes(PAGE_BYTES) + b"tail")
        assert read(disk, "a/x", PAGE_BYTES, 100) == b"tail"
        assert read(disk, "a/x", 3 * PAGE_BYTES, 10) == b""

    def test_pages_in_aligned_memory_are_written_whole(self, disk: Disk) -> None:
        with mmap.mmap(-1, 4 * PAGE_BYTES) as memory:
            memory[:] = bytes(range(256)) * 64
            with memoryview(memory) as view:
                disk.write_at("a/x", PAGE_BYTES, view)
            assert read(disk, "a/x", PAGE_BYTES, 4 * PAGE_BYTES) == memory[:]

    def test_aligned_and_unaligned_writes_of_one_file_mix(self, disk: Disk) -> None:
        disk.preallocate("a/x", 4 * PAGE_BYTES)
        disk.write_at("a/x", 0, b"p" * (2 * PAGE_BYTES))
        disk.write_at("a/x", 100, b"mixed")
        disk.write_at("a/x", 2 * PAGE_BYTES, b"q" * PAGE_BYTES)
        disk.sync_file("a/x")
        assert read(disk, "a/x", 98, 9) == b"ppmixedpp"
        assert read(disk, "a/x", 2 * PAGE_BYTES - 1, 2) == b"pq"

    def test_a_preallocated_file_has_its_size_and_zeros(self, disk: Disk) -> None:
        disk.write_at("a/x", 0, b"old bytes")
        disk.preallocate("a/x", 3 * PAGE_BYTES)
        assert disk.file_bytes("a/x") == 3 * PAGE_BYTES
        assert read(disk, "a/x", 0, 9) == bytes(9)

    def test_truncate_sets_the_length_both_ways(self, disk: Disk) -> None:
        disk.write_at("a/x", 0, b"0123456789")
        disk.truncate_file("a/x", 4)
        assert disk.file_bytes("a/x") == 4
        disk.truncate_file("a/x", 8)
        assert read(disk, "a/x", 0, 8) == b"0123\0\0\0\0"

    def test_a_rename_moves_between_directories_and_replaces(self, disk: Disk) -> None:
        disk.write_at("a/x", 0, b"new")
        disk.write_at("b/y", 0, b"old content")
        disk.sync_file("a/x")
        disk.rename_file("a/x", "b/y")
        disk.sync_directory("b")
        assert disk.list_directory("a") == []
        assert read(disk, "b/y", 0, 100) == b"new"

    def test_writes_after_a_rename_go_to_the_file_of_that_name(self, disk: Disk) -> None:
        disk.write_at("a/x", 0, b"first")
        disk.rename_file("a/x", "b/x")
        disk.write_at("a/x", 0, b"second")
        assert read(disk, "b/x", 0, 10) == b"first"
        assert read(disk, "a/x", 0, 10) == b"second"

    def test_names_are_listed_in_order(self, disk: Disk) -> None:
        for name in ("c", "a", "b"):
            disk.write_at(f"a/{name}", 0, b".")
        assert disk.list_directory("a") == ["a", "b", "c"]

    def test_what_is_missing_raises_file_not_found(self, disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.read_at("a/none", 0, 1)
        with pytest.raises(FileNotFoundError):
            disk.remove_file("a/none")
        with pytest.raises(FileNotFoundError):
            disk.rename_file("a/none", "a/other")
        with pytest.raises(FileNotFoundError):
            disk.file_bytes("a/none")

    def test_space_is_positive_and_consistent(self, disk: Disk) -> None:
        space = disk.space()
        assert 0 < space.bytes_free <= space.bytes_total

    def test_perform_answers_each_action_with_its_number(self, disk: Disk) -> None:
        assert perform(disk, WriteAt(1, "a/x", 0, b"abc"), 7) == DiskDone(7, 1)
        answer = perform(disk, ReadAt(2, "a/x", 1, 2), 8)
        assert isinstance(answer, DiskDone)
        assert (answer.op, bytes(answer.data)) == (2, b"bc")
        disk.release(answer.data)
        assert perform(disk, SyncFile(3, "a/x"), 9) == DiskDone(9, 3)
        assert perform(disk, SyncDirectory(4, "a"), 9) == DiskDone(9, 4)
        assert perform(disk, TruncateFile(5, "a/x", 2), 9) == DiskDone(9, 5)
        assert disk.file_bytes("a/x") == 2
        assert perform(disk, RenameFile(6, "a/x", "b/y"), 9) == DiskDone(9, 6)
        assert (disk.list_directory("a"), disk.list_directory("b")) == ([], ["y"])
        assert perform(disk, Preallocate(7, "b/y", 5), 9) == DiskDone(9, 7)
        assert disk.file_bytes("b/y") == 5
        for op in (8, 9):
            assert perform(disk, RemoveFile(op, "b/y"), 9) == DiskDone(9, op)
            assert disk.list_directory("b") == []

    def test_perform_names_the_failure(self, disk: Disk) -> None:
        answer = perform(disk, ReadAt(1, "a/none", 0, 1), 5)
        assert isinstance(answer, DiskFailed)
        assert (answer.op, answer.errno_name) == (1, "ENOENT")
