"""A file's bytes as pages: what is read now, and what a crash cannot take away.

Pages are immutable and shared by both, so that a write of whole pages, a sync and a crash move
references instead of bytes. A page that was never written is missing and reads as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import align_up
from ckpt.protocol.events import Buffer

_ZEROS = bytes(PAGE_BYTES)


@dataclass(slots=True, eq=False)
class PagedFile:
    """I am one file, whatever its names are."""

    size: int = 0
    live: dict[int, bytes] = field(default_factory=dict)
    """Page number to PAGE_BYTES; zeros after `size`."""
    durable_size: int = 0
    durable: dict[int, bytes] = field(default_factory=dict)
    """The same of what a crash leaves; zeros after `durable_size`."""
    dirty: set[int] = field(default_factory=set)
    """Pages whose live bytes are not durable; iterated in order only."""
    resized: bool = False
    """The size is not durable."""
    links: int = 0
    """Live names."""
    harmed: bool = False
    """Some of its bytes have changed at rest."""

    @property
    def held_bytes(self) -> int:
        """Of the device, in whole pages."""
        return align_up(self.size, PAGE_BYTES)

    def write(self, offset: int, data: Buffer) -> None:
        """Store all of `data`, a flat buffer of bytes; the file grows where it must."""
        start, end = offset, offset + len(data)
        if offset % PAGE_BYTES == 0 and len(data) == PAGE_BYTES:
            page = offset // PAGE_BYTES
            self.live[page] = bytes(data)
            self.dirty.add(page)
            start = end
        while start < end:
            page, skip = divmod(start, PAGE_BYTES)
            count = min(PAGE_BYTES - skip, end - start)
            part = bytes(data[start - offset : start - offset + count])
            if count < PAGE_BYTES:
                old = self.live.get(page, _ZEROS)
                part = old[:skip] + part + old[skip + count :]
            self.live[page] = part
            self.dirty.add(page)
            start += count
        if end > self.size:
            self.size, self.resized = end, True

    def truncate(self, size: int) -> None:
        """Cut, or grow by zeros."""
        if size < self.size:
            _cut(self.live, size)
        self.size, self.resized = size, True

    def read(self, offset: int, length: int) -> bytes:
        """Shorter only where the file ends."""
        return _read(self.live, self.size, offset, length)

    def flip(self, offset: int, bit: int) -> None:
        """One bit rots, at rest."""
        page, index = divmod(offset, PAGE_BYTES)
        self.live[page] = _flipped(self.live.get(page, _ZEROS), index, bit)
        if offset < self.durable_size:
            self.durable[page] = _flipped(self.durable.get(page, _ZEROS), index, bit)

    def lay(self, page: int, content: bytes) -> None:
        """Another page's bytes lie here, at rest."""
        self.live[page] = self.durable[page] = content

    # ----------------------------------------------------------------------- durability

    def sync(self) -> None:
        """Make everything durable that is still dirty."""
        self.persist(self.dirty)
        self.dirty.clear()
        if self.resized:
            self.persist_size()

    def persist(self, pages: Iterable[int]) -> None:
        """These pages reach the platter, as far as the file goes."""
        live, durable = self.live, self.durable
        for page in sorted(pages):
            end = (page + 1) * PAGE_BYTES
            if end <= self.size:
                durable[page] = live.get(page, _ZEROS)
                if end > self.durable_size:
                    self.durable_size = end
                continue
            end = self.size
            count = end - page * PAGE_BYTES
            if count <= 0:
                continue
            new = self.live.get(page, _ZEROS)
            if end < self.durable_size and count < PAGE_BYTES:
                new = new[:count] + self.durable.get(page, _ZEROS)[count:]
            self.durable[page] = new
            self.durable_size = max(self.durable_size, end)

    def persist_size(self) -> None:
        """The size reaches the platter."""
        if self.size < self.durable_size:
            _cut(self.durable, self.size)
        self.durable_size = self.size
        self.resized = False

    def forget_dirty(self) -> None:
        """As after a failed sync: the pages count as clean though they never became durable."""
        self.dirty.clear()

    def revert(self) -> None:
        """Only what is durable is left."""
        self.size, self.live = self.durable_size, dict(self.durable)
        self.dirty.clear()
        self.resized = False

    def durable_bytes(self) -> bytes:
        return _read(self.durable, self.durable_size, 0, self.durable_size)

    def durable_ends(self) -> tuple[bytes, bytes]:
        """The first and the last whole page."""
        last = max(0, self.durable_size // PAGE_BYTES - 1)
        return self.durable.get(0, _ZEROS), self.durable.get(last, _ZEROS)


def _read(pages: dict[int, bytes], size: int, offset: int, length: int) -> bytes:
    end = min(offset + length, size)
    if offset >= end:
        return b""
    first, last = offset // PAGE_BYTES, (end - 1) // PAGE_BYTES
    if first == last:
        whole = pages.get(first, _ZEROS)
    else:
        whole = b"".join([pages.get(page, _ZEROS) for page in range(first, last + 1)])
    return whole[offset - first * PAGE_BYTES : end - first * PAGE_BYTES]


def _cut(pages: dict[int, bytes], size: int) -> None:
    """Forget what lies after `size`, so that a file that grows again has zeros there."""
    edge, count = divmod(size, PAGE_BYTES)
    for page in [page for page in pages if page > edge or (page == edge and not count)]:
        del pages[page]
    if count and edge in pages:
        pages[edge] = pages[edge][:count].ljust(PAGE_BYTES, b"\0")


def _flipped(page: bytes, index: int, bit: int) -> bytes:
    return page[:index] + bytes([page[index] ^ 1 << bit]) + page[index + 1 :]
