"""Blocks come out of a file whole and right, or not at all, and not after they are given up."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ckpt.aio.slots import untouched_memory
from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.arrays import Crcs
from ckpt.native.fetching import Fetch
from ckpt.native.landing import CLOSED, GUARD_FAILED, WHOLE
from ckpt.native.sums import joined, sums_of

BEFORE = 4096
BLOCKS = 11
LENGTH = BLOCKS * BLOCK_BYTES - 8192
SLICE_BLOCKS = 3


class Stored:
    """A file with some bytes in it, and what a reader needs of it."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        self.data = np.random.default_rng(5).integers(0, 255, LENGTH, np.uint8)
        path.write_bytes(bytes(BEFORE) + self.data.tobytes())
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        self.crcs: Crcs = np.array(sums_of(self.data.data).blocks, np.uint32)
        self.slice = memoryview(untouched_memory(SLICE_BLOCKS * BLOCK_BYTES))
        self.slice = self.slice[: SLICE_BLOCKS * BLOCK_BYTES]
        self.place = np.zeros(LENGTH, np.uint8)

    def fetch(self) -> Fetch:
        return Fetch(self.descriptor, BEFORE, self.crcs, self.place.data, self.slice)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    made = Stored(tmp_path / "file", direct=False)
    yield made
    os.close(made.descriptor)


def test_all_blocks_come_to_their_place(stored: Stored) -> None:
    assert stored.fetch().fetch() == WHOLE
    assert np.array_equal(stored.place, stored.data)
    assert joined(stored.crcs, LENGTH) == sums_of(stored.data.data).whole


def test_they_come_past_the_page_cache(tmp_path: Path) -> None:
    try:
        stored = Stored(tmp_path / "file", direct=True)
    except OSError:
        pytest.skip("no O_DIRECT here")
    assert stored.fetch().fetch() == WHOLE
    assert np.array_equal(stored.place, stored.data)
    os.close(stored.descriptor)


@pytest.mark.parametrize("block", [0, 4, BLOCKS - 1])
def test_of_a_slice_with_a_wrong_block_nothing_comes(stored: Stored, block: int) -> None:
    stored.crcs[block] ^= 1
    assert stored.fetch().fetch() == GUARD_FAILED
    good = block // SLICE_BLOCKS * SLICE_BLOCKS * BLOCK_BYTES
    assert np.array_equal(stored.place[:good], stored.data[:good])
    assert not stored.place[good:].any()


def test_a_file_that_ends_before_its_blocks_is_not_whole(stored: Stored) -> None:
    os.truncate(stored.path, BEFORE + LENGTH - 1)
    assert stored.fetch().fetch() == CLOSED


def test_what_the_system_says_is_said() -> None:
    memory = np.zeros(BLOCK_BYTES, np.uint8)
    reader, writer = os.pipe()
    crcs: Crcs = np.zeros(1, np.uint32)
    assert Fetch(reader, 0, crcs, memory.data, memory.copy().data).fetch() == errno.ESPIPE
    os.close(reader)
    os.close(writer)


def test_what_was_given_up_before_does_not_come(stored: Stored) -> None:
    fetch = stored.fetch()
    fetch.cancel()
    fetch.cancel()
    assert fetch.fetch() == errno.ECANCELED
    assert not stored.place.any()


def test_nothing_is_written_any_more_once_it_is_given_up(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "file", direct=False)
    for _ in range(50):
        stored.place[:] = 0
        fetch = stored.fetch()
        thread = threading.Thread(target=fetch.fetch)
        thread.start()
        while not stored.place[0]:
            if not thread.is_alive():
                break
        fetch.cancel()
        # Whose memory it is now may write to it what he likes.
        stored.place[:] = 7
        thread.join()
        assert (stored.place == 7).all()
    os.close(stored.descriptor)


def test_buffers_that_do_not_fit_are_refused(stored: Stored) -> None:
    place, slice = stored.place.data, stored.slice
    for crcs, to, through in (
        (stored.crcs[1:], place, slice),
        (stored.crcs[::2], place, slice),
        (stored.crcs, place.toreadonly(), slice),
        (stored.crcs, place, slice[: BLOCK_BYTES // 2]),
        (stored.crcs, place, slice.toreadonly()),
        (stored.crcs[:0], place[:0], slice),
    ):
        with pytest.raises(ValueError, match=r"bytes|checksums"):
            Fetch(stored.descriptor, BEFORE, crcs, to, through)
