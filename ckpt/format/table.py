"""What a rank declares about its payload: its tensors, what they mean and where their bytes lie.

The stager sends the table with Certify; the coordinator checks coverage and builds the index from
all ranks' tables. Meaning is declared, never inferred.

An envelope (`CKPB`, version 1, lz4) around MessagePack arrays:

    table  [rank, world_size, [entry, ...]]
    entry  [name, meaning, dtype, [global dims], [box offset], [box dims],
            [piece, ...], fingerprint]
    piece  [start, payload_offset, length], and for bytes that an earlier generation holds (its
           home) [start, payload_offset, length, term, counter]
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import chain, pairwise
from operator import add, lt
from typing import Final

import msgspec

from ckpt.base.errors import Refused
from ckpt.base.ids import Generation, Rank
from ckpt.base.limits import (
    PAYLOAD_BYTES_MAX,
    TABLE_BYTES_MAX,
    TENSOR_DIMS_MAX,
    TENSOR_NAME_BYTES_MAX,
    WORLD_SIZE_MAX,
)
from ckpt.format.checksum import XXH3_BYTES
from ckpt.format.dtypes import DTYPE_CHARS_MAX
from ckpt.format.envelope import Packing, wrap

MAGIC: Final = b"CKPB"
VERSION: Final = 1
DIM_MAX: Final = (1 << 63) - 1


class Meaning(Enum):
    """What a tensor is to the other ranks; the values are stored."""

    OWN = "own"
    """The rank's alone; its box is the whole array."""
    REPLICATED = "replicated"
    """The same on all ranks that declare the name; stored once, in pieces."""
    SHARD = "shard"
    """A box of one global tensor."""


class Piece(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """C-order bytes [start, start + length) of a box lie at `payload_offset` of the payload."""

    start: int
    payload_offset: int
    length: int

    @property
    def home(self) -> Generation | None:
        """The same rank's payload of that generation holds them; None is the payload at hand."""
        return None

    def at(self, home: Generation) -> HomePiece:
        """The same bytes in that generation's payload."""
        return HomePiece(self.start, self.payload_offset, self.length, home.term, home.counter)


class HomePiece(Piece, array_like=True, frozen=True, gc=False):
    """A piece that an earlier generation holds."""

    term: int
    counter: int

    @property
    def home(self) -> Generation:
        return Generation(self.term, self.counter)


class TensorEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One tensor of a rank, or one of its boxes; as it is stored.

    Of a replica, and of a box that other ranks declare as well, the pieces are those that this rank
    stores, if any.
    """

    name: str
    """The path as text (ckpt.format.tree.path_text)."""
    meaning: Meaning
    dtype: str
    """As ckpt.format.dtypes names it."""
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    """Of the box in the global tensor; zeros unless the meaning is SHARD."""
    shape: tuple[int, ...]
    """Of the box."""
    pieces: tuple[Piece, ...]
    """Ascending by start, without overlap."""
    fingerprint: bytes = b""
    """xxh3-128 of the box's C-order bytes, or empty when it was not computed."""

    def with_fingerprint(self, fingerprint: bytes) -> TensorEntry:
        """The same entry."""
        return TensorEntry(
            self.name, self.meaning, self.dtype, self.global_shape, self.offset, self.shape,
            self.pieces, fingerprint,
        )  # fmt: skip


class RankTable(msgspec.Struct, array_like=True, frozen=True):
    """All tensors of one rank, sorted by name. Only shards of one tensor share a name: they are
    sorted by offset, which is unique.
    """

    rank: Rank
    world_size: int
    entries: tuple[TensorEntry, ...]

    def away(self) -> list[HomePiece]:
        """Pieces that lie in homes."""
        pieces = [piece for entry in self.entries for piece in entry.pieces]
        return [piece for piece in pieces if isinstance(piece, HomePiece)]

    def away_bytes(self) -> int:
        """Bytes of them."""
        return sum([piece.length for piece in self.away()])


def encode_table(table: RankTable) -> bytes:
    """The document; raises Refused by name when an entry or the whole passes a limit."""
    problem = ranks_problem(table.rank, table.world_size) or entries_problem(table.entries)
    if problem:
        raise Refused(problem)
    return encode_sound_table(table)


def encode_sound_table(table: RankTable) -> bytes:
    """The same where all of it has been looked at already; raises Refused when it is too large."""
    raw = msgspec.msgpack.encode(table)
    if len(raw) > TABLE_BYTES_MAX:
        raise Refused(f"a table of {len(raw)} bytes: at most {TABLE_BYTES_MAX} are allowed")
    return wrap(MAGIC, VERSION, raw, Packing.LZ4)


def tensor_problem(name: str, dtype: str, global_shape: tuple[int, ...]) -> str:
    """What is wrong with a tensor, its boxes aside; empty when nothing is."""
    if _is_long(name):
        return f"{name[:40]}...: a name of more than {TENSOR_NAME_BYTES_MAX} bytes"
    problem = _form_problem(dtype, global_shape)
    return f"{name}: {problem}" if problem else ""


def _is_long(name: str) -> bool:
    # The encoded name is the longer one.
    if len(name) > TENSOR_NAME_BYTES_MAX:
        return True
    return not name.isascii() and len(name.encode()) > TENSOR_NAME_BYTES_MAX


# Tensors of a model have few forms: each is looked at once.
@lru_cache(maxsize=4096)
def _form_problem(dtype: str, global_shape: tuple[int, ...]) -> str:
    if not 0 < len(dtype) <= DTYPE_CHARS_MAX or not dtype.isascii() or not dtype.isprintable():
        return f"dtype {dtype[:40]!r} is no name of one"
    if len(global_shape) > TENSOR_DIMS_MAX or not all(0 <= d <= DIM_MAX for d in global_shape):
        return f"shape {global_shape[:8]} is out of bounds"
    return ""


@lru_cache(maxsize=4096)
def box_problem(
    global_shape: tuple[int, ...], offset: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """What is wrong with a box of a tensor; empty when nothing is."""
    if not len(offset) == len(shape) == len(global_shape):
        return f"a box of {len(shape)} dimensions in a tensor of {len(global_shape)}"
    for start, size, whole in zip(offset, shape, global_shape, strict=True):
        if start < 0 or size < 0 or start + size > whole:
            return f"box {shape} at {offset} is not inside {global_shape}"
    return ""


# One look-up for an entry, since there may be a hundred thousand.
@lru_cache(maxsize=4096)
def _entry_form_problem(
    dtype: str, global_shape: tuple[int, ...], offset: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    return _form_problem(dtype, global_shape) or box_problem(global_shape, offset, shape)


# --------------------------------------------------------------------------- limits


def ranks_problem(rank: int, world_size: int) -> str:
    """What is wrong with who a table is of; empty when nothing is."""
    if not 0 <= rank < world_size <= WORLD_SIZE_MAX:
        return f"rank {rank} of {world_size} cannot be"
    return ""


def entries_problem(entries: Sequence[TensorEntry]) -> str:
    """What is wrong with entries that follow one another in a table; empty when nothing is."""
    names = [entry.name for entry in entries]
    if not _are_plain(entries, names):
        problem = next(filter(None, map(_entry_problem, entries)), "")
        if problem:
            return problem
    if all(map(lt, names, names[1:])):
        return ""
    for before, after in pairwise(entries):
        if not _ascend(before, after):
            return f"{after.name}: names must be unique and ascending"
    return ""


def _ascend(before: TensorEntry, after: TensorEntry) -> bool:
    """Several boxes of a tensor have one name."""
    if before.name == after.name and before.meaning is after.meaning is Meaning.SHARD:
        return before.offset < after.offset
    return before.name < after.name


def _are_plain(entries: Sequence[TensorEntry], names: Sequence[str]) -> bool:
    """Whether all are what nearly all are: whole tensors without fault, each in one piece or not
    stored here. Asked in columns, since there may be a hundred thousand; they have few forms.
    """
    forms = {(each.dtype, each.global_shape, each.offset, each.shape) for each in entries}
    kept = [entry.pieces for entry in entries]
    return (
        max(map(len, names), default=0) <= TENSOR_NAME_BYTES_MAX
        and "".join(names).isascii()
        and all(form[1] == form[3] and not _entry_form_problem(*form) for form in forms)
        and max(map(len, kept), default=0) <= 1
        and _lie_in_payloads(list(chain.from_iterable(kept)))
        and _PRINTS.issuperset([len(entry.fingerprint) for entry in entries])
    )


def _lie_in_payloads(pieces: Sequence[Piece]) -> bool:
    starts = [piece.start for piece in pieces]
    offsets = [piece.payload_offset for piece in pieces]
    lengths = [piece.length for piece in pieces]
    return (
        min(starts, default=0) >= 0
        and min(offsets, default=0) >= 0
        and min(lengths, default=1) > 0
        and max(map(add, starts, lengths), default=0) <= PAYLOAD_BYTES_MAX
        and max(map(add, offsets, lengths), default=0) <= PAYLOAD_BYTES_MAX
    )


_PRINTS: Final = frozenset((0, XXH3_BYTES))
"""Bytes that a fingerprint may have."""


def _entry_problem(entry: TensorEntry) -> str:
    name, whole, shape = entry.name, entry.global_shape, entry.shape
    try:
        if _is_long(name):
            return tensor_problem(name, entry.dtype, whole)
    except UnicodeEncodeError:
        return f"{name!r} is not valid Unicode"
    problem = _entry_form_problem(entry.dtype, whole, entry.offset, shape)
    if problem:
        return f"{name}: {problem}"
    if shape != whole and entry.meaning is not Meaning.SHARD:
        return f"{name}: only a shard is a part of its tensor"
    if entry.fingerprint and len(entry.fingerprint) != XXH3_BYTES:
        return f"{name}: a fingerprint of {len(entry.fingerprint)} bytes"
    end = 0
    for piece in entry.pieces:
        start, offset, length = piece.start, piece.payload_offset, piece.length
        if start < end or length <= 0 or offset < 0:
            return f"{name}: its pieces overlap or do not ascend"
        end = start + length
        if end > PAYLOAD_BYTES_MAX or offset + length > PAYLOAD_BYTES_MAX:
            return f"{name}: a piece lies outside of any payload"
    return ""
