"""Shards that are cut like others before them: nearly all of a model's.

What was found of the first of them holds for the next, when each rank stores all of its box in one
piece; and where ranks pack alike, at one place of all payloads, not even boxes are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckpt.base.ids import Generation, Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, Location
from ckpt.format.index.rows import BoxRows, Row, folded, rows_of
from ckpt.format.table import TensorEntry
from ckpt.plan.boxes import volume_of

Holding = tuple[Rank, TensorEntry]
"""A rank, and what it declares."""


@dataclass(frozen=True, slots=True)
class ShardCut:
    """How ranks cut a tensor, each storing all of its box in one piece."""

    ranks: list[Rank]
    sizes: list[int]
    """Bytes of each box."""
    rows: Sequence[Row]
    """The boxes, as if they lay at 0 of their payloads."""

    @classmethod
    def of(cls, holdings: Sequence[Holding]) -> ShardCut:
        sizes = [box_bytes_of(entry) for _, entry in holdings]
        boxes = [
            IndexBox(rank, entry.offset, entry.shape, (Location(rank, 0, 0, size),))
            for (rank, entry), size in zip(holdings, sizes, strict=True)
        ]
        return cls([rank for rank, _ in holdings], sizes, rows_of(folded(boxes)))

    def boxes_of(self, holdings: Sequence[Holding]) -> Sequence[IndexBox] | None:
        """Of a tensor that is cut so; None where a rank does not store its box in one piece."""
        places: set[tuple[int, Generation | None]] = set()
        for (_, entry), size in zip(holdings, self.sizes, strict=True):
            if not _is_whole(entry, size):
                return None
            piece = entry.pieces[0]
            places.add((piece.payload_offset, piece.home))
        if len(places) == 1 and [rank for rank, _ in holdings] == self.ranks:
            return self._at(*places.pop())
        return tuple([box_in_one_piece(rank, entry) for rank, entry in holdings])

    def _at(self, payload_offset: int, home: Generation | None) -> BoxRows:
        """All at one place of their payloads."""
        rows = []
        for box, repeats in self.rows:
            (at,) = box.locations
            place = Location(at.rank, 0, payload_offset, at.length).at(home)
            rows.append((IndexBox(box.rank, box.offset, box.shape, (place,)), repeats))
        return BoxRows(rows)


def box_bytes_of(entry: TensorEntry) -> int:
    """Of its box, in C order."""
    return volume_of(entry.shape) * dtype_of(entry.dtype).itemsize


def _is_whole(entry: TensorEntry, box_bytes: int) -> bool:
    if len(entry.pieces) != 1:
        return False
    piece = entry.pieces[0]
    return not piece.start and 0 < piece.length == box_bytes and piece.payload_offset >= 0


def box_in_one_piece(rank: Rank, entry: TensorEntry) -> IndexBox:
    """That the rank stores so."""
    (piece,) = entry.pieces
    place = Location(rank, 0, piece.payload_offset, piece.length).at(piece.home)
    return IndexBox(rank, entry.offset, entry.shape, (place,))
