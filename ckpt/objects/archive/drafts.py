"""The bytes of an archive, chunk by chunk, from its beginning to its end.

Headers and the directory hold CRC-32s of elements: I learn them as chunks are filled, so that my
chunks are drawn and filled in order, by one thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ckpt.format.checksum import crc32
from ckpt.objects.archive.layout import ALIGN_BYTES, ArchivedChunk, SmallArray, tail
from ckpt.objects.archive.records import local_header
from ckpt.objects.arena import Arena
from ckpt.objects.chunks import Bytes
from ckpt.objects.documents import Header
from ckpt.objects.grid import Region
from ckpt.objects.source import Owner, Wish


class ArchiveDrafts:
    """I draw the chunks of one archive."""

    def __init__(
        self, header: Header, members: Sequence[SmallArray], owners: Sequence[Owner]
    ) -> None:
        """owners: whose elements each row of each member has."""
        self._header = header
        self._members = members
        self._owners = owners
        self._pieces = [piece for member in members for piece in member.pieces]
        self._starts = [piece.entry_start for piece in self._pieces]
        #: Of each piece, the numbers of its owners.
        self._rows = list(_rows(members))
        #: The CRC-32 of each piece; 0 until a chunk with some of it was filled.
        self._crcs = [0] * len(self._pieces)
        self._tail = b""

    def draft(self, region: Region, arena: Arena) -> ArchiveDraft:
        """What must be read for a chunk, into memory of the arena."""
        (low,), (size,) = region.offset, region.shape
        found: list[tuple[int, list[Wish]]] = []
        for number in range(max(0, bisect_right(self._starts, low) - 1), len(self._pieces)):
            piece = self._pieces[number]
            if piece.entry_start >= low + size:
                break
            if piece.end > low:
                found.append((number, [self._owners[n].wish_whole() for n in self._rows[number]]))
        return ArchiveDraft(self, low, arena.take(size), found)

    def fill(self, low: int, memory: Bytes, found: Sequence[tuple[int, list[Wish]]]) -> None:
        """Bytes [low, low + its length) of the archive, from what was read."""
        memory[:] = 0
        for number, wishes in found:
            piece = self._pieces[number]
            elements = _elements(piece, wishes)
            crc = self._crcs[number] = crc32(elements)
            header = local_header(piece.entry(crc), ALIGN_BYTES)
            _copy(np.frombuffer(header, np.uint8), piece.entry_start - low, memory)
            _copy(elements, piece.start - low, memory)
        end = self._members[-1].end
        if end < low + len(memory):
            if not self._tail:
                self._tail = tail(self._header, self._members, self._crcs)
            _copy(np.frombuffer(self._tail, np.uint8), end - low, memory)


@dataclass(slots=True)
class ArchiveDraft:
    """A chunk of an archive that is being read: `wishes` first, then `content()`."""

    _drafts: ArchiveDrafts
    _low: int
    _memory: Bytes
    #: (piece, a wish for each of its rows).
    _found: Sequence[tuple[int, list[Wish]]]

    @property
    def wishes(self) -> list[Wish]:
        """To be filled first."""
        return [wish for _, wishes in self._found for wish in wishes]

    def content(self) -> Bytes:
        """The chunk's bytes."""
        self._drafts.fill(self._low, self._memory, self._found)
        return self._memory


def _rows(members: Sequence[SmallArray]) -> Iterator[range]:
    """The rows of each piece, numbered through all members; one without pieces has rows as well."""
    first = 0
    for member in members:
        end = first + max(1, len(member.ranks))
        for piece in member.pieces:
            yield range(first, min(first + piece.row_count, end))
            first += piece.row_count
        first = end


def _elements(piece: ArchivedChunk, wishes: Sequence[Wish]) -> Bytes:
    rows = [wish.memory.reshape(-1).view(np.uint8) for wish in wishes]
    if len(rows) == piece.row_count == 1:
        return rows[0]
    whole = np.zeros(piece.length, np.uint8)
    whole[: len(rows) * piece.row_bytes] = np.concatenate(rows)
    return whole


def _copy(part: Bytes, at: int, memory: Bytes) -> None:
    """What of the part, which begins at `at` of the memory, lies in it."""
    start, end = max(0, at), min(len(memory), at + len(part))
    if start < end:
        memory[start:end] = part[start - at : end - at]
