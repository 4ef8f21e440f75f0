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

from msgspec import Struct

from ckpt.aio.disk import DiskSpace
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import GiB, align_up
from ckpt.protocol.events import Buffer
from ckpt.testing.pages import PagedFile


class Keep(Enum):
    """How much of what was not synced survives a crash."""

    NOTHING = "nothing"
    ALL = "all"
    SOME = "some"
    """Any part, by the seed."""


class _Change(Struct, frozen=True):
    """One unsynced change of a directory: `inode` None takes the name away."""

    name: str
    inode: PagedFile | None
    renamed_to: str | None = None
    """Full new name: this removal may persist only if that name does."""
    renamed: PagedFile | None = None


@dataclass(slots=True)
class _Directory:
    live: dict[str, PagedFile] = field(default_factory=dict)
    durable: dict[str, PagedFile] = field(default_factory=dict)
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
        self.inodes_free: int | None = None
        """What `space` says of them; nothing is refused for it."""
        self.faults: list[Fault] = []
        self.misdirect_next_write = False
        self.operation_count = 0
        """Operations that change something, for enumerating crash points."""
        self._directories: dict[str, _Directory] = {"": _Directory()}
        #: File -> its directory, which is never removed, and its name there.
        self._places: dict[str, tuple[_Directory, str]] = {}
        #: Of all files with a live name.
        self._bytes_used = 0

    # ----------------------------------------------------------------------- the Disk protocol

    def preallocate(self, file: str, bytes_count: int) -> None:
        self._fail("preallocate", file)
        directory, name = self._place(file)
        old = directory.live.get(name)
        held = old.held_bytes if old is not None else 0
        if self._bytes_used - held + align_up(bytes_count, PAGE_BYTES) > self.bytes_total:
            raise _error("ENOSPC")
        self._change(file, PagedFile(size=bytes_count, resized=True))

    def write_at(self, file: str, offset: int, data: Buffer) -> None:
        view = data if isinstance(data, bytes) else memoryview(data).cast("B")
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
            inode = PagedFile()
            self._change(file, inode)
        if self.misdirect_next_write and inode.size >= 2 * PAGE_BYTES:
            self.misdirect_next_write = False
            pages = inode.size // PAGE_BYTES
            offset = (offset // PAGE_BYTES + self._random.randrange(1, pages)) % pages * PAGE_BYTES
            view = view[: max(0, inode.size - offset)]
        if offset + len(view) > inode.size and offset + len(view) > inode.held_bytes:
            room = self.bytes_total - self._bytes_used + inode.held_bytes
            if offset + len(view) > room:
                self._store(inode, offset, view[: max(0, room - offset)])
                raise _error("ENOSPC")
        self._store(inode, offset, view)

    def truncate_file(self, file: str, bytes_count: int) -> None:
        self._fail("truncate", file)
        inode = self._inode(file)
        self._bytes_used -= inode.held_bytes
        inode.truncate(bytes_count)
        self._bytes_used += inode.held_bytes

    def sync_file(self, file: str) -> None:
        inode = self._inode(file)
        try:
            self._fail("sync", file)
        except OSError:
            # As in Linux: the pages are marked clean though they never reached the platter.
            inode.forget_dirty()
            raise
        inode.sync()

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

    def read_at(self, file: str, offset: int, length: int, *, at_rest: bool = False) -> memoryview:
        """There is no cache: all is read at rest."""
        self._fail("read", file, changes=False)
        return memoryview(self._inode(file).read(offset, length))

    def open_to_read(self, file: str) -> int:
        """Of a copy: what is written later is not seen."""
        self._fail("open", file, changes=False)
        inode = self._inode(file)
        descriptor = os.memfd_create(file)
        os.pwrite(descriptor, inode.read(0, inode.size), 0)
        return descriptor

    def release(self, data: Buffer) -> None:
        """Buffers of this disk are never used twice."""

    def list_directory(self, directory: str) -> list[str]:
        if directory not in self._directories:
            raise _error("ENOENT")
        return sorted(self._directories[directory].live)

    def make_directory(self, directory: str) -> None:
        self._directories.setdefault(directory, _Directory())

    def file_bytes(self, file: str) -> int:
        return self._inode(file).size

    def space(self) -> DiskSpace:
        free = max(0, self.bytes_total - self._bytes_used)
        return DiskSpace(self.bytes_total, free, self.inodes_free)

    def close(self) -> None:
        """Nothing to give up: the bytes outlive the process that wrote them."""

    # ----------------------------------------------------------------------- faults

    def crash(self, keep: Keep = Keep.SOME) -> None:
        """Power is lost: of what was not synced, `keep` survives. Open faults stay."""
        for inode in self._inodes():
            kept = {page for page in sorted(inode.dirty) if self._survives(keep)}
            inode.persist(kept)
            if inode.resized and self._survives(keep):
                inode.persist_size()
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
        inodes = self._inodes()
        for inode in inodes:
            inode.revert()
            inode.links = 0
        for directory in self._directories.values():
            directory.live = dict(directory.durable)
            directory.changes.clear()
            for inode in directory.live.values():
                inode.links += 1
        self._bytes_used = sum(inode.held_bytes for inode in inodes if inode.links)

    def rot(self, file: str, offset: int, bit: int = 0) -> None:
        """Flip one bit at rest."""
        inode = self._inode(file)
        inode.flip(offset, bit)
        inode.harmed = True

    def misplace(self, file: str, page: int, source: str, source_page: int) -> None:
        """At rest a page holds what another page holds: whole, valid, and not its own."""
        start = source_page * PAGE_BYTES
        content = self._inode(source).read(start, PAGE_BYTES)
        inode = self._inode(file)
        inode.lay(page, content.ljust(PAGE_BYTES, b"\0"))
        inode.harmed = True

    def is_mended(self, file: str) -> bool:
        """Whether a file that nothing has harmed has this name, and no crash can change that."""
        path, _, name = file.rpartition("/")
        directory = self._directories.get(path)
        inode = directory.durable.get(name) if directory is not None else None
        return inode is not None and not inode.harmed

    def files(self) -> list[str]:
        """Every name, in order."""
        return sorted(
            f"{path}/{name}".lstrip("/")
            for path, directory in self._directories.items()
            for name in directory.live
        )

    def has(self, file: str) -> bool:
        """Whether a file has this name now."""
        directory, name = self._place(file)
        return name in directory.live

    def durable(self, file: str) -> bytes | None:
        """What no crash can take away: the durable bytes under a durable name; None without one."""
        path, _, name = file.rpartition("/")
        if path not in self._directories:
            return None
        inode = self._directories[path].durable.get(name)
        return inode.durable_bytes() if inode is not None else None

    def durable_ends(self, file: str) -> tuple[bytes, bytes] | None:
        """The first and the last page of the same; the page itself, so equal ones compare fast."""
        path, _, name = file.rpartition("/")
        directory = self._directories.get(path)
        inode = directory.durable.get(name) if directory is not None else None
        return inode.durable_ends() if inode is not None else None

    def durable_names(self, directory: str) -> list[str]:
        """What no crash can take away of a directory; nothing of one that is not there."""
        found = self._directories.get(directory)
        return [] if found is None else sorted(found.durable)

    def is_synced(self, file: str) -> bool:
        """Whether a crash would leave a file's bytes as they are, wherever its name goes."""
        inode = self._inode(file)
        return not inode.dirty and not inode.resized

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
        if not self.faults:
            return
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
        known = self._places.get(file)
        if known is None:
            path, _, name = file.rpartition("/")
            directory = self._directories.get(path)
            if directory is None:
                raise _error("ENOENT")
            known = self._places[file] = directory, name
        return known

    def _inode(self, file: str) -> PagedFile:
        directory, name = self._place(file)
        inode = directory.live.get(name)
        if inode is None:
            raise _error("ENOENT")
        return inode

    def _change(
        self, file: str, inode: PagedFile | None, renamed_to: str | None = None,
        renamed: PagedFile | None = None,
    ) -> None:  # fmt: skip
        directory, name = self._place(file)
        old = directory.live.pop(name, None)
        if old is not None:
            self._unlink(old)
        if inode is not None:
            directory.live[name] = inode
            self._link(inode)
        directory.changes.append(_Change(name, inode, renamed_to, renamed))

    def _link(self, inode: PagedFile) -> None:
        inode.links += 1
        if inode.links == 1:
            self._bytes_used += inode.held_bytes

    def _unlink(self, inode: PagedFile) -> None:
        inode.links -= 1
        if not inode.links:
            self._bytes_used -= inode.held_bytes

    def _store(self, inode: PagedFile, offset: int, data: Buffer) -> None:
        size, held = inode.size, inode.held_bytes
        inode.write(offset, data)
        if inode.size != size:
            self._bytes_used += inode.held_bytes - held

    def _inodes(self) -> list[PagedFile]:
        """Each once, in name order."""
        found: dict[int, PagedFile] = {}
        for path in sorted(self._directories):
            directory = self._directories[path]
            for names in (directory.live, directory.durable):
                for name in sorted(names):
                    found.setdefault(id(names[name]), names[name])
        return list(found.values())


def _error(name: str) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number))
