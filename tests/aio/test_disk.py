"""Both disks keep one contract; the real one falls back and locks, the fake one loses what was not
synced.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ckpt.aio.directory_scan import scan
from ckpt.aio.disk import SMALL_READ_BYTES, Disk, RealDisk
from ckpt.base.limits import PAGE_BYTES
from ckpt.protocol.events import Buffer
from ckpt.testing.disk import FakeDisk, Fault, Keep
from ckpt.testing.disk_contract import DiskContract, read
from tests.page_cache import forget_cached, pages_cached


class TestFakeDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> Disk:
        disk = FakeDisk(seed=1)
        disk.make_directory("a")
        disk.make_directory("b")
        return disk


def _real(directory: Path, **options: object) -> RealDisk:
    disk = RealDisk(directory, **options)  # type: ignore[arg-type]
    disk.make_directory("a")
    disk.make_directory("b")
    return disk


class TestRealDisk(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Disk]:
        disk = _real(tmp_path)
        yield disk
        assert disk.pool_used_bytes == 0
        disk.close()


class TestBufferedDisk(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Disk]:
        disk = _real(tmp_path, direct=False)
        yield disk
        disk.close()


class TestDiskThatRefusesDirectOpens(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Disk]:
        def open_file(path: str, flags: int, mode: int) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return os.open(path, flags, mode)

        disk = _real(tmp_path, open_file=open_file)
        yield disk
        disk.close()


def test_a_refused_direct_write_is_written_buffered_and_direct_is_given_up(tmp_path: Path) -> None:
    refused: list[int] = []

    def write(descriptor: int, data: Buffer, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "not with this alignment")
        return os.pwrite(descriptor, data, offset)

    disk = _real(tmp_path, write=write)
    disk.write_at("a/x", 0, b"z" * PAGE_BYTES)
    disk.write_at("a/x", PAGE_BYTES, b"y" * PAGE_BYTES)
    assert read(disk, "a/x", PAGE_BYTES - 1, 2) == b"zy"
    assert (refused, disk.direct) == ([0], False)
    disk.close()


def test_a_direct_read_that_fails_is_not_read_past_its_error(tmp_path: Path) -> None:
    """The page cache may still hold what the device cannot give: that proves nothing of a disk."""
    failing: list[bool] = []

    def open_file(path: str, flags: int, mode: int) -> int:
        if failing and flags & os.O_DIRECT:
            raise OSError(errno.EIO, "the device fails")
        return os.open(path, flags, mode)

    disk = _real(tmp_path, open_file=open_file)
    disk.write_at("a/x", 0, b"z" * PAGE_BYTES)
    disk.rename_file("a/x", "a/y")
    failing.append(True)
    with pytest.raises(OSError, match="the device fails"):
        read(disk, "a/y", 0, PAGE_BYTES)
    assert not disk._lent
    disk.close()


def test_what_is_renamed_over_a_file_is_read_though_that_was_open_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may read it between any two steps."""
    disk, rename = _real(tmp_path), os.rename
    disk.write_at("a/x", 0, b"z" * PAGE_BYTES)
    disk.write_at("a/aside", 0, b"y" * PAGE_BYTES)

    def read_and_rename(old: str, new: str) -> None:
        assert read(disk, "a/x", 0, 1) == b"z"
        rename(old, new)

    monkeypatch.setattr(os, "rename", read_and_rename)
    disk.rename_file("a/aside", "a/x")
    assert read(disk, "a/x", 0, 1) == b"y"
    disk.close()


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    def write(descriptor: int, data: Buffer, offset: int) -> int:
        return os.pwrite(descriptor, memoryview(data)[:PAGE_BYTES], offset)

    disk = _real(tmp_path, write=write)
    with mmap.mmap(-1, 3 * PAGE_BYTES) as memory:
        memory[:] = os.urandom(len(memory))
        with memoryview(memory) as view:
            disk.write_at("a/x", 0, view)
        assert read(disk, "a/x", 0, len(memory)) == memory[:]
    disk.close()


def test_a_buffered_read_at_rest_goes_past_the_page_cache_and_leaves_nothing_there(
    tmp_path: Path,
) -> None:
    disk, file = RealDisk(tmp_path, direct=False), tmp_path / "x"
    data = os.urandom(16 * PAGE_BYTES)
    file.write_bytes(data)
    disk.sync_file("x")
    if not forget_cached(file):
        pytest.skip("this file system is memory itself")
    assert read(disk, "x", 0, len(data)) == data
    assert pages_cached(file) == 16
    # All of it, then one page of a file of which nothing is cached: what follows is not read ahead.
    for size in (len(data), PAGE_BYTES):
        found = disk.read_at("x", 0, size, at_rest=True)
        assert bytes(found) == data[:size]
        disk.release(found)
        assert pages_cached(file) == 0
    disk.close()


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_lost_its_name_is_not_found_at_rest_though_it_is_open(
    tmp_path: Path, direct: bool
) -> None:
    disk = RealDisk(tmp_path, direct=direct)
    disk.write_at("x", 0, bytes(PAGE_BYTES))
    before = len(os.listdir("/proc/self/fd"))
    disk.release(disk.read_at("x", 0, PAGE_BYTES, at_rest=True))
    assert len(os.listdir("/proc/self/fd")) == before
    (tmp_path / "x").unlink()
    assert read(disk, "x", 0, PAGE_BYTES) == bytes(PAGE_BYTES)
    with pytest.raises(FileNotFoundError):
        disk.read_at("x", 0, PAGE_BYTES, at_rest=True)
    disk.close()


def test_a_read_buffer_is_not_lent_twice_before_it_is_released(tmp_path: Path) -> None:
    disk = _real(tmp_path)
    disk.write_at("a/x", 0, b"x" * PAGE_BYTES)
    disk.write_at("a/y", 0, b"y" * PAGE_BYTES)
    first = disk.read_at("a/x", 0, PAGE_BYTES)
    second = disk.read_at("a/y", 0, PAGE_BYTES)
    assert (bytes(first[:1]), bytes(second[:1])) == (b"x", b"y")
    disk.release(first)
    third = disk.read_at("a/y", 0, PAGE_BYTES)
    assert bytes(second[:1]) == b"y"
    disk.release(second)
    disk.release(third)
    assert disk.pool_used_bytes == 0
    disk.close()


def test_what_gives_no_bytes_takes_no_memory(tmp_path: Path) -> None:
    """Or whoever reads what is gone or short would use up the pool."""
    disk, size = _real(tmp_path), SMALL_READ_BYTES + PAGE_BYTES
    disk.write_at("f", 0, b"a" * size)
    whole = disk.read_at("f", 0, size)
    assert disk.pool_used_bytes >= size
    disk.release(whole)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            disk.read_at("gone", 0, size)
        assert len(disk.read_at("f", size, size)) == 0
        assert disk.pool_used_bytes == 0
    disk.close()


def test_the_pool_is_made_by_the_first_large_read_and_serves_all_of_them(tmp_path: Path) -> None:
    disk, size = _real(tmp_path), SMALL_READ_BYTES + PAGE_BYTES
    disk.write_at("f", 0, bytes(size))
    disk.release(disk.read_at("f", 0, SMALL_READ_BYTES))
    assert disk._pool is None
    first, second = disk.read_at("f", 0, size), disk.read_at("f", 0, size)
    assert disk.pool_used_bytes >= 2 * size
    disk.release(first)
    disk.release(second)
    assert disk.pool_used_bytes == 0
    disk.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what the kernel was told to sync, in order; it is synced, too."""
    names: list[str] = []

    def recorded(sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        return call

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))
    return names


@pytest.mark.parametrize("direct", [False, True])
def test_what_is_to_be_synced_is_synced_in_the_kernel(
    tmp_path: Path, synced: list[str], direct: bool
) -> None:
    disk = _real(tmp_path, direct=direct)
    assert synced == [str(tmp_path)] * 2, "of the two directories that were made"
    synced.clear()
    disk.write_at("a/x", 0, b"z" * PAGE_BYTES)
    disk.sync_file("a/x")
    disk.rename_file("a/x", "b/x")
    disk.sync_directory("b")
    disk.sync_directory("")
    assert synced == [f"{tmp_path}/{name}" for name in ("a/x", "b")] + [str(tmp_path)]
    disk.close()


def test_a_directory_is_there_when_the_one_around_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        found.append(os.listdir(descriptor))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    RealDisk(tmp_path).make_directory("a")
    assert found == [["a"]]


def test_after_a_failed_sync_the_descriptor_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a failed write-back once; a second sync of that descriptor would succeed."""
    opened: list[str] = []

    def open_file(path: str, flags: int, mode: int) -> int:
        opened.append(os.path.basename(path))
        return os.open(path, flags, mode)

    def fails(_descriptor: int) -> None:
        raise OSError(errno.EIO, "write-back failed")

    disk = _real(tmp_path, open_file=open_file, direct=False)
    disk.write_at("a/x", 0, b"z")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="write-back failed"):
            disk.sync_file("a/x")
    disk.sync_file("a/x")
    assert opened == ["x", "x"]
    disk.close()


def _descriptors(directory: Path) -> int:
    """Of this process, to files in the directory or removed from it."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(directory))
    return count


def test_no_descriptor_stays_of_files_that_are_gone_or_beyond_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.aio.disk.FILES_OPEN_MAX", 4)
    disk = _real(tmp_path)
    before = _descriptors(tmp_path)
    names = [f"a/{number}" for number in range(9)]
    for name in names:
        disk.preallocate(name, PAGE_BYTES)
    assert _descriptors(tmp_path) == before
    for name in names:
        disk.write_at(name, 0, bytes(4096))
        disk.sync_file(name)
    assert 0 < _descriptors(tmp_path) - before <= 4
    for name in names:
        disk.remove_file(name)
    assert _descriptors(tmp_path) == before
    disk.close()


def test_a_scan_of_an_empty_directory_makes_its_rooms(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    loaded = scan(disk, now_us=5)
    assert (loaded.files, loaded.term) == ((), 0)
    assert disk.list_directory("") == ["aside", "columns", "documents", "staging"]
    disk.close()


# --------------------------------------------------------------------------- the fake's faults


def _fake() -> FakeDisk:
    disk = FakeDisk(seed=3, bytes_total=64 * PAGE_BYTES)
    disk.make_directory("a")
    disk.make_directory("b")
    return disk


def test_a_crash_drops_what_was_not_synced() -> None:
    disk = _fake()
    disk.write_at("a/x", 0, b"durable")
    disk.sync_file("a/x")
    disk.sync_directory("a")
    disk.write_at("a/x", 0, b"lost...")
    disk.write_at("a/y", 0, b"never named")
    disk.crash(Keep.NOTHING)
    assert disk.list_directory("a") == ["x"]
    assert read(disk, "a/x", 0, 7) == b"durable"


def test_a_synced_file_without_a_synced_directory_has_no_name_after_a_crash() -> None:
    disk = _fake()
    disk.write_at("a/x", 0, b"bytes")
    disk.sync_file("a/x")
    disk.crash(Keep.NOTHING)
    assert disk.files() == []


def test_a_crash_tears_writes_at_pages() -> None:
    kept: set[bytes] = set()
    for seed in range(20):
        disk = FakeDisk(seed=seed)
        disk.make_directory("a")
        disk.preallocate("a/x", 2 * PAGE_BYTES)
        disk.sync_file("a/x")
        disk.sync_directory("a")
        disk.write_at("a/x", 0, b"1" * 2 * PAGE_BYTES)
        disk.crash(Keep.SOME)
        kept.add(read(disk, "a/x", PAGE_BYTES - 1, 2))
    assert kept == {b"\0\0", b"1\0", b"\x001", b"11"}


def test_a_rename_never_loses_both_names() -> None:
    for seed in range(30):
        disk = FakeDisk(seed=seed)
        disk.make_directory("a")
        disk.make_directory("b")
        disk.write_at("a/x", 0, b"content")
        disk.sync_file("a/x")
        disk.sync_directory("a")
        disk.rename_file("a/x", "b/y")
        disk.sync_directory("a" if seed % 2 else "b")
        disk.crash(Keep.SOME)
        assert disk.files()
        assert all(read(disk, file, 0, 7) == b"content" for file in disk.files())


def test_a_failed_sync_is_followed_by_one_that_lies() -> None:
    disk = _fake()
    disk.write_at("a/x", 0, b"old")
    disk.sync_file("a/x")
    disk.sync_directory("a")
    disk.write_at("a/x", 0, b"new")
    disk.faults.append(Fault("sync"))
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_file("a/x")
    disk.sync_file("a/x")
    disk.crash(Keep.ALL)
    assert read(disk, "a/x", 0, 3) == b"old"


def test_a_full_disk_writes_short() -> None:
    disk = FakeDisk(seed=0, bytes_total=2 * PAGE_BYTES)
    disk.make_directory("a")
    with pytest.raises(OSError, match="No space") as caught:
        disk.write_at("a/x", 0, b"f" * 3 * PAGE_BYTES)
    assert caught.value.errno == errno.ENOSPC
    assert disk.file_bytes("a/x") == 2 * PAGE_BYTES


def test_rot_flips_one_bit_for_good() -> None:
    disk = _fake()
    disk.write_at("a/x", 0, b"\0\0")
    disk.sync_file("a/x")
    disk.sync_directory("a")
    disk.rot("a/x", 1, bit=3)
    disk.crash(Keep.NOTHING)
    assert read(disk, "a/x", 0, 2) == b"\0\x08"


def test_a_misdirected_write_lands_elsewhere() -> None:
    disk = _fake()
    disk.preallocate("a/x", 4 * PAGE_BYTES)
    disk.misdirect_next_write = True
    disk.write_at("a/x", 0, b"m" * PAGE_BYTES)
    assert read(disk, "a/x", 0, 1) == b"\0"
    assert b"m" * PAGE_BYTES in read(disk, "a/x", PAGE_BYTES, 3 * PAGE_BYTES)


def test_equal_seeds_give_equal_crashes() -> None:
    def run() -> list[tuple[str, bytes]]:
        disk = FakeDisk(seed=11)
        disk.make_directory("a")
        for index in range(8):
            disk.write_at(f"a/{index}", 0, bytes([index]) * 3 * PAGE_BYTES)
            if index % 3 == 0:
                disk.sync_file(f"a/{index}")
        disk.crash()
        return [(file, read(disk, file, 0, disk.file_bytes(file))) for file in disk.files()]

    assert run() == run()


def test_fragments_go_around_the_page_cache_where_the_file_system_can(tmp_path: Path) -> None:
    direct: list[bool] = []

    def write(descriptor: int, data: Buffer, offset: int) -> int:
        direct.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return os.pwrite(descriptor, data, offset)

    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError:
        pytest.skip("no O_DIRECT on this file system")
    disk = _real(tmp_path, write=write)
    block = mmap.mmap(-1, PAGE_BYTES)
    disk.write_at("a/x", 0, memoryview(block))
    disk.close()
    assert direct == [True]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_what_takes_no_writes_is_read_also_when_it_was_not_open(tmp_path: Path, code: int) -> None:
    """As after a file system's error, which makes it read-only under whoever uses it."""
    before = RealDisk(tmp_path)
    before.write_at("a", 0, b"x" * PAGE_BYTES)
    before.close()

    def open_file(path: str, flags: int, mode: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(code, os.strerror(code))
        return os.open(path, flags, mode)

    disk = RealDisk(tmp_path, open_file=open_file)
    assert read(disk, "a", 0, PAGE_BYTES) == b"x" * PAGE_BYTES
    with pytest.raises(OSError, match=os.strerror(code)):
        disk.write_at("a", 0, bytes(PAGE_BYTES))
    assert read(disk, "a", 0, PAGE_BYTES) == b"x" * PAGE_BYTES
    disk.close()
