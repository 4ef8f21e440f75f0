"""Tables of one form side by side: what all ranks say of one tensor, in arrays.

Numbers lie rank by rank, and are wanted tensor by tensor: they are turned a window at a time, so
that neither the memory nor a slice of work grows with the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ckpt.base.ids import Generation
from ckpt.base.units import MiB
from ckpt.format.index.pages import IndexBox
from ckpt.format.packed_table import NO_HOME, PackedTable
from ckpt.format.table import Meaning
from ckpt.native.tables import NO_PIECE
from ckpt.plan.cuts import Pattern, Places, TensorCut
from ckpt.plan.holdings import Holding

WINDOW_NUMBERS: Final = 1 << 19
"""Of one array of all tables that are turned at once: 4 MiB, some milliseconds."""
WINDOW_MIN: Final = 128
"""Of one table: no entry has more axes than half of them."""
PATTERN_BYTES_MAX: Final = 64 * MiB
"""Of all keys of patterns that are kept."""

_Scalar = TypeVar("_Scalar", bound=np.generic)
_CutKey = tuple[Meaning, str, tuple[int, ...], bytes, bytes]


class FormTables:
    """At least two tables of one form."""

    def __init__(self, tables: Sequence[PackedTable]) -> None:
        """tables: ascending by rank."""
        self.form = tables[0].form
        self.ranks = [table.rank for table in tables]
        self._tables = tables
        self._offsets = _Across([table.offsets for table in tables])
        self._shapes = _Across([table.shapes for table in tables])
        self._starts = _Across([table.starts for table in tables])
        self._places = _Across([table.places for table in tables])
        self._lengths = _Across([table.lengths for table in tables])
        self._terms = _Across([table.terms for table in tables])
        self._counters = _Across([table.counters for table in tables])
        self._prints = _Across([table.prints for table in tables])
        self._printed = _Across([table.printed for table in tables])
        #: By what is cut, and all boxes.
        self._cuts: dict[_CutKey, TensorCut] = {}
        #: By cut, and what each rank stores of its box.
        self._patterns: dict[tuple[_CutKey, bytes, bytes], Pattern] = {}
        self._pattern_bytes = 0

    def holdings(self, number: int) -> list[Holding]:
        """What ranks declare of an entry of the form, if they have it."""
        return [(t.rank, t.entry(number)) for t in self._tables if t.has(number)]

    def further(self) -> list[Holding]:
        """What the form has not."""
        return [(table.rank, entry) for table in self._tables for entry in table.further]

    def has_cut(self, number: int) -> bool:
        """Whether a tensor is cut like one that `note_cut` was said of."""
        return self._cut_key(number) in self._cuts

    def note_cut(self, number: int, cut: TensorCut) -> None:
        """How a tensor is cut, as others may be."""
        self._cuts[self._cut_key(number)] = cut

    def boxes(self, number: int, *, copies: bool) -> Sequence[IndexBox] | None:
        """Of a tensor that is cut like one before. None where some box is not stored in one piece,
        or its copies may differ; and, unless `copies` may be, where there are any.
        """
        pattern = self._pattern(number)
        if pattern is None:
            return None
        if pattern.cut.has_copies:
            prints = self._prints.part(2 * number, 2 * number + 2)
            if not copies or not pattern.cut.copies_agree(prints, self._printed.row(number)):
                return None
        term = self._terms.common(number)
        counter, place = self._counters.common(number), self._places.common(number)
        if place is not None and term is not None and counter is not None:
            return pattern.boxes_at(place, None if term == NO_HOME else Generation(term, counter))
        return pattern.boxes_of(
            Places(self._places.row(number), self._terms.row(number), self._counters.row(number))
        )

    def equal_replica(self, number: int) -> list[Holding] | None:
        """Of a replica that all ranks fingerprinted alike: the first rank, and after it those that
        store a part. None where some did not, or fingerprints differ.
        """
        one, other = (self._prints.common(2 * number + half) for half in range(2))
        if not self._printed.common(number) or one is None or other is None:
            return None
        lengths = self._lengths.row(number)
        stored = np.broadcast_to(lengths != NO_PIECE, len(self.ranks))
        holders = [0, *(n for n in np.flatnonzero(stored).tolist() if n)]
        return [(self.ranks[n], self._tables[n].entry(number)) for n in holders]

    def _pattern(self, number: int) -> Pattern | None:
        """Found by all of its numbers, not by a digest."""
        starts, lengths = self._starts.row(number), self._lengths.row(number)
        key = self._cut_key(number), starts.tobytes(), lengths.tobytes()
        found = self._patterns.get(key)
        if found is not None:
            return found
        cut = self._cuts.get(key[0])
        pattern = cut.pattern(starts, lengths) if cut is not None else None
        if pattern is not None:
            self._pattern_bytes += sum(map(len, (*key[0][3:], *key[1:])))
            if self._pattern_bytes > PATTERN_BYTES_MAX:
                self._patterns.clear()
                self._pattern_bytes = 0
            self._patterns[key] = pattern
        return pattern

    def _cut_key(self, number: int) -> _CutKey:
        like = self.form.entries[number]
        end = self.form.ends[number]
        axes = end - len(like.global_shape), end
        boxes = self._offsets.part(*axes).tobytes(), self._shapes.part(*axes).tobytes()
        return like.meaning, like.dtype, like.global_shape, *boxes


class _Across(Generic[_Scalar]):
    """One array of all tables, turned: a row for each number, in which each rank has a place, or
    one place where all tables have the same array.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[_Scalar]]) -> None:
        distinct = {id(array): array for array in arrays}
        self._distinct = list(distinct.values())
        numbers = {id(array): number for number, array in enumerate(self._distinct)}
        #: Of the distinct ones, each rank's; None: as they lie.
        self._which: npt.NDArray[np.int64] | None = None
        if 1 < len(distinct) < len(arrays):
            self._which = np.array([numbers[id(array)] for array in arrays])
        ranks = len(arrays) if len(distinct) > 1 else 1
        self._width = max(WINDOW_MIN, WINDOW_NUMBERS // ranks)
        self._begin = self._end = 0
        self._rows: npt.NDArray[_Scalar] = self._distinct[0][:0].reshape(0, 1)
        #: Of each row, what all say; None where some say something else. Empty until it is asked
        #: for.
        self._common: list[int | None] = []

    def row(self, number: int) -> npt.NDArray[_Scalar]:
        """Of one number."""
        if not self._begin <= number < self._end:
            self._turn(number, number + 1)
        row: npt.NDArray[_Scalar] = self._rows[number - self._begin]
        return row

    def part(self, begin: int, end: int) -> npt.NDArray[_Scalar]:
        """Of several."""
        if not self._begin <= begin <= end <= self._end:
            self._turn(begin, end)
        return self._rows[begin - self._begin : end - self._begin]

    def common(self, number: int) -> int | None:
        """What all ranks say, if they say the same."""
        if not self._begin <= number < self._end:
            self._turn(number, number + 1)
        if not self._common:
            first = self._rows[:, 0]
            equal = (self._rows == self._rows[:, :1]).all(axis=1).tolist()
            values = first.tolist()
            self._common = [v if same else None for v, same in zip(values, equal, strict=True)]
        return self._common[number - self._begin]

    def _turn(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, max(end, begin + self._width)
        lain = np.stack([array[begin : self._end] for array in self._distinct])
        if self._which is not None:
            lain = lain[self._which]
        self._rows = np.ascontiguousarray(lain.T)
        self._common = []
