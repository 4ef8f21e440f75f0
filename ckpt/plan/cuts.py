"""Tensors that are cut like others before them: nearly all of a model's.

What was found of the first of them holds for the next: no hole, no crossing, a known dtype. Those
that are also stored alike (each box in one piece: by its rank, or by one of those that declare the
same) share their rows of the index, which lie at other places of the payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ckpt.base.ids import Generation
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.format.index.pages import IndexBox, Location
from ckpt.format.index.rows import BoxRows, Row, folded, rows_of
from ckpt.format.packed_table import NO_HOME
from ckpt.native.tables import NO_PIECE
from ckpt.plan.holdings import Holding, box_bytes_of

Numbers = npt.NDArray[np.int64]

RUNS_MAX: Final = 64
"""Most places of payloads at which a tensor's boxes lie as rows; with more, they are made one by
one."""
RUNS_KEPT_MAX: Final = 64
"""Ways in which the boxes of a pattern are dealt to places that are kept."""
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Places:
    """Where pieces of one tensor lie, by the order of the ranks that declare it. See `PackedTable`
    for what the arrays are.
    """

    places: Numbers
    terms: Numbers
    counters: Numbers


class TensorCut:
    """How ranks cut a tensor: each item is in one box, or in copies of one."""

    def __init__(self, holdings: Sequence[Holding], copies: Sequence[Sequence[int]]) -> None:
        """holdings: of a tensor without fault. copies: which of them declare the same box."""
        count = len(holdings)
        self.ranks = [rank for rank, _ in holdings]
        self.boxes = [(entry.offset, entry.shape) for _, entry in holdings]
        self.order = sorted(range(count), key=lambda n: (holdings[n][1].offset, holdings[n][0]))
        """Of the index."""
        sizes = [min(box_bytes_of(entry), PAYLOAD_BYTES_MAX + 1) for _, entry in holdings]
        self.sizes = np.array([size or NO_PIECE for size in sizes], np.int64)
        """In bytes, as lengths of pieces."""
        #: Whose box is whose, by the first that declares it.
        self._same = np.arange(count)
        for numbers in copies:
            self._same[list(numbers)] = numbers[0]
        #: Those that have a copy.
        self._copied = np.array(sorted(n for numbers in copies for n in numbers), np.int64)

    @property
    def has_copies(self) -> bool:
        """Whether several ranks declare one box."""
        return bool(self._copied.size)

    def pattern(self, starts: Numbers, lengths: Numbers) -> Pattern | None:
        """How a tensor is stored that is cut so; None where some box is not stored in one piece."""
        starts, lengths = _each(starts, self.sizes), _each(lengths, self.sizes)
        stored, full = lengths != NO_PIECE, self.sizes != NO_PIECE
        if starts.any() or (lengths != self.sizes)[stored].any():
            return None
        own = np.where(full, np.arange(full.size), _NOBODY)
        if np.array_equal(stored, full):
            return Pattern(self, own)
        times = np.bincount(self._same[stored], minlength=stored.size)[self._same]
        if not np.array_equal(times, full):
            return None
        holders = np.full(stored.shape, _NOBODY, np.int64)
        holders[self._same[stored]] = np.flatnonzero(stored)
        return Pattern(self, holders[self._same])

    def copies_agree(self, prints: Numbers, printed: npt.NDArray[np.bool_]) -> bool:
        """Whether all copies are fingerprinted, and equal."""
        prints = np.broadcast_to(prints, (len(prints), self.sizes.size))
        copied, first = self._copied, self._same[self._copied]
        agree = (prints[:, copied] == prints[:, first]).all()
        return bool(agree and np.broadcast_to(printed, self.sizes.shape)[copied].all())


class Pattern:
    """A cut, and who stores what of it. I make the boxes of tensors that are stored so."""

    def __init__(self, cut: TensorCut, writers: Numbers) -> None:
        """writers: who stores each box, _NOBODY those without bytes."""
        self.cut = cut
        #: In the order of the index.
        self._writers = writers[cut.order]
        #: By where the places change: (first box, rows) of each run of one place, as if all lay at
        #: 0 of their payloads.
        self._runs: dict[bytes, list[tuple[int, Sequence[Row]]]] = {}
        self._whole = self._rows(0, len(cut.boxes))

    def boxes_at(self, payload_offset: int, home: Generation | None) -> Sequence[IndexBox]:
        """All of them lie at one place of their payloads."""
        return _boxes([(_placed(box, payload_offset, home), many) for box, many in self._whole])

    def boxes_of(self, each: Places) -> Sequence[IndexBox]:
        """They lie at several."""
        sizes, writers = self.cut.sizes, self._writers
        places = _each(each.places, sizes)[writers]
        terms, counters = _each(each.terms, sizes)[writers], _each(each.counters, sizes)[writers]
        moved = (np.diff(places) != 0) | (np.diff(terms) != 0) | (np.diff(counters) != 0)
        rows: list[Row] = []
        for at, run in self._runs_of(np.flatnonzero(moved) + 1):
            term = int(terms[at])
            home = None if term == NO_HOME else Generation(term, int(counters[at]))
            rows += [(_placed(box, int(places[at]), home), many) for box, many in run]
        return _boxes(rows)

    def _runs_of(self, bounds: Numbers) -> list[tuple[int, Sequence[Row]]]:
        if bounds.size >= RUNS_MAX:
            return [(n, self._rows(n, n + 1)) for n in range(len(self.cut.boxes))]
        found = self._runs.get(bounds.tobytes())
        if found is None:
            if len(self._runs) >= RUNS_KEPT_MAX:
                self._runs.clear()
            begins = [0, *bounds.tolist()]
            ends = [*begins[1:], len(self.cut.boxes)]
            found = [
                (begin, self._rows(begin, end)) for begin, end in zip(begins, ends, strict=True)
            ]
            self._runs[bounds.tobytes()] = found
        return found

    def _rows(self, begin: int, end: int) -> Sequence[Row]:
        boxes: list[IndexBox] = []
        cut = self.cut
        for number, writer in zip(
            cut.order[begin:end], self._writers[begin:end].tolist(), strict=True
        ):
            at = Location(cut.ranks[writer], 0, 0, int(cut.sizes[writer]))
            boxes.append(
                IndexBox(cut.ranks[number], *cut.boxes[number], (at,) if writer != _NOBODY else ())
            )
        return rows_of(folded(boxes))


def _each(array: Numbers, like: Numbers) -> Numbers:
    """A number for each rank, also where all say the same."""
    return array if array.size == like.size else np.broadcast_to(array, like.shape)


def _boxes(rows: Sequence[Row]) -> Sequence[IndexBox]:
    if any(many for _, many in rows):
        return BoxRows(rows)
    return tuple([box for box, _ in rows])


def _placed(box: IndexBox, payload_offset: int, home: Generation | None) -> IndexBox:
    if not box.locations:
        return box
    (at,) = box.locations
    place = Location(at.rank, 0, payload_offset, at.length).at(home)
    return IndexBox(box.rank, box.offset, box.shape, (place,))
