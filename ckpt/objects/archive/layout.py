"""What lies where in an archive of small arrays: a ZIP file that is a Zarr group of its own.

    header, elements | header, elements | ... | zarr.json, zarr.json, ... | directory

The elements come first, close together: a load of ours reads them by the manifest's places and
never the rest, which is for other readers. Small arrays that are each rank's own are the rows of
one array: a thousand ranks with a step counter each are 8,000 bytes, not a thousand files.

All but the CRC-32s of the elements follows from the plan; those are known once the elements were
read, so that the rest is written last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.units import KiB, MiB
from ckpt.format.checksum import crc32
from ckpt.format.dtypes import dtype_of
from ckpt.format.table import Meaning
from ckpt.objects.archive.records import ZipEntry, data_start, directory, local_header
from ckpt.objects.documents import ArrayPlan, Header, Plan
from ckpt.objects.elements import element_of
from ckpt.objects.grid import PACK_BELOW_BYTES
from ckpt.objects.zarr_layout import archived_documents

ALIGN_BYTES: Final = 64
"""Alignment of elements in the archive."""
MEMBERS_MAX: Final = 16_384
"""Most members of one archive: its documents are made in memory, about 2 KiB for each."""
STACK_BYTES_MAX: Final = 64 * MiB
"""Most bytes of all ranks' own arrays of one name that become rows of one array."""
CHUNK_BYTES_MIN: Final = 64 * KiB


@dataclass(frozen=True, slots=True)
class ArchivedChunk:
    """One chunk of a small array: an entry of the archive."""

    key: str
    entry_start: int
    start: int
    """Of its elements."""
    row_bytes: int
    row_count: int
    """Rows that it has room for; those that the array has not are zeros."""

    @property
    def length(self) -> int:
        """Bytes of its elements."""
        return self.row_bytes * self.row_count

    @property
    def end(self) -> int:
        """Exclusive."""
        return self.start + self.length

    def entry(self, crc: int) -> ZipEntry:
        """Its record, when its elements have this CRC-32."""
        return ZipEntry(self.key, self.entry_start, self.length, crc)


@dataclass(frozen=True, slots=True)
class SmallArray:
    """A small array: the tensor itself, or a row for each rank that has one of its own."""

    array: ArrayPlan
    ranks: tuple[int, ...]
    """Whose rows these are; none when it is the tensor itself."""
    pieces: tuple[ArchivedChunk, ...]
    """None without elements."""
    start: int
    """Of its first elements, if it has any."""
    end: int
    """Exclusive; where the next one may begin."""

    def row_starts(self) -> Iterator[int]:
        """Where the elements of each row are, without end."""
        for piece in self.pieces:
            for row in range(piece.row_count):
                yield piece.start + row * piece.row_bytes
        while not self.pieces:
            yield self.start


def is_stacked(meaning: Meaning, count: int, length: int) -> bool:
    """Whether so many small arrays of `length` bytes, of one name, are rows of one array."""
    return meaning is Meaning.OWN and count * length <= STACK_BYTES_MAX


def make_member(
    path: str,
    dtype: str,
    shape: tuple[int, ...],
    ranks: tuple[int, ...],
    at: int,
    *,
    portable: bool,
) -> SmallArray:
    """The member whose first entry begins at byte `at`. ranks: as in a Member."""
    element = element_of(dtype, portable=portable)
    row_bytes = math.prod(shape) * dtype_of(dtype).itemsize
    row_count = min(max(1, PACK_BELOW_BYTES // max(1, row_bytes)), max(1, len(ranks)))
    stored = element.stored_shape(shape)
    chunk = tuple(max(1, size) for size in stored)
    if ranks:
        stored, chunk = (len(ranks), *stored), (row_count, *chunk)
    array = ArrayPlan.of(path, dtype, element, stored, chunk, chunk)
    if not row_bytes:
        return SmallArray(array, ranks, (), at, at)
    pieces = tuple(_pieces(array, -(-max(1, len(ranks)) // row_count), row_bytes, row_count, at))
    return SmallArray(array, ranks, pieces, pieces[0].start, pieces[-1].end)


def _pieces(
    array: ArrayPlan, count: int, row_bytes: int, row_count: int, at: int
) -> Iterator[ArchivedChunk]:
    for number in range(count):
        # Cut along the first axis alone; a scalar's only chunk has no number.
        numbers = (str(number), *("0" for _ in array.shape[1:]))[: len(array.shape)]
        key = "/".join((array.path, "c", *numbers))
        piece = ArchivedChunk(key, at, data_start(key, at, ALIGN_BYTES), row_bytes, row_count)
        yield piece
        at = piece.end


def members_of(plan: Plan, number: int) -> list[SmallArray]:
    """Those of the plan's archive with that number, as they lie."""
    found: list[SmallArray] = []
    for tensor in plan.tensors:
        here = [place for place in tensor.places if place.array == number and not place.is_whole]
        if not here:
            continue
        ranks: tuple[int, ...] = ()
        if is_stacked(tensor.meaning, len(tensor.places), here[0].length):
            ranks, here = tuple(box.rank for box in tensor.boxes), here[:1]
        for place in here:
            at = found[-1].end if found else 0
            member = make_member(
                place.path, tensor.dtype, tensor.shape, ranks, at, portable=plan.portable
            )
            found.append(member)
    return found


def chunk_bytes(end: int, most: int) -> int:
    """Of an archive whose elements end there: no chunk of theirs holds much of the rest."""
    count = max(1, -(-end // most))
    return max(CHUNK_BYTES_MIN, -(-end // count))


def tail(header: Header, members: Sequence[SmallArray], crcs: Sequence[int]) -> bytes:
    """All that follows the elements. crcs: the CRC-32 of each piece of each member."""
    documents = archived_documents(
        header, [member.array for member in members], {m.array.path: m.ranks for m in members}
    )
    pieces = (piece for member in members for piece in member.pieces)
    entries = [piece.entry(crc) for piece, crc in zip(pieces, crcs, strict=True)]
    parts: list[bytes] = []
    at = members[-1].end
    for name, document in documents.items():
        entry = ZipEntry(name, at, len(document), crc32(document))
        parts += (local_header(entry, 1), document)
        entries.append(entry)
        at += len(parts[-2]) + len(document)
    return b"".join((*parts, directory(entries, at)))
