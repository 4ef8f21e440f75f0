"""The disk of a target: a small Protocol, and the real one. What a target's machine asks of it is
in disk_actions.py.

Bulk data goes around the page cache (O_DIRECT) where the file system has it: one aligned write of a
fragment costs 0.01 to 0.03 s/GB, buffered and synced 0.2 (dataplane.md 6). Where it has not, or
where address, offset or length are not whole pages, the write is buffered; `sync_file` covers both.

Reads land in page-aligned buffers from a free list; `release` gives one back. A RealDisk may be
used from several threads (the loop's, and those that sync and write); a file's descriptor is never
closed while used.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ckpt.aio.durable import sync_directory
from ckpt.aio.lending import address_of
from ckpt.aio.slots import Slot, SlotPool
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, MiB, align_down, align_up
from ckpt.protocol.events import Buffer


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Of the file system that the directory lies on."""

    bytes_total: int
    bytes_free: int
    inodes_free: int | None = None
    """Files that may still be made; None where only bytes bound that."""


class Disk(Protocol):
    """Files in one directory. Names are relative, `/` between parts. Every failure is an OSError.

    What is written or renamed is durable only after the file, or its directory, was synced; a
    failed sync is final. `read_at` is shorter only where the file ends; `at_rest` wants what lies
    on the device.
    """

    def preallocate(self, file: str, bytes_count: int) -> None: ...
    def write_at(self, file: str, offset: int, data: Buffer) -> None: ...
    def truncate_file(self, file: str, bytes_count: int) -> None: ...
    def sync_file(self, file: str) -> None: ...
    def rename_file(self, old: str, new: str) -> None: ...
    def sync_directory(self, directory: str) -> None: ...
    def remove_file(self, file: str) -> None: ...
    def read_at(
        self, file: str, offset: int, length: int, *, at_rest: bool = False
    ) -> memoryview: ...
    def release(self, data: Buffer) -> None: ...
    def open_to_read(self, file: str) -> int: ...
    def list_directory(self, directory: str) -> list[str]: ...
    def make_directory(self, directory: str) -> None: ...
    def file_bytes(self, file: str) -> int: ...
    def space(self) -> DiskSpace: ...
    def close(self) -> None: ...


SMALL_READ_BYTES: Final = 64 * KiB
"""Headers and the like, up to so many bytes, are read into memory of their own: the pool, whose
huge pages cost their first touch, is made when somebody reads data."""
FILES_OPEN_MAX: Final = 256
_UNWRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""What opening a file for writing says where the device, or the file, takes none."""


class _OpenFile:
    """A descriptor that is closed by its last user once it is doomed; a context manager that
    gives it.
    """

    __slots__ = ("descriptor", "doomed", "lock", "user_count")

    def __init__(self, descriptor: int, lock: threading.Lock) -> None:
        self.descriptor = descriptor
        self.lock = lock
        self.user_count = 0
        self.doomed = False

    def __enter__(self) -> int:
        return self.descriptor

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.user_count -= 1
            if self.doomed and not self.user_count:
                os.close(self.descriptor)


class RealDisk:
    """A directory on this machine.

    `open_file` and `write` are `os.open` and `os.pwrite`, for tests.
    """

    def __init__(
        self,
        directory: Path,
        *,
        direct: bool = True,
        pool_bytes: int = 40 * MiB,
        open_file: Callable[[str, int, int], int] = os.open,
        write: Callable[[int, Buffer, int], int] = os.pwrite,
    ) -> None:
        self.directory = directory
        self.direct = direct
        """Whether O_DIRECT is (still) tried; False after the file system refused it."""
        self._open_file = open_file
        self._write = write

        self._lock = threading.Lock()
        #: (name, direct) to descriptor, least recently used first, at most FILES_OPEN_MAX. Under
        #: the lock.
        self._files: OrderedDict[tuple[str, bool], _OpenFile] = OrderedDict()
        self._pool_bytes = max(pool_bytes, FRAME_BULK_BYTES_MAX)
        #: Buffers that reads are lent; None until the first read that is not small. Under the lock.
        self._pool: SlotPool | None = None
        #: What readers hold of the pool, by address. Under the lock.
        self._lent: dict[int, Slot] = {}
        self._bounce = mmap.mmap(-1, MiB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bounce_lock = threading.Lock()

    # ----------------------------------------------------------------------- writing

    def preallocate(self, file: str, bytes_count: int) -> None:
        self._forget(file)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(self._path(file), flags, 0o600)
        try:
            if bytes_count:
                os.posix_fallocate(descriptor, 0, bytes_count)
        finally:
            os.close(descriptor)

    def write_at(self, file: str, offset: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        if self.direct and not (offset | len(view)) % PAGE_BYTES and len(view):
            if address_of(view) % PAGE_BYTES == 0:
                self._write_direct(file, offset, view)
            else:
                self._write_bounced(file, offset, view)
            return
        self._write_buffered(file, offset, view)

    def _write_bounced(self, file: str, offset: int, view: memoryview) -> None:
        """Through one aligned buffer: for small metadata whose memory lies anywhere."""
        with self._bounce_lock, memoryview(self._bounce) as bounce:
            for start in range(0, len(view), len(bounce)):
                part = view[start : start + len(bounce)]
                bounce[: len(part)] = part
                with bounce[: len(part)] as aligned:
                    self._write_direct(file, offset + start, aligned)

    def _write_direct(self, file: str, offset: int, view: memoryview) -> None:
        try:
            with self._opened(file, direct=True) as descriptor:
                self._write_all(descriptor, offset, view)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The file system takes no O_DIRECT, or not with our alignment: buffered from now on.
            self.direct = False
            self._write_buffered(file, offset, view)

    def _write_buffered(self, file: str, offset: int, view: memoryview) -> None:
        with self._opened(file, direct=False) as descriptor:
            self._write_all(descriptor, offset, view)

    def _write_all(self, descriptor: int, offset: int, view: memoryview) -> None:
        """A short write is not an error yet: the next one names the reason."""
        done = 0
        while done < len(view):
            count = self._write(descriptor, view[done:] if done else view, offset + done)
            if count <= 0:
                raise OSError(errno.EIO, "a write of no bytes")
            done += count

    def truncate_file(self, file: str, bytes_count: int) -> None:
        with self._opened(file, direct=False) as descriptor:
            os.ftruncate(descriptor, bytes_count)

    def sync_file(self, file: str) -> None:
        """After a failure the file's descriptors are given up: no later sync may seem to
        succeed.
        """
        try:
            with self._opened(file, direct=False) as descriptor:
                os.fsync(descriptor)
        except OSError:
            self._forget(file)
            raise

    # ----------------------------------------------------------------------- names

    def rename_file(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))
        # Not before: another thread may have opened what had the name until now.
        self._forget(old)
        self._forget(new)

    def sync_directory(self, directory: str) -> None:
        sync_directory(self._path(directory) if directory else self.directory)

    def remove_file(self, file: str) -> None:
        self._forget(file)
        os.unlink(self._path(file))

    def list_directory(self, directory: str) -> list[str]:
        return sorted(os.listdir(self._path(directory) if directory else self.directory))

    def make_directory(self, directory: str) -> None:
        path = self.directory / directory
        if not path.is_dir():
            path.mkdir(mode=0o700)
            self.sync_directory(os.path.dirname(directory))

    def file_bytes(self, file: str) -> int:
        return os.stat(self._path(file)).st_size

    def space(self) -> DiskSpace:
        found = os.statvfs(self.directory)
        # As `df` counts: what is kept for root alone is no part of it.
        total = found.f_blocks - found.f_bfree + found.f_bavail
        inodes = found.f_favail if found.f_files else None
        return DiskSpace(total * found.f_frsize, found.f_bavail * found.f_frsize, inodes)

    # ----------------------------------------------------------------------- reading

    def read_at(self, file: str, offset: int, length: int, *, at_rest: bool = False) -> memoryview:
        """Whole pages are read around the wanted bytes; give the view back with `release`."""
        start, end = align_down(offset, PAGE_BYTES), align_up(offset + length, PAGE_BYTES)
        whole = self._take_buffer(end - start)
        try:
            count = self._read_pages(file, start, whole, at_rest=at_rest)
        except OSError:
            self.release(whole)
            raise
        skip = offset - start
        found = whole[skip : max(skip, min(count, skip + length))]
        if not len(found):
            self.release(whole)
        return found

    def _read_pages(self, file: str, offset: int, whole: memoryview, *, at_rest: bool) -> int:
        if self.direct:
            try:
                with self._to_read(file, direct=True, at_rest=at_rest) as descriptor:
                    return _read_all(descriptor, offset, whole)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        with self._to_read(file, direct=False, at_rest=at_rest) as descriptor:
            if not at_rest:
                return _read_all(descriptor, offset, whole)
            # What is cached may be right where the device is not; nor shall this be kept there, or
            # what is read ahead.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            _forget_cached(descriptor, offset, len(whole))
            count = _read_all(descriptor, offset, whole)
            _forget_cached(descriptor, offset, len(whole))
            return count

    def open_to_read(self, file: str) -> int:
        """A descriptor of the file, the caller's now, past the page cache where that can be."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        if self.direct:
            try:
                return self._open_file(self._path(file), flags | os.O_DIRECT, 0)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        return self._open_file(self._path(file), flags, 0)

    def release(self, data: Buffer) -> None:
        """The reader is done with a view of `read_at`, or a part of it.

        Other buffers are ignored.
        """
        if not isinstance(data, memoryview) or not len(data):
            return
        with self._lock:
            slot = self._lent.pop(align_down(address_of(data), PAGE_BYTES), None)
        if slot is not None:
            slot.release()

    def _take_buffer(self, size: int) -> memoryview:
        """Aligned memory: of the pool, or its own when it is small or the pool is lent out."""
        with self._lock:
            if self._pool is None and size > SMALL_READ_BYTES:
                self._pool = SlotPool(self._pool_bytes)
            pool = self._pool
            slot = pool.take(size) if pool is not None and size <= pool.total_bytes else None
            if slot is not None:
                self._lent[address_of(slot.view)] = slot
                return slot.view
        own = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memoryview(own)[:size]

    @property
    def pool_bytes(self) -> int:
        """Of the pool, whether or not it is made already."""
        return self._pool_bytes

    @property
    def pool_used_bytes(self) -> int:
        """Of the pool, what readers hold."""
        return 0 if self._pool is None else self._pool.total_bytes - self._pool.free_bytes

    # ----------------------------------------------------------------------- descriptors

    def _opened(self, file: str, *, direct: bool, create: bool = True) -> _OpenFile:
        """Used by `with`, at once and exactly once."""
        key = (file, direct)
        with self._lock:
            opened = self._files.get(key)
            if opened is None:
                flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
                flags |= os.O_DIRECT if direct else 0
                descriptor = self._open_file(self._path(file), flags, 0o600)
                opened = self._files[key] = _OpenFile(descriptor, self._lock)
                self._evict()
            self._files.move_to_end(key)
            opened.user_count += 1
            return opened

    def _to_read(self, file: str, *, direct: bool, at_rest: bool) -> _OpenFile:
        """The same. At rest it is opened by its name, and closed after use: a file that is open
        already may have lost its name. So is one that takes no writes, which can be read.
        """
        if not at_rest:
            try:
                return self._opened(file, direct=direct, create=False)
            except OSError as error:
                if error.errno not in _UNWRITABLE:
                    raise
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
        opened = _OpenFile(self._open_file(self._path(file), flags, 0o600), self._lock)
        opened.user_count, opened.doomed = 1, True
        return opened

    def _evict(self) -> None:
        while len(self._files) > FILES_OPEN_MAX:
            key = next(iter(self._files))
            self._doom(key)

    def _forget(self, file: str) -> None:
        with self._lock:
            for direct in (False, True):
                if (file, direct) in self._files:
                    self._doom((file, direct))

    def _doom(self, key: tuple[str, bool]) -> None:
        """Under the lock: close it now, or when its last user is done."""
        opened = self._files.pop(key)
        opened.doomed = True
        if not opened.user_count:
            os.close(opened.descriptor)

    def _path(self, file: str) -> str:
        assert not file.startswith("/"), file
        assert ".." not in file.split("/"), file
        return f"{self.directory}/{file}"

    def close(self) -> None:
        """Close all descriptors. Buffers that readers hold stay theirs."""
        with self._lock:
            for key in list(self._files):
                self._doom(key)


def _read_all(descriptor: int, offset: int, whole: memoryview) -> int:
    done = 0
    while done < len(whole):
        count = os.preadv(descriptor, [whole[done:]], offset + done)
        done += count
        if count == 0 or count % PAGE_BYTES:
            break  # the file ends here
    return done


def _forget_cached(descriptor: int, offset: int, size: int) -> None:
    """What is in the page cache of a part of the file, and is on the device as well."""
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether the path names the file that is open. A device that does not say has not lost it."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return os.path.samestat(found, os.fstat(descriptor))
