"""Short ranges that travelled together: kept as they came, and where they are in the end."""

from __future__ import annotations

import numpy as np
import pytest

from ckpt.aio.first_touch import FRESH_BYTES_MIN
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.runs import Bytes, SpareBuffers
from ckpt.protocol.reader.events import DecodePart, FinishStripe
from ckpt.protocol.runs.spans import Spans
from ckpt.transfer.assembly import Assembly, CellPool
from ckpt.transfer.landings import Landings
from tests.aio.test_first_touch import resident_bytes, touching
from tests.protocol.reading import Columns
from tests.waiting import wait_until

CODE = Code(4, 2)
CELL = 64 * 1024
RUN, STEP = 700, 4096
WHOLE = 0, CELL


@pytest.fixture(scope="module")
def data() -> Columns:
    return Columns.make(CODE, 3 * CELL * CODE.k, CELL, seed=8)


def narrow(data: Columns) -> tuple[Assembly, Bytes, Bytes, SpareBuffers]:
    """700 of each 4,096 bytes of the payload are wanted: the assembly, their memory, what it shall
    hold, and whose the frames' memory is."""
    starts = np.arange(100, len(data.payload), STEP, dtype=np.int64)
    landings, memory = Landings(gap_bytes=0), np.zeros(RUN * len(starts), np.uint8)
    places = np.arange(len(starts), dtype=np.int64) * RUN
    landings.add(memory, starts, np.full(len(starts), RUN, np.int64), places)
    payload = np.frombuffer(data.payload, np.uint8)
    expected = np.concatenate([payload[s : s + RUN] for s in starts.tolist()])
    pool = SpareBuffers()
    assembly = Assembly(data.layout, landings, xxh3_128(data.manifest), apart=pool)
    assembly.take_manifest(data.manifest)
    return assembly, memory, expected, pool


def runs_of(stripe: int) -> Spans:
    """What is wanted of a cell."""
    begins = range(stripe * CELL + 100, (stripe + 1) * CELL, STEP)
    return tuple((start, start + RUN) for start in begins)


def bring(
    assembly: Assembly, data: Columns, column: int, ranges: Spans, pool: SpareBuffers, flip: int = 0
) -> bool:
    bulk = b"".join(bytes(data.columns[column][start:end]) for start, end in ranges)
    view = pool.take(len(bulk))
    view[:] = bulk
    return assembly.store_apart(column, ranges, view, crc32(bulk), crc32(bulk) ^ flip)


def finish(assembly: Assembly, action: FinishStripe) -> None:
    assert assembly.has_work(action)
    assert assembly.finish(action) == ()


def test_short_ranges_are_handed_out_with_their_stripe_and_not_before(data: Columns) -> None:
    assembly, memory, expected, pool = narrow(data)
    for stripe in range(3):
        for column in range(CODE.k):
            ranges = runs_of(stripe)
            assert bring(assembly, data, column, ranges[5:], pool)
            assert bring(assembly, data, column, ranges[:5], pool)
    assert not memory.any()
    for stripe in (1, 0, 2):
        finish(assembly, FinishStripe(stripe, (), (), ()))
    assert (memory == expected).all()


def test_ranges_of_several_cells_in_one_frame_find_theirs(data: Columns) -> None:
    assembly, memory, expected, pool = narrow(data)
    ranges = tuple(each for stripe in (2, 0, 1) for each in runs_of(stripe))
    for column in range(CODE.k):
        assert bring(assembly, data, column, ranges, pool)
    for stripe in range(3):
        finish(assembly, FinishStripe(stripe, (), (), ()))
    assert (memory == expected).all()


def test_what_came_short_serves_to_decode_and_is_compared_with_the_manifest(data: Columns) -> None:
    assembly, memory, expected, pool = narrow(data)
    pages = tuple((start, start + STEP) for start in range(0, CELL, STEP))
    for column in (0, 2, 3, 5):
        assert bring(assembly, data, column, pages[::2], pool)
        assert bring(assembly, data, column, pages[1::2], pool)
    part = DecodePart(*WHOLE, (0, 2, 3, 5), (1,))
    finish(assembly, FinishStripe(0, (part,), (1,), (0, 2, 3, 5)))
    of_stripe = len(expected) // 3
    assert (memory[:of_stripe] == expected[:of_stripe]).all()
    assert not memory[of_stripe:].any()


def test_a_whole_cell_that_came_short_and_is_another_is_named(data: Columns) -> None:
    assembly, memory, _, pool = narrow(data)
    later = tuple((start, start + STEP) for start in range(CELL, 2 * CELL, STEP))
    bulk = b"".join(bytes(data.columns[0][start:end]) for start, end in later)
    view = pool.take(len(bulk))
    view[:] = bulk
    here = tuple((start - CELL, end - CELL) for start, end in later)
    assert assembly.store_apart(0, here, view, crc32(bulk), crc32(bulk)), "as its target sent it"
    assert assembly.finish(FinishStripe(0, (), (), (0,))) == (0,)
    assert not memory.any()


def test_a_frame_that_broke_leaves_nothing_but_its_memory(data: Columns) -> None:
    assembly, memory, _, pool = narrow(data)
    first = pool.take(1000)
    pool.give_back(first)
    assert not bring(assembly, data, 0, runs_of(0), pool, flip=1)
    assert not assembly.has_work(FinishStripe(0, (), (), ()))
    assert np.shares_memory(np.frombuffer(pool.take(1000), np.uint8), first)
    assert not memory.any()


def test_cells_that_are_made_ahead_are_touched_and_taken_first() -> None:
    pool, size = CellPool(), 2 * FRESH_BYTES_MIN
    pool.make_ahead(size, 2)
    ahead = [pool.take(size) for _ in range(2)]
    for cell in ahead:
        wait_until(lambda cell=cell: resident_bytes(cell) >= size, "touched")  # type: ignore[misc]
    third = pool.take(size)
    assert not any(np.shares_memory(third, cell) for cell in ahead)
    pool.close()
    assert not touching()
    pool.give_back(ahead[0])
    assert pool.take(size) is ahead[0]


def test_a_large_cell_is_touched_before_bytes_come_for_it() -> None:
    """Else each comes in huge pages, which may be dear, or in a fault for each small one."""
    cell = CellPool().take(2 * FRESH_BYTES_MIN)
    assert cell.flags.writeable
    assert resident_bytes(cell) >= len(cell)
