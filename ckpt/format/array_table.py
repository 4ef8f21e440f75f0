"""The table of a rank that is alone, as arrays: nearly all of its entries are never made.

Most entries are *plain*: whole tensors in one piece. C has seen which ones (ckpt.native.tables),
each kind of them is looked at once, and they become the index's tensors as they came. Every other
entry is decoded by itself. A table that does not pass here is decoded as any: so what is refused,
and the words for it, are the same whichever way it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank
from ckpt.base.limits import PAYLOAD_BYTES_MAX, TENSOR_NAME_BYTES_MAX
from ckpt.format.table import (
    HomePiece,
    Piece,
    RankTable,
    TensorEntry,
    entries_problem,
    ranks_problem,
)
from ckpt.format.table_decoding import decode_entry
from ckpt.native.tables import Numbers, TableArrays

DECODED_MAX: Final = 4096
"""Most entries that are decoded at once, some ten milliseconds: those that are not plain, and one
of each kind. A table with more is decoded a slice at a time.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayTable:
    """A table without fault."""

    rank: Rank
    world_size: int
    arrays: TableArrays
    plain: NDArray[np.bool_]
    """Of each entry."""
    kinds: Mapping[int, TensorEntry]
    """By the number in `arrays.kinds`: an entry of that kind, whatever else it is."""
    dtype_chars: Numbers
    """Of each entry's dtype."""
    odd: Mapping[int, TensorEntry]
    """Every entry that is not plain, ascending by its number."""

    @classmethod
    def of(cls, arrays: TableArrays) -> ArrayTable | None:
        """None where it breaks a rule, or many entries are odd, or each is of another kind."""
        plain = arrays.plain & (arrays.name_bytes <= TENSOR_NAME_BYTES_MAX)
        plain &= arrays.pieces[1] <= PAYLOAD_BYTES_MAX - arrays.pieces[2]
        odd: list[int] = np.flatnonzero(~plain).tolist()
        firsts: list[int] = np.unique(arrays.kinds).tolist()
        if len(odd) + len(firsts) > DECODED_MAX or ranks_problem(arrays.rank, arrays.world_size):
            return None
        try:
            kinds = {number: decode_entry(arrays.entry_bytes(number)) for number in firsts}
            others = {number: decode_entry(arrays.entry_bytes(number)) for number in odd}
        except Corrupt:  # Whoever decodes all of it says so.
            return None
        chars = np.zeros(len(plain), np.int64)
        for number, entry in kinds.items():
            chars[number] = len(entry.dtype)
        table = cls(
            Rank(arrays.rank), arrays.world_size, arrays, plain, kinds, chars[arrays.kinds], others
        )
        # C has seen that plain ones are after those before them.
        pairs = ([table.entry(number - 1), others[number]] for number in odd if number)
        return None if any(map(entries_problem, pairs)) else table

    def __len__(self) -> int:
        """Its entries."""
        return len(self.plain)

    def entry(self, number: int) -> TensorEntry:
        """One, as it was declared."""
        odd = self.odd.get(number)
        return decode_entry(self.arrays.entry_bytes(number)) if odd is None else odd

    def by_kind(self, value: Callable[[TensorEntry], int]) -> Numbers:
        """Of each entry, what `value` says of its kind."""
        values = np.zeros(len(self), np.int64)
        for number, entry in self.kinds.items():
            values[number] = value(entry)
        return values[self.arrays.kinds]

    def unpacked(self) -> RankTable:
        """All of it."""
        return RankTable(
            self.rank, self.world_size, tuple([self.entry(number) for number in range(len(self))])
        )

    def here_end(self) -> int:
        """Where the last piece ends of those that lie in the payload at hand."""
        _, places, lengths, _, _ = self.arrays.pieces
        end = int((places + lengths)[self.plain].max(initial=0))
        here = [piece for piece in self._odd_pieces() if piece.home is None]
        return max([end, *(piece.payload_offset + piece.length for piece in here)])

    def away(self) -> list[HomePiece]:
        """Pieces that lie in homes."""
        return [piece for piece in self._odd_pieces() if isinstance(piece, HomePiece)]

    def away_bytes(self) -> int:
        """Bytes of them."""
        return sum([piece.length for piece in self.away()])

    def _odd_pieces(self) -> list[Piece]:
        return [piece for entry in self.odd.values() for piece in entry.pieces]


@dataclass(frozen=True, slots=True)
class WholeTensors:
    """Plain entries of a table whose one piece is all of the tensor: the index's next tensors."""

    table: ArrayTable
    first: int
    end: int
    """Exclusive."""
