"""Copies of an index mend each other, or do not, as a reader of all of them would find."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId, Step
from ckpt.format.checksum import Buffer
from ckpt.format.index.document import Index
from ckpt.format.index.mending import PART_BYTES, Wanted, mends
from ckpt.format.index.pages import HEADER_BYTES, all_pages, decode_directory, decode_header
from ckpt.format.index.reader import decode_index
from ckpt.testing.indexes import encode_index
from tests.format.strategies import flipped, masks, positions
from tests.format.test_index import (
    CHECKPOINT,
    DOCUMENT,
    LARGE,
    SMALL_DOCUMENT,
    row_sharded,
)


class Drive:
    """Gives what is asked for, from documents whose ranges in `unreadable` cannot be read."""

    def __init__(self, *documents: bytes, unreadable: dict[int, list[int]] | None = None) -> None:
        self.documents = documents
        self.unreadable = unreadable or {}
        """Copy to places; a question that has one of them in it is not answered."""
        self.asked: list[Wanted] = []

    def run(self, checkpoint: CheckpointId = CHECKPOINT) -> bool:
        asking = mends(len(self.documents), checkpoint, len(self.documents[0]))
        try:
            wanted = next(asking)
            while True:
                self.asked.append(wanted)
                wanted = asking.send(self._read(wanted))
        except StopIteration as end:
            return bool(end.value)

    def _read(self, wanted: Wanted) -> Buffer:
        bad = self.unreadable.get(wanted.copy, [])
        if any(wanted.start <= place < wanted.end for place in bad):
            return b""
        return memoryview(self.documents[wanted.copy])[wanted.start : wanted.end]


def page_starts(document: bytes) -> list[int]:
    header = decode_header(document[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, document[start : start + header.directory_bytes])
    starts = [start + header.directory_bytes]
    for page in all_pages(directory):
        starts.append(starts[-1] + page.packed_bytes)
    return starts[:-1]


@given(st.lists(st.tuples(positions, masks), max_size=8), st.integers(1, 3))
def test_it_says_what_a_reader_of_all_copies_would_find(
    flips: list[tuple[int, int]], copy_count: int
) -> None:
    copies = [SMALL_DOCUMENT] * copy_count
    for number, (position, mask) in enumerate(flips):
        copies[number % copy_count] = flipped(copies[number % copy_count], position, mask)
    try:
        whole = decode_index(*copies).checkpoint == CHECKPOINT
    except Corrupt:
        whole = False
    assert Drive(*copies).run() is whole


def test_a_page_that_is_damaged_in_every_copy_is_lost_though_all_others_are_whole() -> None:
    starts = page_starts(DOCUMENT)
    assert len(starts) > 20
    for at in (starts[0], starts[10], starts[-1]):
        assert not Drive(flipped(DOCUMENT, at, 1), flipped(DOCUMENT, at + 1, 1)).run()
    assert Drive(flipped(DOCUMENT, starts[3], 1), flipped(DOCUMENT, starts[4], 1)).run()


def test_pages_beside_what_a_disk_cannot_read_are_asked_for_one_by_one() -> None:
    starts = page_starts(DOCUMENT)
    here, there = starts[5], starts[7]
    assert Drive(DOCUMENT, DOCUMENT, unreadable={0: [here], 1: [there]}).run()
    assert not Drive(DOCUMENT, DOCUMENT, unreadable={0: [here], 1: [here]}).run()


def test_copies_of_another_index_mend_nothing() -> None:
    assert not Drive(DOCUMENT).run(CheckpointId(CHECKPOINT.run, Step(8), CHECKPOINT.generation))
    assert Drive(DOCUMENT).run()
    asking = mends(1, CHECKPOINT, len(DOCUMENT) + 1)
    next(asking)
    asking.send(DOCUMENT[:HEADER_BYTES])
    with pytest.raises(StopIteration) as end:
        asking.send(DOCUMENT[:HEADER_BYTES])
    assert end.value.value is False


def test_no_question_is_larger_than_a_part_or_the_directory_however_large_the_index_is() -> None:
    names = [os.urandom(90).hex() for _ in range(30_000)]  # Does not pack well.
    tensors = tuple(row_sharded(name, 1) for name in sorted(names))
    index = Index(CHECKPOINT, LARGE.launch, 1000, LARGE.payloads, tensors)
    document = encode_index(index)
    assert len(document) > 3 * PART_BYTES
    header = decode_header(document[:HEADER_BYTES])
    spoilt = flipped(document, page_starts(document)[3], 1)
    drive = Drive(spoilt, flipped(document, 0, 1))
    assert drive.run()
    largest = max(wanted.end - wanted.start for wanted in drive.asked)
    assert largest <= max(PART_BYTES, header.directory_bytes)
    assert header.directory_bytes < PART_BYTES
    assert len(drive.asked) < 3 + 2 * len(document) / (PART_BYTES / 2), "pages come together"
