"""Where payload bytes land, what is read along, and what can be taken from there again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.transfer.landings import GAP_BYTES, GAPS_BYTES_MIN, LONG_BYTES, Landings


def runs(*spans: tuple[int, int], gap_bytes: int = GAP_BYTES) -> Landings:
    landings = Landings(gap_bytes)
    for start, end in spans:
        landings.add_range(start, np.arange(start, end, dtype=np.int64).astype(np.uint8))
    return landings


def expected(start: int, end: int) -> bytes:
    return np.arange(start, end, dtype=np.int64).astype(np.uint8).tobytes()


def test_small_gaps_are_read_along_and_large_ones_are_not() -> None:
    assert runs((0, 100), (150, 200), (200 + GAP_BYTES + 1, 900)).spans() == (
        (0, 200),
        (201 + GAP_BYTES, 900),
    )
    assert runs((0, 100), (150, 200), gap_bytes=0).spans() == ((0, 100), (150, 200))


def test_what_is_read_along_stays_a_small_part_of_what_is_wanted() -> None:
    wide, narrow = GAP_BYTES, GAP_BYTES // 4
    count = GAPS_BYTES_MIN // narrow + 100
    spans, at = [], 0
    for number in range(2 * count):
        spans.append((at, at + 300))
        at += 300 + (wide if number % 2 else narrow)
    landings = runs(*spans)
    read = sum(end - start for start, end in landings.spans())
    assert landings.wanted_bytes < read <= landings.wanted_bytes + GAPS_BYTES_MIN
    closed = {low for low, high in landings.spans() if high - low > 300}
    assert closed, "the narrow ones go first"
    assert all(high - low <= 600 + narrow for low, high in landings.spans())


def test_closed_gaps_have_a_place_and_close_no_others() -> None:
    landings = runs((0, 100), (150, 200), (5000, 6000))
    spans = landings.spans()
    landings.close_gaps()
    assert landings.spans() == spans == ((0, 200), (5000, 6000))
    landings.scatter(90, np.frombuffer(expected(90, 160), np.uint8))
    found = landings.gather(80, 160)
    assert found is not None
    assert bytes(found) == expected(80, 160)


@pytest.mark.parametrize(("start", "end"), [(0, 10), (5, 30), (20, 40), (8, 60)])
def test_bytes_are_gathered_from_wherever_they_landed(start: int, end: int) -> None:
    found = runs((0, 10), (10, 25), (25, 60), (20, 40)).gather(start, end)
    assert found is not None
    assert bytes(found) == expected(start, end)


def test_bytes_without_a_place_are_not_gathered() -> None:
    landings = runs((0, 10), (20, 30))
    for start, end in ((5, 25), (10, 20), (25, 31)):
        assert landings.gather(start, end) is None


def test_a_part_keeps_the_places_and_reads_nothing_along() -> None:
    landings = runs((0, 100), (150, 400))
    part = landings.within([(20, 60), (90, 200)])
    assert part.spans() == ((20, 60), (90, 100), (150, 200))
    part.scatter(20, np.zeros(40, np.uint8))
    found = landings.gather(10, 30)
    assert found is not None
    assert bytes(found) == expected(10, 20) + bytes(10)


@given(st.sets(st.integers(0, 59)), st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9))))
def test_runs_that_lie_together_are_scattered_to_whoever_wants_them(
    brought: set[int], wanted: list[tuple[int, int]]
) -> None:
    landings, memories = Landings(), [np.zeros(size, np.uint8) for _, size in wanted]
    for (start, _), memory in zip(wanted, memories, strict=True):
        landings.add_range(start, memory)
    firsts = np.array(sorted(brought), np.int64)
    source = (firsts + 1).astype(np.uint8)
    if wanted:
        landings.scatter_runs(firsts, np.ones(len(firsts), np.int64), source)
    for (start, size), memory in zip(wanted, memories, strict=True):
        at = range(start, start + size)
        assert memory.tolist() == [n + 1 if n in brought else 0 for n in at]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9))))
def test_a_whole_payload_fills_every_place(wanted: list[tuple[int, int]]) -> None:
    landings, memories = Landings(), [np.zeros(size, np.uint8) for _, size in wanted]
    for (start, _), memory in zip(wanted, memories, strict=True):
        landings.add_range(start, memory)
    landings.fill(np.arange(60, dtype=np.uint8))
    for (start, size), memory in zip(wanted, memories, strict=True):
        assert memory.tolist() == list(range(start, start + size))


@pytest.mark.parametrize("size", [LONG_BYTES - 1, LONG_BYTES, 3 * LONG_BYTES])
def test_runs_of_any_length_fill_their_places_and_write_nowhere_else(size: int) -> None:
    payload = np.random.default_rng(size).integers(0, 256, 4 * size, np.uint8)
    memories = [np.zeros(size + 2, np.uint8) for _ in range(2)]
    landings = Landings()
    for number, memory in enumerate(memories):
        landings.add_range(number * 2 * size + 1, memory[1:-1])
    landings.fill(payload)
    for number, memory in enumerate(memories):
        start = number * 2 * size + 1
        assert memory[1:-1].tobytes() == payload[start : start + size].tobytes()
        assert memory[0] == memory[-1] == 0
