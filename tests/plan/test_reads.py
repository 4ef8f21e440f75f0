"""Reads: exactly the bytes that are wanted, each from one place to one place."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.base.ids import Generation, Rank
from ckpt.format.index.pages import IndexBox, Location
from ckpt.plan.boxes import subtract, volume_of
from ckpt.plan.reads import Copy, ReadPlan, plan_read
from tests.landing import examples

Extent = tuple[int, ...]
Region = tuple[Extent, Extent]
ITEM_BYTES = 2


class Payloads:
    """Ranks' payloads in memory; a box's pieces are cut at odd places and stored out of order."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[Generation | None, Rank], bytearray] = {}

    def store(
        self, box_bytes: bytes, cuts: list[int], owners: list[tuple[Generation | None, Rank]]
    ) -> tuple[Location, ...]:
        borders = sorted({0, len(box_bytes), *(cut % (len(box_bytes) + 1) for cut in cuts)})
        pieces = list(pairwise(borders))
        locations: list[Location] = []
        for number, (start, end) in reversed(list(enumerate(pieces))):
            owner = owners[number % len(owners)]
            payload = self.bytes.setdefault(owner, bytearray())
            payload += b"\xee" * 3
            generation, rank = owner
            place = Location(rank, start, len(payload), end - start)
            locations.append(place.at(generation))
            payload += box_bytes[start:end]
        return tuple(sorted(locations, key=lambda lo: lo.start))

    def read(self, plan: ReadPlan) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The wanted box's bytes, and how often each was written."""
        out = bytearray(plan.wanted_bytes)
        times = np.zeros(plan.wanted_bytes, dtype=np.int64)
        for source in plan.sources:
            payload = self.bytes[source.payload]
            for copy in source.copies():
                assert 0 <= copy.start < copy.end <= len(payload)
                out[copy.destination : copy.destination + copy.end - copy.start] = payload[
                    copy.start : copy.end
                ]
                times[copy.destination : copy.destination + copy.end - copy.start] += 1
        return bytes(out), times


def regions(shape: Extent, smallest: int = 1) -> st.SearchStrategy[Region]:
    axes = [
        st.integers(0, n).flatmap(
            lambda a, n=n: st.tuples(st.just(a), st.integers(min(smallest, n - a), n - a))
        )
        for n in shape
    ]
    return st.tuples(*axes).map(lambda axes: (tuple(a for a, _ in axes), tuple(n for _, n in axes)))


def cut_of(array: npt.NDArray[np.uint16], region: Region) -> bytes:
    return array[tuple(slice(a, a + n) for a, n in zip(*region, strict=True))].tobytes()


def whole(shape: Extent) -> Region:
    return (0,) * len(shape), shape


@st.composite
def splits(draw: st.DrawFn, shape: Extent) -> list[Region]:
    """Disjoint boxes that cover a shape, cut again and again at random."""
    boxes = [whole(shape)]
    for _ in range(draw(st.integers(0, 5))):
        victim = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        part = draw(regions(victim[1]))
        if not volume_of(part[1]):
            boxes.append(victim)
            continue
        inside = tuple(a + b for a, b in zip(victim[0], part[0], strict=True)), part[1]
        boxes += [inside, *subtract(*victim, inside)]
    return boxes


def build(
    draw: st.DrawFn, array: npt.NDArray[np.uint16], regions_: list[Region]
) -> tuple[Payloads, list[IndexBox]]:
    payloads = Payloads()
    boxes: list[IndexBox] = []
    for rank, region in enumerate(regions_):
        owners = [
            (draw(st.sampled_from((None, Generation(1, 1)))), Rank(draw(st.integers(0, 3))))
            for _ in range(2)
        ]
        cuts = draw(st.lists(st.integers(0, 1000), max_size=4))
        boxes.append(
            IndexBox(Rank(rank), *region, payloads.store(cut_of(array, region), cuts, owners))
        )
    return payloads, boxes


SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


def numbered(shape: Extent) -> npt.NDArray[np.uint16]:
    return np.arange(1, volume_of(shape) + 1, dtype=np.uint16).reshape(shape)


@settings(max_examples=examples(300))
@given(SHAPES, st.data())
def test_any_box_is_read_from_any_split_each_byte_once(shape: Extent, data: st.DataObject) -> None:
    array = numbered(shape)
    payloads, boxes = build(data.draw, array, data.draw(splits(shape)))
    wanted = data.draw(regions(shape, smallest=0))

    plan = plan_read(boxes, ITEM_BYTES, *wanted)

    got, times = payloads.read(plan)
    assert plan.missing_bytes == 0
    assert got == cut_of(array, wanted)
    assert (times == 1).all()


@settings(max_examples=examples(300))
@given(SHAPES, st.data())
def test_overlapping_boxes_give_each_byte_once_and_what_they_leave_is_missing(
    shape: Extent, data: st.DataObject
) -> None:
    array = numbered(shape)
    payloads, boxes = build(
        data.draw, array, data.draw(st.lists(regions(shape, smallest=0), max_size=6))
    )
    wanted = data.draw(regions(shape))
    prefer = data.draw(st.one_of(st.none(), st.integers(0, 5).map(Rank)))

    plan = plan_read(boxes, ITEM_BYTES, *wanted, prefer)

    have = np.zeros(shape, dtype=np.uint16)
    for box in boxes:
        have[tuple(slice(a, a + n) for a, n in zip(box.offset, box.shape, strict=True))] = 0xFFFF
    got, times = payloads.read(plan)
    assert got == cut_of(array & have, wanted)
    assert times.max(initial=0) <= 1
    assert plan.missing_bytes == plan.wanted_bytes - times.sum()
    assert plan.missing_bytes == cut_of(have, wanted).count(0)


@settings(max_examples=examples(100))
@given(SHAPES, st.data())
def test_runs_are_joined_and_ascend_and_spans_cover_exactly_them(
    shape: Extent, data: st.DataObject
) -> None:
    array = numbered(shape)
    _, boxes = build(data.draw, array, data.draw(splits(shape)))
    for source in plan_read(boxes, ITEM_BYTES, *data.draw(regions(shape))).sources:
        copies = list(source.copies())
        for a, b in pairwise(copies):
            assert a.end <= b.start
            assert not (a.end == b.start and a.destination + a.end - a.start == b.destination)
        spans = source.spans()
        assert all(a[1] < b[0] for a, b in pairwise(spans))
        assert sum(end - start for start, end in spans) == sum(c.end - c.start for c in copies)


def one_box(shape: Extent, item_bytes: int, *, rank: int = 0, at: int = 4096) -> IndexBox:
    return IndexBox(
        Rank(rank),
        *whole(shape),
        (Location(Rank(rank), 0, at, volume_of(shape) * item_bytes),),
    )


@pytest.mark.parametrize("shape", [(), (7,), (512, 256), (3, 1, 5, 2)])
def test_a_whole_tensor_is_one_run(shape: Extent) -> None:
    plan = plan_read([one_box(shape, 4)], 4, *whole(shape))
    size = volume_of(shape) * 4
    assert [list(source.copies()) for source in plan.sources] == [[Copy(4096, 4096 + size, 0)]]


def test_a_whole_tensor_in_pieces_is_one_run_for_each_piece_and_touching_pieces_are_one() -> None:
    locations = (
        Location(Rank(0), 0, 100, 7),
        Location(Rank(0), 7, 107, 5),
        Location(Rank(1), 12, 0, 4),
        Location(Rank(0), 16, 500, 4),
    )
    plan = plan_read([IndexBox(Rank(0), (0,), (5,), locations)], 4, (0,), (5,))
    assert [(s.payload.rank, list(s.copies())) for s in plan.sources] == [
        (0, [Copy(100, 112, 0), Copy(500, 504, 16)]),
        (1, [Copy(0, 4, 12)]),
    ]


def test_rows_of_a_wider_tensor_are_fetched_as_one_span() -> None:
    left = IndexBox(Rank(0), (0, 0), (4, 2), (Location(Rank(0), 0, 0, 8),))
    right = IndexBox(Rank(1), (0, 2), (4, 2), (Location(Rank(1), 0, 0, 8),))
    plan = plan_read([left, right], 1, (0, 0), (4, 4))
    assert [source.spans() for source in plan.sources] == [[(0, 8)], [(0, 8)]]
    assert list(plan.sources[1].copies()) == [
        Copy(0, 2, 2),
        Copy(2, 4, 6),
        Copy(4, 6, 10),
        Copy(6, 8, 14),
    ]


def test_of_equal_copies_one_is_read_and_the_preferred_one_first() -> None:
    boxes = [one_box((8,), 1, rank=rank) for rank in range(4)]
    assert [s.payload.rank for s in plan_read(boxes, 1, (0,), (8,)).sources] == [0]
    assert [s.payload.rank for s in plan_read(boxes, 1, (2,), (3,), prefer=Rank(2)).sources] == [2]


def test_a_box_that_has_all_is_preferred_to_many_that_have_parts() -> None:
    parts = [IndexBox(Rank(r), (r,), (1,), (Location(Rank(r), 0, 0, 1),)) for r in range(8)]
    assert [
        s.payload.rank for s in plan_read([*parts, one_box((8,), 1, rank=9)], 1, (0,), (8,)).sources
    ] == [9]


def test_missing_pieces_of_a_box_are_missing_bytes() -> None:
    box = IndexBox(Rank(0), (0,), (10,), (Location(Rank(0), 2, 0, 3), Location(Rank(0), 7, 3, 1)))
    assert plan_read([box], 1, (0,), (10,)).missing_bytes == 6
    assert plan_read([], 1, (0,), (10,)).missing_bytes == 10


def test_a_byte_with_two_places_is_read_from_one() -> None:
    locations = (Location(Rank(0), 0, 0, 6), Location(Rank(1), 4, 50, 6))
    plan = plan_read([IndexBox(Rank(0), (0,), (10,), locations)], 1, (0,), (10,))
    assert [(s.payload.rank, list(s.copies())) for s in plan.sources] == [
        (0, [Copy(0, 6, 0)]),
        (1, [Copy(52, 56, 6)]),
    ]


def test_items_without_bytes_and_empty_boxes_need_nothing() -> None:
    assert plan_read([], 0, (0,), (10,)) == ReadPlan(0, 0, ())
    assert plan_read([one_box((0, 5), 4)], 4, (0, 0), (0, 5)) == ReadPlan(0, 0, ())


def test_a_million_rows_are_enumerated_as_arrays() -> None:
    plan = plan_read([one_box((1 << 20, 8), 4, at=0)], 4, (0, 2), (1 << 20, 3))
    (source,) = plan.sources
    assert len(source.starts) == 1 << 20
    assert (source.lengths == 12).all()
    assert source.starts[-1] == ((1 << 20) - 1) * 32 + 8
    assert plan.missing_bytes == 0
