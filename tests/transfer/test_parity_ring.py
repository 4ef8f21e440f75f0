"""The ring's slots are free or in use, never both, in whatever order they come back."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.limits import CELL_BYTES_DEFAULT, CELL_BYTES_MAX, CODE_PARITY_MAX, PAGE_BYTES
from ckpt.transfer.parity_ring import RING_BYTES, ParityRing, ring_for

SLOTS = 6


@given(st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, SLOTS - 1), max_size=4))))
def test_no_slot_is_given_out_while_it_is_in_use(steps: list[tuple[int, list[int]]]) -> None:
    """Each step takes some, then gives some back, out of the order in which they were taken."""
    ring = ParityRing(64, SLOTS)
    used: list[int] = []
    for count, given_back in steps:
        taken = ring.take(count)
        if count > SLOTS - len(used):
            assert taken is None
        else:
            assert taken is not None
            assert len(taken) == count
            used += taken
        assert len(set(used)) == len(used), "a slot that is in use was given out"
        assert set(used) <= set(range(SLOTS))
        for position in given_back:
            if position < len(used):
                ring.give(used.pop(position))
        assert len(ring._free) == SLOTS - len(used)
    ring.close()


def test_the_slot_given_back_last_is_taken_first() -> None:
    ring = ParityRing(64, SLOTS)
    taken = ring.take(3)
    assert taken is not None
    for slot in (taken[0], taken[2], taken[1]):
        ring.give(slot)
    again = [ring.take(1) for _ in range(3)]
    assert again == [[taken[1]], [taken[2]], [taken[0]]]
    ring.close()


def test_bytes_of_one_slot_are_no_other_s() -> None:
    ring = ParityRing(64, SLOTS)
    for slot in range(SLOTS):
        ring.view(slot, 64)[:] = bytes([slot]) * 64
    assert [bytes(ring.view(slot, 3)) for slot in range(SLOTS)] == [
        bytes([slot]) * 3 for slot in range(SLOTS)
    ]
    ring.close()


def test_a_ring_at_rest_gives_its_memory_back_and_serves_again() -> None:
    ring = ParityRing(1 << 20, SLOTS)
    taken = ring.take(2)
    assert taken is not None
    for slot in taken:
        ring.view(slot, 1 << 20)[:] = b"x" * (1 << 20)
    ring.give(taken[0])
    ring.rest()
    assert _allocated(ring) >= 2 << 20, "a slot that is taken keeps its bytes"
    assert bytes(ring.view(taken[1], 3)) == b"xxx"
    ring.give(taken[1])
    ring.rest()
    assert _allocated(ring) == 0
    again = ring.take(1)
    assert again is not None
    ring.view(again[0], 3)[:] = b"abc"
    assert bytes(ring.view(again[0], 3)) == b"abc"
    ring.close()


def _allocated(ring: ParityRing) -> int:
    """Bytes of memory that it has."""
    return os.fstat(ring._descriptor).st_blocks * 512


@pytest.mark.parametrize("parity_count", range(CODE_PARITY_MAX + 1))
@pytest.mark.parametrize("cell_bytes", [PAGE_BYTES, 1 << 20, CELL_BYTES_DEFAULT, CELL_BYTES_MAX])
def test_a_ring_for_any_stripe_stays_within_its_bound(cell_bytes: int, parity_count: int) -> None:
    ring = ring_for(cell_bytes, parity_count)
    assert ring.serves(cell_bytes, parity_count)
    assert ring.slot_count >= 2 * parity_count, "a stripe is sent while one is encoded"
    assert ring.slot_count * ring.slot_bytes <= max(RING_BYTES, 2 * parity_count * ring.slot_bytes)
    ring.close()


def test_a_ring_serves_no_more_than_it_holds() -> None:
    ring = ring_for(CELL_BYTES_MAX, 2)
    assert ring.slot_count * ring.slot_bytes == RING_BYTES
    assert ring.serves(CELL_BYTES_DEFAULT, 2)
    assert not ring.serves(CELL_BYTES_DEFAULT, 3)
    ring.close()
    small = ring_for(CELL_BYTES_DEFAULT, 2)
    assert not small.serves(CELL_BYTES_MAX, 2)
    small.close()
