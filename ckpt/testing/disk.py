"""A seeded disk that fails as disks do.

What it models, each fault on command:
    volatile bytes       a write is durable when its file was synced; a crash keeps any subset of
    the
                         unsynced 4 KiB pages (torn writes)
    volatile names       a rename or removal is durable when its directory was synced; a crash keeps
    any
                         prefix of each directory's changes, and never loses both names of a file
    failed sync          EIO once; its bytes are then lost for ever while the next sync "succeeds"
    EIO, ENOSPC          on any operation, once or for ever; ENOSPC at any byte by capacity, with a
                         short write before it
    rot, misdirection    a flipped bit at rest; a write that lands on another page
Equal seeds and calls give equal disks.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field
from enum import Enum

from ckpt.aio.disk import DiskSpace
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import GiB, align_up
from ckpt.protocol.events import Buffer


class Keep(Enum):
    """What of the unsynced survives a crash."""

    NOTHING = "nothing"
    ALL = "all"
    SOME = "some"
    """Any part, by the seed."""


@dataclass(slots=True, eq=False)
class _Inode:
    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    """Pages whose live bytes are not durable; iterated in order only."""
    resized: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """One unsynced change of a directory: `inode` None takes the name away."""

    name: str
    inode: _Inode | None
    renamed_to: str | None = None
    """Full new name: this removal may persist only if that name does."""
    renamed: _Inode | None = None


@dataclass(slots=True)
class _Directory:
    live: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)


@dataclass(slots=True)
class Fault:
    """Fails the `skip`-th next matching operation from now, and `count` from there on."""

    operation: str
    """`write`, `sync`, `read`, `rename`, `sync_directory`, `preallocate`, `truncate`, `remove`."""
    errno_name: str = "EIO"
    file: str = ""
    """Only names that contain it."""
    skip: int = 0
    count: int = 1


class FakeDisk:
    """Implements ckpt.aio.disk.Disk in memory."""

    def __init__(self, seed: int = 0, bytes_total: int = GiB) -> None:
        self._random = random.Random(seed)
        self.bytes_total = bytes_total
        self.faults: list[Fault] = []
        self.misdirect_next_write = False
        self.operation_count = 0
        """Operations that change something, for enumerating crash points."""
        self._directories: dict[str, _Directory] = {"": _Directory()}

    # ----------------------------------------------------------------------- the Disk protocol

    def preallocate(self, file: str, bytes_count: int) -> None:
        self._fail("preallocate", file)
        directory, name = self._place(file)
        old = directory.live.get(name)
        held = _rounded(old) if old is not None else 0
        if self._bytes_used() - held + align_up(bytes_count, PAGE_BYTES) > self.bytes_total:
            raise _error("ENOSPC")
        inode = _Inode(live=bytearray(bytes_count), resized=True)
        self._change(file, inode)

    def write_at(self, file: str, offset: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        directory, name = self._place(file)
        try:
            self._fail("write", file)
        except OSError:
            short = view[: self._random.randrange(len(view) + 1)]
            if name in directory.live:
                self._store(directory.live[name], offset, short)
            raise
        inode = directory.live.get(name)
        if inode is None:
            inode = _Inode()
            self._change(file, inode)
        if self.misdirect_next_write and len(inode.live) >= 2 * PAGE_BYTES:
            self.misdirect_next_write = False
            pages = len(inode.live) // PAGE_BYTES
            offset = (offset // PAGE_BYTES + self._random.randrange(1, pages)) % pages * PAGE_BYTES
            view = view[: max(0, len(inode.live) - offset)]
        if offset + len(view) > _rounded(inode):
            room = self.bytes_total - self._bytes_used() + _rounded(inode)
            if offset + len(view) > room:
                self._store(inode, offset, view[: max(0, room - offset)])
                raise _error("ENOSPC")
        self._store(inode, offset, view)

    def truncate_file(self, file: str, bytes_count: int) -> None:
        self._fail("truncate", file)
        inode = self._inode(file)
        if bytes_count < len(inode.live):
            del inode.live[bytes_count:]
        else:
            inode.live.extend(bytes(bytes_count - len(inode.live)))
        inode.resized = True

    def sync_file(self, file: str) -> None:
        inode = self._inode(file)
        try:
            self._fail("sync", file)
        except OSError:
            # As in Linux: the pages are marked clean though they never reached the platter.
            inode.dirty.clear()
            raise
        _persist(inode, inode.dirty)
        if inode.resized:
            _resize(inode)
        inode.dirty.clear()

    def rename_file(self, old: str, new: str) -> None:
        self._fail("rename", old)
        inode = self._inode(old)
        self._change(old, None, renamed_to=new, renamed=inode)
        self._change(new, inode)

    def sync_directory(self, directory: str) -> None:
        self._fail("sync_directory", directory)
        found = self._directories.get(directory)
        if found is None:
            raise _error("ENOENT")
        for change in found.changes:
            # A rename is one step of the journal: its new name is durable no later than its old one
            # goes.
            if change.renamed_to is not None and change.renamed is not None:
                target, name = self._place(change.renamed_to)
                if target.live.get(name) is change.renamed:
                    target.durable[name] = change.renamed
        found.durable = dict(found.live)
        found.changes.clear()

    def remove_file(self, file: str) -> None:
        self._fail("remove", file)
        self._inode(file)
        self._change(file, None)

    def read_at(self, file: str, offset: int, length: int) -> memoryview:
        self._fail("read", file, changes=False)
        return memoryview(bytes(self._inode(file).live[offset : offset + length]))

    def release(self, data: Buffer) -> None:
        """Buffers of this disk are never used twice."""

    def list_directory(self, directory: str) -> list[str]:
        if directory not in self._directories:
            raise _error("ENOENT")
        return sorted(self._directories[directory].live)

    def make_directory(self, directory: str) -> None:
        self._directories.setdefault(directory, _Directory())

    def file_bytes(self, file: str) -> int:
        return len(self._inode(file).live)

    def space(self) -> DiskSpace:
        return DiskSpace(self.bytes_total, max(0, self.bytes_total - self._bytes_used()))

    def close(self) -> None:
        """Nothing to give up: the bytes outlive the process that wrote them."""

    # ----------------------------------------------------------------------- faults

    def crash(self, keep: Keep = Keep.SOME) -> None:
        """Power is lost: of what was not synced, `keep` survives. Open faults stay."""
        for inode in self._inodes():
            kept = {page for page in sorted(inode.dirty) if self._survives(keep)}
            _persist(inode, kept)
            if inode.resized and self._survives(keep):
                _resize(inode)
        persisted: dict[str, int] = {}
        for path, directory in self._directories.items():
            count = len(directory.changes)
            persisted[path] = {Keep.NOTHING: 0, Keep.ALL: count}.get(
                keep, self._random.randint(0, count)
            )
            for change in directory.changes[: persisted[path]]:
                if change.inode is not None:
                    directory.durable[change.name] = change.inode
        for path, directory in self._directories.items():
            for change in directory.changes[: persisted[path]]:
                if change.inode is None and self._gone(change):
                    directory.durable.pop(change.name, None)
        for directory in self._directories.values():
            directory.live = dict(directory.durable)
            directory.changes.clear()
        for inode in self._inodes():
            inode.live = bytearray(inode.durable)
            inode.dirty.clear()
            inode.resized = False

    def rot(self, file: str, offset: int, bit: int = 0) -> None:
        """Flip one bit at rest."""
        inode = self._inode(file)
        inode.live[offset] ^= 1 << bit
        if offset < len(inode.durable):
            inode.durable[offset] ^= 1 << bit

    def files(self) -> list[str]:
        """Every name, in order."""
        return sorted(
            f"{path}/{name}".lstrip("/")
            for path, directory in self._directories.items()
            for name in directory.live
        )

    def durable(self, file: str) -> bytes | None:
        """What no crash can take away: the durable bytes under a durable name; None without one."""
        path, _, name = file.rpartition("/")
        if path not in self._directories:
            return None
        inode = self._directories[path].durable.get(name)
        return bytes(inode.durable) if inode is not None else None

    # ----------------------------------------------------------------------- inside

    def _survives(self, keep: Keep) -> bool:
        return keep is Keep.ALL or (keep is Keep.SOME and self._random.random() < 0.5)

    def _gone(self, change: _Change) -> bool:
        """A rename's old name goes only when its new name is durable."""
        if change.renamed_to is None:
            return True
        directory, name = self._place(change.renamed_to)
        return directory.durable.get(name) is change.renamed

    def _fail(self, operation: str, file: str, *, changes: bool = True) -> None:
        self.operation_count += changes
        for fault in self.faults:
            if fault.operation != operation or fault.file not in file:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.count -= 1
            if not fault.count:
                self.faults.remove(fault)
            raise _error(fault.errno_name)

    def _place(self, file: str) -> tuple[_Directory, str]:
        path, _, name = file.rpartition("/")
        if path not in self._directories:
            raise _error("ENOENT")
        return self._directories[path], name

    def _inode(self, file: str) -> _Inode:
        directory, name = self._place(file)
        if name not in directory.live:
            raise _error("ENOENT")
        return directory.live[name]

    def _change(
        self, file: str, inode: _Inode | None, renamed_to: str | None = None,
        renamed: _Inode | None = None,
    ) -> None:  # fmt: skip
        directory, name = self._place(file)
        if inode is None:
            directory.live.pop(name, None)
        else:
            directory.live[name] = inode
        directory.changes.append(_Change(name, inode, renamed_to, renamed))

    def _store(self, inode: _Inode, offset: int, view: memoryview) -> None:
        end = offset + len(view)
        if end > len(inode.live):
            inode.live.extend(bytes(end - len(inode.live)))
            inode.resized = True
        inode.live[offset:end] = view
        inode.dirty.update(range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def _inodes(self) -> list[_Inode]:
        """Each once, in name order."""
        found: dict[int, _Inode] = {}
        for path in sorted(self._directories):
            directory = self._directories[path]
            for names in (directory.live, directory.durable):
                for name in sorted(names):
                    found.setdefault(id(names[name]), names[name])
        return list(found.values())

    def _bytes_used(self) -> int:
        live = {id(i): i for d in self._directories.values() for i in d.live.values()}
        return sum(_rounded(inode) for inode in live.values())


def _rounded(inode: _Inode) -> int:
    return align_up(len(inode.live), PAGE_BYTES)


def _persist(inode: _Inode, pages: set[int]) -> None:
    for page in sorted(pages):
        start = page * PAGE_BYTES
        part = inode.live[start : start + PAGE_BYTES]
        if len(inode.durable) < start + len(part):
            inode.durable.extend(bytes(start + len(part) - len(inode.durable)))
        inode.durable[start : start + len(part)] = part


def _resize(inode: _Inode) -> None:
    length = len(inode.live)
    del inode.durable[length:]
    inode.durable.extend(bytes(length - len(inode.durable)))
    inode.resized = False


def _error(name: str) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number))
