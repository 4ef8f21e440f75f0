"""Do copies of an index, of which none is whole, make a whole one together?

    next(asking) --> Wanted(copy, start, end) --> its bytes, b"" if they cannot be read
                       ^------- asking.send(bytes) <------'    ... returns yes or no

A part that is damaged in one copy comes from another, as `ckpt.format.index.IndexReader` reads it.
What passes its checksums is what was written; nothing else is looked at. Whoever drives me holds no
more at once than one directory and PART_BYTES of pages, however large the index is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer
from ckpt.format.index.pages import (
    HEADER_BYTES,
    PAGE_PACKED_BYTES_MAX,
    IndexHeader,
    PayloadPage,
    TensorPage,
    all_pages,
    decode_directory,
    decode_header,
    decode_payload_page,
    decode_tensor_page,
)

PART_BYTES: Final = 1 * MiB
"""Pages that are asked for at once; a directory is asked for whole."""

_Part = TypeVar("_Part")
_Page = PayloadPage | TensorPage
_Placed = tuple[int, _Page]
"""Where a page begins, and its entry in the directory."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes [start, end) of one copy, counted from 0."""

    copy: int
    start: int
    end: int


Mending = Generator[Wanted, Buffer, bool]


def mends(copy_count: int, checkpoint: CheckpointId, index_bytes: int) -> Mending:
    """Whether every part of that index is whole in some of the copies."""
    header = yield from _whole(
        copy_count,
        ((0, HEADER_BYTES), (HEADER_BYTES, 2 * HEADER_BYTES)),
        lambda view: _header_of(view, checkpoint, index_bytes),
    )
    if header is None:
        return False
    starts = (header.directory_offset, header.directory_again_offset)
    directory = yield from _whole(
        copy_count,
        [(start, start + header.directory_bytes) for start in starts],
        lambda view: decode_directory(header, view),
    )
    if directory is None:
        return False
    for run in _runs(all_pages(directory), header.directory_offset + header.directory_bytes):
        if not (yield from _all_whole(copy_count, run)):
            return False
    return True


def _header_of(view: Buffer, checkpoint: CheckpointId, index_bytes: int) -> IndexHeader:
    header = decode_header(view)
    if (header.checkpoint, header.index_bytes) != (checkpoint, index_bytes):
        raise Corrupt(f"the header of another index: {header.checkpoint}")
    return header


def _runs(pages: Sequence[_Page], start: int) -> Iterator[list[_Placed]]:
    """Neighbours, as many as one question may ask for."""
    run: list[_Placed] = []
    for page in pages:
        if run and start + page.packed_bytes - run[0][0] > PART_BYTES:
            yield run
            run = []
        run.append((start, page))
        start += page.packed_bytes
    if run:
        yield run


def _all_whole(copy_count: int, run: list[_Placed]) -> Generator[Wanted, Buffer, bool]:
    """Whether each page is whole somewhere: by one question of each copy where they can be read,
    page by page where a copy's disk cannot give all of them.
    """
    left, start, end = run, run[0][0], run[-1][0] + run[-1][1].packed_bytes
    for copy in range(copy_count):
        view = memoryview((yield Wanted(copy, start, end)))
        left = [(at, page) for at, page in left if not _is_whole(page, view[at - start :])]
        if not left:
            return True
    for at, page in left:
        ranges = ((at, at + page.packed_bytes),)
        if (yield from _whole(copy_count, ranges, partial(_decode, page))) is None:
            return False
    return True


def _whole(
    copy_count: int, ranges: Sequence[tuple[int, int]], decode: Callable[[Buffer], _Part]
) -> Generator[Wanted, Buffer, _Part | None]:
    """The first whole one among all copies' ranges."""
    for copy in range(copy_count):
        for start, end in ranges:
            try:
                return decode((yield Wanted(copy, start, end)))
            except Corrupt:
                continue
    return None


def _is_whole(page: _Page, view: memoryview) -> bool:
    try:
        _decode(page, view[: page.packed_bytes])
    except Corrupt:
        return False
    return True


def _decode(page: _Page, view: Buffer) -> object:
    """Raises Corrupt."""
    if isinstance(page, PayloadPage):
        return decode_payload_page(page, view)
    return decode_tensor_page(page, view)


assert PAGE_PACKED_BYTES_MAX <= PART_BYTES, "a page fits one question"
