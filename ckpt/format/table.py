"""What a rank declares about its payload: its tensors, what they mean and where their bytes lie.

The stager sends the table with Certify; the coordinator checks coverage and builds the index from all
ranks' tables. Meaning is declared, never inferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ckpt.base.ids import Rank
from ckpt.format.checksum import Buffer


class Meaning(Enum):
    """What a tensor is to the other ranks; the values are stored."""

    OWN = "own"
    """The rank's alone; its box is the whole array."""
    REPLICATED = "replicated"
    """The same on all ranks that declare the name; stored once, in pieces."""
    SHARD = "shard"
    """A box of one global tensor."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Bytes [start, start + length) of a box's C-order bytes lie at `payload_offset` of the rank's payload."""

    start: int
    payload_offset: int
    length: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a rank. A replica's pieces are only those that this rank stores; they may be none."""

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


@dataclass(frozen=True, slots=True)
class RankTable:
    """All tensors of one rank, sorted by name; names are unique in a rank."""

    rank: Rank
    world_size: int
    entries: tuple[TensorEntry, ...]


def encode_table(table: RankTable) -> bytes:
    """The document; raises Refused when it passes TABLE_BYTES_MAX or a name is too long."""
    raise NotImplementedError


def decode_table(document: Buffer) -> RankTable:
    """The inverse; raises Corrupt on anything that `encode_table` does not make."""
    raise NotImplementedError
