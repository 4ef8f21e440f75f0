"""Where every tensor of a checkpoint lies: the index, readable in ranges by tensor name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, Rank, TargetId
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer
from ckpt.format.table import Meaning

Fetch = Callable[[int, int], Buffer]
"""Bytes [start, end) of one copy of the document, exactly as many; errors of the way pass through."""


@dataclass(frozen=True, slots=True)
class IndexPayload:
    """One rank's payload: how it was cut, and the one accepted target of each column."""

    rank: Rank
    code: Code
    payload_bytes: int
    cell_bytes: int
    document_offset: int
    """Where the rank's tree document lies in the payload."""
    document_bytes: int
    manifest_digest: bytes
    """xxh3-128 of the rank's manifest."""
    columns: tuple[TargetId | None, ...]
    """n entries; None for a column that was missing at commit."""
    column_crcs: tuple[int, ...]
    """n entries; also of missing columns."""


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Bytes [start, start + length) of a box's C-order bytes, in a rank's payload."""

    generation: Generation | None
    """None is the index's own generation."""
    rank: Rank
    start: int
    payload_offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor as one rank declared it, and where its bytes are."""

    rank: Rank
    """Who declared it; the bytes may lie in other ranks' payloads (replicas)."""
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    locations: tuple[Location, ...]
    """Ascending by start; together they cover the box's bytes."""


@dataclass(frozen=True, slots=True)
class IndexTensor:
    """One name. An OWN tensor has one box for each rank that has it; their shapes may differ from `global_shape`."""

    name: str
    meaning: Meaning
    dtype: str
    global_shape: tuple[int, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """The whole index in memory."""

    checkpoint: CheckpointId
    launch: LaunchNumber
    world_size: int
    payloads: tuple[IndexPayload, ...]
    """Ascending by rank."""
    tensors: tuple[IndexTensor, ...]
    """Ascending by (name, box rank of OWN): names are unique."""


def encode_index(index: Index) -> bytes:
    """The document; raises Refused when it passes INDEX_BYTES_MAX."""
    raise NotImplementedError


def decode_index(document: Buffer) -> Index:
    """The whole index; raises Corrupt."""
    raise NotImplementedError


class IndexReader:
    """I read one index by ranges. Each part that is damaged in one copy is fetched from the next.

    Methods raise Corrupt when no copy has a whole one, and whatever `fetch` raises.
    """

    def __init__(self, fetch: Fetch, *others: Fetch) -> None:
        raise NotImplementedError

    @property
    def checkpoint(self) -> CheckpointId:
        raise NotImplementedError

    @property
    def launch(self) -> LaunchNumber:
        raise NotImplementedError

    @property
    def world_size(self) -> int:
        raise NotImplementedError

    def payloads(self) -> tuple[IndexPayload, ...]:
        """All payloads, ascending by rank."""
        raise NotImplementedError

    def payload(self, rank: Rank) -> IndexPayload:
        """One rank's payload; raises NotFound."""
        raise NotImplementedError

    def tensor(self, name: str) -> IndexTensor:
        """One tensor; raises NotFound."""
        raise NotImplementedError

    def tensors(self, prefix: str = "") -> Iterator[IndexTensor]:
        """All tensors whose name begins with `prefix`, ascending by name."""
        raise NotImplementedError
