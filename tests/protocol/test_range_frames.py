"""What is read becomes few frames: long ranges alone and uncopied, short ones together."""

from __future__ import annotations

import numpy as np

from ckpt.format.combs import combs_of
from ckpt.format.messages.reading import ByteRuns
from ckpt.protocol.runs.range_frames import (
    LONG_BYTES,
    TOGETHER_BYTES_MAX,
    TOGETHER_MAX,
    RangeFrame,
    range_frames,
)
from tests.protocol.range_content import Column
from tests.protocol.target_world import cut_up

CONTENT = bytes(range(256)) * 40_000


def _frames(ranges: list[tuple[int, int]]) -> list[RangeFrame]:
    """The ranges as few runs, ascending."""
    runs = combs_of(np.array(ranges, np.int64).reshape(-1, 2))
    return list(range_frames(runs, Column(memoryview(CONTENT))))


def _check(ranges: list[tuple[int, int]], frames: list[RangeFrame]) -> None:
    found: dict[int, bytes] = {}
    for message, bulk, _ in frames:
        found |= cut_up(message, bytes(bulk))
    assert found == {start: CONTENT[start:end] for start, end in ranges}


def test_short_ranges_travel_together_and_a_long_one_alone_as_it_lies() -> None:
    ranges = [(0, 10), (20, 21), (1000, 1000 + LONG_BYTES), (900_000, 900_100)]
    frames = _frames(ranges)
    _check(ranges, frames)
    assert [len(frame.message.ranges) for frame in frames] == [1, 3]
    assert frames[0].bulk.obj is CONTENT
    assert [frame.is_copy for frame in frames] == [False, True]


def test_one_short_range_is_not_copied() -> None:
    (frame,) = _frames([(5, 50)])
    assert frame.message.ranges == (ByteRuns(5, 50),)
    assert frame.bulk.obj is CONTENT
    assert not frame.is_copy


def test_a_frame_holds_so_many_ranges_and_bytes_and_no_more() -> None:
    many = [(at * 4 + at % 3, at * 4 + 1 + at % 3) for at in range(2 * TOGETHER_MAX + 1)]
    frames = _frames(many)
    _check(many, frames)
    assert [len(frame.message.ranges) for frame in frames] == [TOGETHER_MAX, TOGETHER_MAX, 1]
    wide = [(at * LONG_BYTES, (at + 1) * LONG_BYTES - 1) for at in range(70)]
    frames = _frames(wide)
    _check(wide, frames)
    assert all(len(frame.bulk) <= TOGETHER_BYTES_MAX for frame in frames)
    assert len(frames) == 3


def test_runs_at_one_distance_have_one_name_however_many() -> None:
    many = [(at * 4, at * 4 + 2) for at in range(50_000)]
    (frame,) = frames = _frames(many)
    _check(many, frames)
    assert frame.message.ranges == (ByteRuns(0, 2, 50_000, 4),)


def test_long_runs_at_one_distance_come_each_alone_as_it_lies() -> None:
    many = [(at * 300_000, at * 300_000 + LONG_BYTES) for at in range(5)]
    frames = _frames([*many, (9_000_000, 9_000_010)])
    _check([*many, (9_000_000, 9_000_010)], frames)
    assert [frame.message.ranges for frame in frames[:5]] == [(ByteRuns(*each),) for each in many]
    assert not any(frame.is_copy for frame in frames)


def test_runs_of_which_one_frame_holds_a_part_go_on_in_the_next() -> None:
    fit = TOGETHER_BYTES_MAX // 3000
    many = [(5, 25), *((at, at + 3000) for at in range(1000, 9_001_000, 5000))]
    frames = _frames(many)
    _check(many, frames)
    assert [[each.count for each in frame.message.ranges] for frame in frames] == [
        [1, fit], [1800 - fit]
    ]  # fmt: skip
    assert len(frames[0].bulk) == 20 + fit * 3000 <= TOGETHER_BYTES_MAX


def test_nothing_read_is_no_frame() -> None:
    assert _frames([]) == []
