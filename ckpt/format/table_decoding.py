"""A rank's table read back, at one go or a slice at a time: it may have a hundred thousand entries.

The one who reads it may have much else to do: the coordinator gets those of all ranks at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank
from ckpt.base.limits import TABLE_BYTES_MAX
from ckpt.format.checksum import Buffer
from ckpt.format.envelope import decode_body, unwrap
from ckpt.format.table import (
    MAGIC,
    VERSION,
    HomePiece,
    Meaning,
    Piece,
    RankTable,
    TensorEntry,
    entries_problem,
    ranks_problem,
)

_ARRAY_32: Final = b"\xdd"
"""MessagePack's head of an array whose length, 4 bytes of big endian, follows."""


def decode_table(document: Buffer) -> RankTable:
    """The inverse of `encode_table`; raises Corrupt on anything that it does not make."""
    try:
        table = decode_body(_TABLE_DECODER, unwrap(MAGIC, VERSION, document, TABLE_BYTES_MAX))
    except Corrupt:  # It is, or it has pieces with homes.
        decoder = TableDecoder(document)
        decoder.go_on(len(decoder))
        return decoder.table()
    problem = ranks_problem(table.rank, table.world_size) or entries_problem(table.entries)
    if problem:
        raise Corrupt(problem)
    return table


class TableDecoder:
    """I decode one table, some entries at a time. Made of it, I know how many entries it has: that
    takes a hundredth of what they take.
    """

    def __init__(self, document: Buffer) -> None:
        """Raises Corrupt."""
        raw = decode_body(_RAW_DECODER, unwrap(MAGIC, VERSION, document, TABLE_BYTES_MAX))
        problem = ranks_problem(raw.rank, raw.world_size)
        if problem:
            raise Corrupt(problem)
        self.rank = Rank(raw.rank)
        self.world_size = raw.world_size
        self._left = raw.entries
        #: Ascending; what has been decoded so far.
        self._entries: list[TensorEntry] = []

    def __len__(self) -> int:
        """Its entries, decoded or not."""
        return len(self._left)

    @property
    def done(self) -> bool:
        """Whether all are decoded."""
        return len(self._entries) == len(self._left)

    def go_on(self, count: int) -> list[TensorEntry]:
        """The next `count` entries, or as many as are left. Raises Corrupt."""
        first = len(self._entries)
        slice_ = self._left[first : first + count]
        array = _ARRAY_32 + len(slice_).to_bytes(4, "big") + b"".join(slice_)
        entries = _decoded(array)
        # The order holds across slices as well.
        problem = entries_problem([*self._entries[-1:], *entries])
        if problem:
            raise Corrupt(problem)
        self._entries += entries
        return entries

    def table(self) -> RankTable:
        """Once all are decoded."""
        return RankTable(self.rank, self.world_size, tuple(self._entries))


def decode_entry(raw: bytes) -> TensorEntry:
    """One of a table by itself, as it lies there. Raises Corrupt."""
    (entry,) = entries = _decoded(_ARRAY_32 + (1).to_bytes(4, "big") + raw)
    problem = entries_problem(entries)
    if problem:
        raise Corrupt(problem)
    return entry


class _RawTable(msgspec.Struct, array_like=True, frozen=True, gc=False):
    rank: int
    world_size: int
    entries: list[msgspec.Raw]


class _HomesEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An entry whose pieces may have homes; decoded by itself, since few tables have any."""

    name: str
    meaning: Meaning
    dtype: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]
    fingerprint: bytes


_TABLE_DECODER: Final = msgspec.msgpack.Decoder(RankTable)
_RAW_DECODER: Final = msgspec.msgpack.Decoder(_RawTable)
_DECODER: Final = msgspec.msgpack.Decoder(list[TensorEntry])
_HOMES_DECODER: Final = msgspec.msgpack.Decoder(list[_HomesEntry])


def _decoded(array: bytes) -> list[TensorEntry]:
    """Raises Corrupt."""
    try:
        return decode_body(_DECODER, array)
    except Corrupt:
        return [_with_homes(entry) for entry in decode_body(_HOMES_DECODER, array)]


def _with_homes(entry: _HomesEntry) -> TensorEntry:
    """Raises Corrupt."""
    pieces = tuple([_piece_of(entry.name, piece) for piece in entry.pieces])
    return TensorEntry(
        entry.name, entry.meaning, entry.dtype, entry.global_shape, entry.offset, entry.shape,
        pieces, entry.fingerprint,
    )  # fmt: skip


def _piece_of(name: str, wire: tuple[int, ...]) -> Piece:
    """Raises Corrupt."""
    match wire:
        case (start, offset, length):
            return Piece(start, offset, length)
        case (start, offset, length, term, counter) if term >= 0 and counter >= 0:
            return HomePiece(start, offset, length, term, counter)
        case _:
            raise Corrupt(f"{name}: a piece that cannot be: {wire[:8]}")
