"""Boxes in rows: alike but for even steps from one to the next, so that a row is written once.

    row       a box, and its repeats, the innermost first
    repeat    [count, rank_step, [step of each offset, ...], holder_step, payload_step]

Ranks of a model cut each tensor alike: the shard of rank r begins r shares from the first, and lies
at the same place of its payload. So 1,024 boxes are one row, and on a mesh of two axes one row
with two repeats. What one rank wants is found by arithmetic: the others' boxes are never made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import prod
from operator import sub
from typing import Final, final, overload

from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexBox, IndexTensor, Location, Repeat
from ckpt.format.table import Meaning

REPEATS_MAX: Final = 4
"""Most repeats of one row: meshes have fewer axes along which a tensor is cut."""
REPEATED_BOXES_MAX: Final = 1 << 22
"""Of one tensor, as far as they are in rows: who makes them all needs a gigabyte."""

Extent = tuple[int, ...]
Repeats = tuple[Repeat, ...]
Row = tuple[IndexBox, Repeats]


@final
class BoxRows(Sequence[IndexBox]):
    """The boxes of one tensor, in order, made when they are asked for.

    Who asks whether boxes are rows asks for the type itself: `isinstance` of an abstract sequence
    costs as much as the rest of what is done for a small tensor's one box.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        """As they are stored."""

    def count_all(self) -> int:
        """How many there are; of rows that were not checked it may be more than `len` can say."""
        return sum(prod([repeat.count for repeat in repeats]) for _, repeats in self.rows)

    def of(self, rank: Rank) -> tuple[IndexBox, ...]:
        """Those that the rank declared."""
        return tuple(found for box, repeats in self.rows for found in _of(box, repeats, rank))

    def near(self, offset: Extent, shape: Extent) -> tuple[IndexBox, ...]:
        """Those that share an item with the box at `offset`."""
        if not all(shape):
            return ()
        ends = tuple([start + count - 1 for start, count in zip(offset, shape, strict=True)])
        return tuple(
            found
            for box, repeats in self.rows
            if all(box.shape)
            for found in _near(box, repeats, offset, ends)
        )

    def __len__(self) -> int:
        return self.count_all()

    def __iter__(self) -> Iterator[IndexBox]:
        for box, repeats in self.rows:
            yield from _all(box, repeats)

    @overload
    def __getitem__(self, number: int) -> IndexBox: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[IndexBox, ...]: ...
    def __getitem__(self, number: int | slice) -> IndexBox | tuple[IndexBox, ...]:
        if isinstance(number, slice):
            return tuple(self)[number]
        at = range(len(self))[number]
        return next(islice(self, at, None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"BoxRows({self.rows!r})"


def rows_of(boxes: Sequence[IndexBox]) -> Sequence[Row]:
    """As they are stored; boxes that are in no row are one each."""
    return boxes.rows if type(boxes) is BoxRows else [(box, ()) for box in boxes]


def boxes_of(boxes: Sequence[IndexBox], rank: Rank) -> Sequence[IndexBox]:
    """Those that the rank declared."""
    return boxes.of(rank) if type(boxes) is BoxRows else [b for b in boxes if b.rank == rank]


def is_global_or_of(rank: Rank, tensor: IndexTensor) -> bool:
    """Whether it is global, or the rank has one of its own."""
    return tensor.meaning is not Meaning.OWN or bool(boxes_of(tensor.boxes, rank))


def folded(boxes: Sequence[IndexBox]) -> Sequence[IndexBox]:
    """The same boxes in the same order, in rows where that is shorter.

    Neighbours in even steps become a row; rows in even steps become one with a further repeat.
    """
    if not 2 < len(boxes) <= REPEATED_BOXES_MAX:
        return tuple(boxes)
    rows = rows_of(boxes)
    for _ in range(REPEATS_MAX):
        fewer = _fold_once(rows)
        if len(fewer) == len(rows):
            break
        rows = fewer
    return BoxRows(rows) if len(rows) < len(boxes) else tuple(boxes)


def ends_of(box: IndexBox, repeats: Repeats) -> tuple[IndexBox, IndexBox]:
    """All of a row lies between them: each number of the first is its least, of the second its
    greatest. (Neither need be one of its boxes.)
    """
    ends = []
    for end in (0, 1):
        holder = _reach((r.count, r.holder_step) for r in repeats)[end]
        place = _reach((r.count, r.payload_step) for r in repeats)[end]
        ends.append(
            IndexBox(
                Rank(box.rank + _reach((r.count, r.rank_step) for r in repeats)[end]),
                tuple(
                    at + _reach((r.count, r.offset_step[axis]) for r in repeats)[end]
                    for axis, at in enumerate(box.offset)
                ),
                box.shape,
                tuple(_shifted(at, holder, place) for at in box.locations),
                box.continued,
            )
        )
    return ends[0], ends[1]


# --------------------------------------------------------------------------- folding

_Step = tuple[int, Extent, int, int]
"""Of a repeat, after its count."""


def _fold_once(rows: Sequence[Row]) -> list[Row]:
    out: list[Row] = []
    first = 0
    while first < len(rows):
        step, end = None, first + 1
        if end < len(rows):
            step = _step(rows[first], rows[end])
        if step is not None:
            end += 1
            while end < len(rows) and _step(rows[end - 1], rows[end]) == step:
                end += 1
            box, repeats = rows[first]
            out.append((box, (*repeats, Repeat(end - first, *step))))
        else:
            out.append(rows[first])
        first = end
    return out


def _step(one: Row, other: Row) -> _Step | None:
    """From a row to its neighbour; None when they are not alike."""
    (a, a_repeats), (b, b_repeats) = one, other
    if a.shape != b.shape or a_repeats != b_repeats or len(a.locations) != len(b.locations):
        return None
    holder_step = payload_step = 0
    for n, (at, to) in enumerate(zip(a.locations, b.locations, strict=True)):
        holder, place = to.rank - at.rank, to.payload_offset - at.payload_offset
        if n == 0:
            holder_step, payload_step = holder, place
        if (
            at.start != to.start
            or at.length != to.length
            or at.term != to.term
            or at.counter != to.counter
            or holder != holder_step
            or place != payload_step
        ):
            return None
    return b.rank - a.rank, tuple(map(sub, b.offset, a.offset)), holder_step, payload_step


# --------------------------------------------------------------------------- boxes of a row


def _moved(box: IndexBox, repeat: Repeat, times: int) -> IndexBox:
    if not times:
        return box
    holder, place = repeat.holder_step * times, repeat.payload_step * times
    return IndexBox(
        Rank(box.rank + repeat.rank_step * times),
        tuple([at + step * times for at, step in zip(box.offset, repeat.offset_step, strict=True)]),
        box.shape,
        tuple([_shifted(at, holder, place) for at in box.locations]),
    )


def _shifted(at: Location, holder: int, place: int) -> Location:
    rank, offset = Rank(at.rank + holder), at.payload_offset + place
    return Location(rank, at.start, offset, at.length, at.term, at.counter)


def _all(box: IndexBox, repeats: Repeats) -> Iterator[IndexBox]:
    if not repeats:
        yield box
        return
    for times in range(repeats[-1].count):
        yield from _all(_moved(box, repeats[-1], times), repeats[:-1])


def _of(box: IndexBox, repeats: Repeats, rank: Rank) -> Iterator[IndexBox]:
    if not repeats:
        if box.rank == rank:
            yield box
        return
    outer, inner = repeats[-1], repeats[:-1]
    low, high = _reach((r.count, r.rank_step) for r in inner)
    for times in _meeting(
        outer.count, box.rank + low, box.rank + high, outer.rank_step, rank, rank
    ):
        yield from _of(_moved(box, outer, times), inner, rank)


def _near(box: IndexBox, repeats: Repeats, starts: Extent, ends: Extent) -> Iterator[IndexBox]:
    """`ends`: the last items that are wanted."""
    outer, inner = (repeats[-1], repeats[:-1]) if repeats else (_ONCE, ())
    first, stop = 0, outer.count
    for axis, (at, count) in enumerate(zip(box.offset, box.shape, strict=True)):
        low, high = _reach((r.count, r.offset_step[axis]) for r in inner)
        step = outer.offset_step[axis] if repeats else 0
        found = _meeting(
            outer.count, at + low, at + high + count - 1, step, starts[axis], ends[axis]
        )
        first, stop = max(first, found.start), min(stop, found.stop)
    for times in range(first, stop):
        if repeats:
            yield from _near(_moved(box, outer, times), inner, starts, ends)
        else:
            yield box


def _reach(steps: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """How far (count, step) repeats go down, at most 0, and up, at least 0."""
    low = high = 0
    for count, step in steps:
        low, high = low + min(0, (count - 1) * step), high + max(0, (count - 1) * step)
    return low, high


def _meeting(count: int, first: int, last: int, step: int, low: int, high: int) -> range:
    """The n below `count` for which [first + n step, last + n step] meets [low, high]."""
    if not step:
        return range(count if first <= high and last >= low else 0)
    if step < 0:
        first, last, step, low, high = -last, -first, -step, -high, -low
    start = max(0, -((last - low) // step))
    return range(start, max(start, min(count, (high - first) // step + 1)))


_ONCE: Final = Repeat(1, 0, (), 0, 0)
