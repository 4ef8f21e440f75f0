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

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Final

import msgspec

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import Generation, Rank
from ckpt.base.limits import (
    PAYLOAD_BYTES_MAX,
    TABLE_BYTES_MAX,
    TENSOR_DIMS_MAX,
    TENSOR_NAME_BYTES_MAX,
    WORLD_SIZE_MAX,
)
from ckpt.format.checksum import XXH3_BYTES, Buffer
from ckpt.format.dtypes import DTYPE_CHARS_MAX
from ckpt.format.envelope import Packing, decode_body, unwrap, wrap

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


class Piece(msgspec.Struct, frozen=True, gc=False):
    """C-order bytes [start, start + length) of a box lie at `payload_offset` of the payload."""

    start: int
    payload_offset: int
    length: int
    home: Generation | None = None
    """The same rank's payload of that generation holds them; None is the payload at hand."""


class TensorEntry(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a rank, or one of its boxes.

    Of a replica, and of a box that other ranks declare too, the pieces are those that this rank
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


class RankTable(msgspec.Struct, frozen=True):
    """All tensors of one rank, sorted by name. Only shards of one tensor share a name: they are
    sorted by offset, which is unique.
    """

    rank: Rank
    world_size: int
    entries: tuple[TensorEntry, ...]


def encode_table(table: RankTable) -> bytes:
    """The document; raises Refused by name when an entry or the whole passes a limit."""
    problem = _table_problem(table)
    if problem:
        raise Refused(problem)
    entries = tuple(
        [
            _Entry(
                entry.name,
                entry.meaning,
                entry.dtype,
                entry.global_shape,
                entry.offset,
                entry.shape,
                tuple([_wire_piece(piece) for piece in entry.pieces]),
                entry.fingerprint,
            )
            for entry in table.entries
        ]
    )
    raw = msgspec.msgpack.encode(_Table(table.rank, table.world_size, entries))
    if len(raw) > TABLE_BYTES_MAX:
        raise Refused(f"a table of {len(raw)} bytes: at most {TABLE_BYTES_MAX} are allowed")
    return wrap(MAGIC, VERSION, raw, Packing.LZ4)


def decode_table(document: Buffer) -> RankTable:
    """The inverse; raises Corrupt on anything that `encode_table` does not make."""
    wire = decode_body(_DECODER, unwrap(MAGIC, VERSION, document, TABLE_BYTES_MAX))
    entries = tuple(
        [
            TensorEntry(
                entry.name,
                entry.meaning,
                entry.dtype,
                entry.global_shape,
                entry.offset,
                entry.shape,
                tuple([_piece_of(entry.name, piece) for piece in entry.pieces]),
                entry.fingerprint,
            )
            for entry in wire.entries
        ]
    )
    table = RankTable(Rank(wire.rank), wire.world_size, entries)
    problem = _table_problem(table)
    if problem:
        raise Corrupt(problem)
    return table


def tensor_problem(
    name: str,
    dtype: str,
    global_shape: tuple[int, ...],
    boxes: Iterable[tuple[tuple[int, ...], tuple[int, ...]]],
) -> str:
    """What is wrong with a tensor and its boxes (offset, shape); empty when nothing is."""
    if len(name) > TENSOR_NAME_BYTES_MAX or len(name.encode()) > TENSOR_NAME_BYTES_MAX:
        return f"{name[:40]}...: a name of more than {TENSOR_NAME_BYTES_MAX} bytes"
    problem = _form_problem(dtype, global_shape)
    for offset, shape in () if problem else boxes:
        problem = _box_problem(global_shape, offset, shape)
        if problem:
            break
    return f"{name}: {problem}" if problem else ""


# Tensors of a model have few forms: each is looked at once.
@lru_cache(maxsize=4096)
def _form_problem(dtype: str, global_shape: tuple[int, ...]) -> str:
    if not 0 < len(dtype) <= DTYPE_CHARS_MAX or not dtype.isascii() or not dtype.isprintable():
        return f"dtype {dtype[:40]!r} is no name of one"
    if len(global_shape) > TENSOR_DIMS_MAX or not all(0 <= d <= DIM_MAX for d in global_shape):
        return f"shape {global_shape[:8]} is out of bounds"
    return ""


@lru_cache(maxsize=4096)
def _box_problem(
    global_shape: tuple[int, ...], offset: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    if not len(offset) == len(shape) == len(global_shape):
        return f"a box of {len(shape)} dimensions in a tensor of {len(global_shape)}"
    for start, size, whole in zip(offset, shape, global_shape, strict=True):
        if start < 0 or size < 0 or start + size > whole:
            return f"box {shape} at {offset} is not inside {global_shape}"
    return ""


# --------------------------------------------------------------------------- the wire's own types


class _Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    meaning: Meaning
    dtype: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]
    fingerprint: bytes


class _Table(msgspec.Struct, array_like=True, frozen=True, gc=False):
    rank: int
    world_size: int
    entries: tuple[_Entry, ...]


_DECODER: Final = msgspec.msgpack.Decoder(_Table)


def _wire_piece(piece: Piece) -> tuple[int, ...]:
    place = piece.start, piece.payload_offset, piece.length
    return place if piece.home is None else (*place, piece.home.term, piece.home.counter)


def _piece_of(name: str, wire: tuple[int, ...]) -> Piece:
    """Raises Corrupt."""
    if len(wire) == 3:
        return Piece(*wire)
    match wire:
        case (start, offset, length, term, counter) if term >= 0 and counter >= 0:
            return Piece(start, offset, length, Generation(term, counter))
        case _:
            raise Corrupt(f"{name}: a piece that cannot be: {wire[:8]}")


def _table_problem(table: RankTable) -> str:
    if not 0 <= table.rank < table.world_size <= WORLD_SIZE_MAX:
        return f"rank {table.rank} of {table.world_size} cannot be"
    for entry in table.entries:
        problem = _entry_problem(entry)
        if problem:
            return problem
    for before, after in pairwise(table.entries):
        if not _ascend(before, after):
            return f"{after.name}: names must be unique and ascending"
    return ""


def _ascend(before: TensorEntry, after: TensorEntry) -> bool:
    """Several boxes of a tensor have one name."""
    if before.name == after.name and before.meaning is after.meaning is Meaning.SHARD:
        return before.offset < after.offset
    return before.name < after.name


def _entry_problem(entry: TensorEntry) -> str:
    try:
        problem = tensor_problem(
            entry.name, entry.dtype, entry.global_shape, ((entry.offset, entry.shape),)
        )
    except UnicodeEncodeError:
        return f"{entry.name!r} is not valid Unicode"
    if problem:
        return problem
    if entry.meaning is not Meaning.SHARD and entry.shape != entry.global_shape:
        return f"{entry.name}: only a shard is a part of its tensor"
    if len(entry.fingerprint) not in (0, XXH3_BYTES):
        return f"{entry.name}: a fingerprint of {len(entry.fingerprint)} bytes"
    end = 0
    for piece in entry.pieces:
        if piece.start < end or piece.length <= 0 or piece.payload_offset < 0:
            return f"{entry.name}: its pieces overlap or do not ascend"
        end = piece.start + piece.length
        if end > PAYLOAD_BYTES_MAX or piece.payload_offset + piece.length > PAYLOAD_BYTES_MAX:
            return f"{entry.name}: a piece lies outside of any payload"
    return ""
