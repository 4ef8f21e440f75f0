"""A rank's table as arrays: what all ranks of a model say alike is kept once, for each rank only
its numbers.

Ranks of one launch mostly declare the same names, meanings, dtypes and global shapes: the *form*.
The first table of a form is decoded as any (ckpt.format.table_decoding); of the others C takes the
numbers, and numpy looks at them all at once. A table may lack some entries of the form, and have
some more: they are decoded one by one. One that does not pass here is decoded as any: so what is
refused, and the words for it, are the same whichever way it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import lt
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Generation, Rank
from ckpt.base.limits import PAYLOAD_BYTES_MAX, TABLE_BYTES_MAX
from ckpt.format.array_table import ArrayTable
from ckpt.format.checksum import Buffer, xxh3_128
from ckpt.format.envelope import unwrap
from ckpt.format.table import (
    MAGIC,
    VERSION,
    HomePiece,
    Meaning,
    Piece,
    RankTable,
    TensorEntry,
    ranks_problem,
)
from ckpt.format.table_decoding import decode_entry
from ckpt.native.tables import (
    MANY_PIECES,
    NO_PIECE,
    PRINT_BYTES,
    Numbers,
    TableArrays,
    read_table,
)

NO_HOME: Final = -1
"""As a term."""
ABSENT: Final = -3
"""As a length: the table has no such entry."""
LIKE_SHARE_MIN: Final = 2
"""A table is like another when one in so many entries of either is the other's."""
RUNS_MAX: Final = 64
"""Most runs of entries, one after the other in both, of a table that is like another."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


def table_arrays(document: Buffer) -> TableArrays | None:
    """Of a document, as it came; None where it has not the usual form. Raises Corrupt, and
    CkptError where there is no native library.
    """
    return read_table(unwrap(MAGIC, VERSION, document, TABLE_BYTES_MAX))


@dataclass(frozen=True, slots=True, eq=False)
class PackedTable:
    """A table that has the form of others. Each array stands for all entries, or all their axes, in
    the order of the form; equal arrays of one form are one object.
    """

    rank: Rank
    world_size: int
    form: TableForm
    offsets: Numbers
    """Each axis of each entry: where its box begins."""
    shapes: Numbers
    """Each axis of each entry: items of its box."""
    starts: Numbers
    """Each entry's piece; 0 where it has none."""
    places: Numbers
    """In the payload; 0 where there is no piece."""
    lengths: Numbers
    """NO_PIECE where there is none, MANY_PIECES where there are several, and ABSENT."""
    terms: Numbers
    """Of the piece's home; NO_HOME where it lies in the payload at hand."""
    counters: Numbers
    prints: Numbers
    """Two numbers for the 16 bytes of an entry; zeros where there is none."""
    printed: NDArray[np.bool_]
    """Whether an entry has a fingerprint."""
    many: Mapping[int, TensorEntry]
    """Entries of the form, of several pieces."""
    further: tuple[TensorEntry, ...] = ()
    """Entries that the form has not, ascending."""
    decoded: RankTable | None = None
    """The same, where it was decoded entry by entry."""

    def has(self, number: int) -> bool:
        """Whether it has an entry of the form."""
        return int(self.lengths[number]) != ABSENT

    def entry(self, number: int) -> TensorEntry:
        """One that it has, as it was declared."""
        if self.decoded is not None:
            return self.decoded.entries[number]
        if number in self.many:
            return self.many[number]
        form = self.form
        like = form.entries[number]
        axes = slice(form.ends[number] - len(like.global_shape), form.ends[number])
        return TensorEntry(
            like.name,
            like.meaning,
            like.dtype,
            like.global_shape,
            tuple(self.offsets[axes].tolist()),
            tuple(self.shapes[axes].tolist()),
            self._pieces(number),
            self.prints[2 * number : 2 * number + 2].tobytes() if self.printed[number] else b"",
        )

    def unpacked(self) -> RankTable:
        """All of it."""
        if self.decoded is not None:
            return self.decoded
        numbers = range(len(self.form.entries))
        entries = [self.entry(number) for number in numbers if self.has(number)]
        if self.further:
            entries = sorted([*entries, *self.further], key=lambda entry: entry.name)
        return RankTable(self.rank, self.world_size, tuple(entries))

    def _pieces(self, number: int) -> tuple[Piece, ...]:
        length = int(self.lengths[number])
        if length == NO_PIECE:
            return ()
        piece = Piece(int(self.starts[number]), int(self.places[number]), length)
        home = self.home(number)
        return (piece if home is None else piece.at(home),)

    def home(self, number: int) -> Generation | None:
        """Of the entry's piece."""
        term = int(self.terms[number])
        return None if term == NO_HOME else Generation(term, int(self.counters[number]))

    def here_end(self) -> int:
        """Where the last piece ends of those that lie in the payload at hand."""
        here = (self.terms == NO_HOME) & (self.lengths > 0)
        end = int((self.places + self.lengths)[here].max(initial=0))
        pieces = [piece for piece in self._pieces_beside() if piece.home is None]
        return max([end, *(piece.payload_offset + piece.length for piece in pieces)])

    def away(self) -> list[HomePiece]:
        """Of those that lie in homes, the piece that ends last of each, at least."""
        pieces = self._pieces_beside()
        numbers = np.flatnonzero(self.terms != NO_HOME)
        if numbers.size:
            ends, terms, counters = self.places + self.lengths, self.terms, self.counters
            numbers = numbers[np.lexsort((ends[numbers], counters[numbers], terms[numbers]))]
            goes_on = (np.diff(terms[numbers]) == 0) & (np.diff(counters[numbers]) == 0)
            last = [*numbers[:-1][~goes_on].tolist(), int(numbers[-1])]
            pieces += [piece for number in last for piece in self._pieces(number)]
        return [piece for piece in pieces if isinstance(piece, HomePiece)]

    def away_bytes(self) -> int:
        """Bytes of all those that lie in homes."""
        many = [piece.length for piece in self._pieces_beside() if piece.home is not None]
        return int(self.lengths[self.terms != NO_HOME].sum()) + sum(many)

    def _pieces_beside(self) -> list[Piece]:
        """Of entries that are not in the arrays."""
        return [piece for e in (*self.many.values(), *self.further) for piece in e.pieces]


Table = RankTable | PackedTable | ArrayTable


class TableForm:
    """What tables say alike. I am made of the first one, and pack the others."""

    def __init__(self, table: RankTable, arrays: TableArrays) -> None:
        """table: without fault, decoded from the same document as the arrays."""
        self.entries = table.entries
        """Of the first table: names, meanings, dtypes and global shapes are those of all."""
        self.ends: list[int] = np.cumsum(arrays.axes_each, dtype=np.int64).tolist()
        """After the axes of each entry, in arrays of axes."""
        self._bytes = arrays.form
        shards = np.array([entry.meaning is Meaning.SHARD for entry in table.entries], np.bool_)
        #: Axes of entries that are whole tensors.
        self._fixed = ~np.repeat(shards, arrays.axes_each)
        self._form_ends = np.concatenate(([0], arrays.form_ends))
        self._axes_each = arrays.axes_each
        self._order = np.argsort(arrays.marks, kind="stable")
        #: Of the entries, ascending; `_order` says whose they are.
        self._marks = arrays.marks[self._order]
        #: Further boxes of the tensor before them.
        self._more_boxes = [
            number
            for number, (before, after) in enumerate(pairwise(table.entries), 1)
            if before.name == after.name
        ]
        #: By digest: equal arrays are kept once.
        self._known: dict[bytes, NDArray[np.generic]] = {}

    def pack_first(self, table: RankTable, arrays: TableArrays) -> PackedTable:
        """The one that I was made of."""
        many = {n: table.entries[n] for n in _of_many_pieces(arrays)}
        return replace(self._packed(arrays, many), decoded=table)

    def pack(self, arrays: TableArrays) -> PackedTable | None:
        """Another one; None where it is not like this form, or breaks a rule of tables."""
        if ranks_problem(arrays.rank, arrays.world_size) or not _is_sound(arrays):
            return None
        try:
            if arrays.form == self._bytes:
                return self._pack_same(arrays)
            fit = self._fit(arrays)
            return None if fit is None else self._pack_like(arrays, *fit)
        except Corrupt:  # Whoever decodes all of it says so.
            return None

    def _pack_same(self, arrays: TableArrays) -> PackedTable | None:
        if (arrays.shapes != arrays.wholes)[self._fixed].any():
            return None
        if not all(_offset(arrays, n - 1) < _offset(arrays, n) for n in self._more_boxes):
            return None
        many = {n: decode_entry(arrays.entry_bytes(n)) for n in _of_many_pieces(arrays)}
        return self._packed(arrays, many)

    def _fit(self, arrays: TableArrays) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
        """Which entries are some of the form, and which ones; None where it is not like it."""
        if not self.entries:
            return None
        at = np.minimum(np.searchsorted(self._marks, arrays.marks), len(self._marks) - 1)
        mine = np.flatnonzero(self._marks[at] == arrays.marks)
        numbers = self._order[at[mine]]
        if LIKE_SHARE_MIN * mine.size < max(len(arrays.marks), len(self._marks)):
            return None
        # Names ascend in both, so entries come in the same order.
        if self._more_boxes or (np.diff(numbers) <= 0).any():
            return None
        bounds = np.flatnonzero((np.diff(mine) != 1) | (np.diff(numbers) != 1)) + 1
        if bounds.size >= RUNS_MAX:
            return None
        ends = np.concatenate(([0], arrays.form_ends))
        for begin, end in pairwise([0, *bounds.tolist(), mine.size]):
            theirs = arrays.form[ends[mine[begin]] : ends[mine[end - 1] + 1]]
            here = slice(self._form_ends[numbers[begin]], self._form_ends[numbers[end - 1] + 1])
            if theirs != self._bytes[here]:
                return None
        return mine, numbers

    def _pack_like(
        self, arrays: TableArrays, mine: NDArray[np.intp], numbers: NDArray[np.intp]
    ) -> PackedTable | None:
        """Entries `mine` are these of the form."""
        count = len(self.entries)
        of_mine, present = np.zeros(len(arrays.marks), np.bool_), np.zeros(count, np.bool_)
        of_mine[mine], present[numbers] = True, True
        theirs = np.repeat(of_mine, arrays.axes_each)
        axes = np.repeat(present, self._axes_each)
        if (arrays.shapes != arrays.wholes)[theirs][self._fixed[axes]].any():
            return None
        others = {n: decode_entry(arrays.entry_bytes(n)) for n in np.flatnonzero(~of_mine).tolist()}
        names = [self.entries[number].name for number in numbers.tolist()]
        for n, entry in others.items():
            names.insert(n, entry.name)
        if not all(map(lt, names, names[1:])):
            return None
        many = {
            int(numbers[np.searchsorted(mine, n)]): decode_entry(arrays.entry_bytes(n))
            for n in _of_many_pieces(arrays)
            if of_mine[n]
        }
        offsets, shapes = np.zeros((2, axes.size), np.int64)
        offsets[axes], shapes[axes] = arrays.offsets[theirs], arrays.shapes[theirs]
        pieces = np.empty((len(arrays.pieces), count), np.int64)
        pieces[:] = np.array([0, 0, ABSENT, NO_HOME, NO_HOME])[:, None]
        pieces[:, numbers] = arrays.pieces[:, mine]
        prints = np.zeros((count, PRINT_BYTES), np.uint8)
        printed = np.zeros(count, np.bool_)
        prints[numbers], printed[numbers] = arrays.prints[mine], arrays.printed[mine]
        laid = replace(
            arrays, offsets=offsets, shapes=shapes, pieces=pieces, prints=prints, printed=printed
        )
        return replace(self._packed(laid, many), further=tuple(others.values()))

    def _packed(self, arrays: TableArrays, many: Mapping[int, TensorEntry]) -> PackedTable:
        starts, places, lengths, terms, counters = map(self._shared, arrays.pieces)
        return PackedTable(
            Rank(arrays.rank), arrays.world_size, self,
            self._shared(arrays.offsets), self._shared(arrays.shapes),
            starts, places, lengths, terms, counters,
            self._shared(arrays.prints.reshape(-1).view(np.int64)), self._shared(arrays.printed),
            many,
        )  # fmt: skip

    def _shared(self, array: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """The array of another table that is equal, where there is one."""
        key = xxh3_128(array.data)
        known = self._known.get(key)
        if known is not None and known.dtype == array.dtype and np.array_equal(known, array):
            return known  # type: ignore[return-value]
        own = array if array.base is None else array.copy()
        self._known[key] = own
        return own


def form_digest(arrays: TableArrays) -> bytes:
    """Finds a form; `pack` compares all of it."""
    return xxh3_128(arrays.form)


def are_like(one: TableArrays, other: TableArrays) -> bool:
    """Whether a table may be packed in the form of the other, as far as marks say it."""
    common = np.isin(one.marks, other.marks).sum()
    return bool(LIKE_SHARE_MIN * common >= max(len(one.marks), len(other.marks)))


def _is_sound(arrays: TableArrays) -> bool:
    """Whether numbers keep the rules, whatever stands beside them."""
    offsets, shapes, wholes = arrays.offsets, arrays.shapes, arrays.wholes
    if (offsets > wholes - shapes).any():
        return False
    starts, places, lengths = arrays.pieces[:3]
    if (lengths == 0).any():
        return False
    latest = PAYLOAD_BYTES_MAX - lengths
    return not ((starts > latest).any() or (places > latest).any())


def _offset(arrays: TableArrays, number: int) -> list[int]:
    end = int(arrays.axes_each[: number + 1].sum())
    offset: list[int] = arrays.offsets[end - int(arrays.axes_each[number]) : end].tolist()
    return offset


def _of_many_pieces(arrays: TableArrays) -> list[int]:
    numbers: list[int] = np.flatnonzero(arrays.pieces[2] == MANY_PIECES).tolist()
    return numbers
