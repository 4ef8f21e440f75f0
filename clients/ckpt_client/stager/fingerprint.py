"""xxh3-128 of what a half holds: whole replicas for the table,
boxes of shards when the coordinator asks.

Runs on a worker thread after `save` has returned. The bytes are read where they lie; a box that is
not contiguous is gathered in bounded parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.base.units import MiB
from ckpt.format.checksum import Xxh3
from ckpt.format.dtypes import dtype_of
from ckpt.format.messages import BoxQuery
from ckpt.format.table import Meaning, RankTable, TensorEntry
from ckpt_client.packing import Declaration
from ckpt_client.state import AnyArray

GATHER_BYTES: Final = MiB


def fingerprint_replicas(half: memoryview, declaration: Declaration) -> RankTable:
    """The table with the fingerprint of every replica filled in: stored bytes and witness,
    in C order.
    """
    outside: dict[int, list[tuple[int, int, int]]] = {}
    for one in declaration.witnesses:
        outside.setdefault(one.entry, []).append((one.start, one.offset, one.length))
    entries = tuple(
        replace(entry, fingerprint=_replica(half, entry, outside.get(number, [])))
        if entry.meaning is Meaning.REPLICATED
        else entry
        for number, entry in enumerate(declaration.table.entries)
    )
    return replace(declaration.table, entries=entries)


def fingerprint_boxes(
    half: memoryview, table: RankTable, boxes: Sequence[BoxQuery]
) -> tuple[bytes, ...]:
    """One digest for each box, whose offset is the global tensor's.

    Raises Corrupt when the rank lacks it.
    """
    entries = {entry.name: entry for entry in table.entries}
    return tuple(_box(half, entries.get(box.name), box) for box in boxes)


def _replica(
    half: memoryview, entry: TensorEntry, witness: Sequence[tuple[int, int, int]]
) -> bytes:
    stored = [(piece.start, piece.payload_offset, piece.length) for piece in entry.pieces]
    digest = Xxh3()
    at = 0
    for start, offset, length in sorted([*stored, *witness]):
        if start != at:
            raise Corrupt(f"{entry.name}: the staged replica has a hole at byte {at}")
        digest.update(half[offset : offset + length])
        at += length
    return digest.digest()


def _box(half: memoryview, entry: TensorEntry | None, box: BoxQuery) -> bytes:
    if entry is None or len(box.offset) != len(entry.offset):
        raise Corrupt(f"{box.name}: this rank holds no such box")
    inside = []
    for start, extent, first, held in zip(
        box.offset, box.shape, entry.offset, entry.shape, strict=True
    ):
        if not (extent >= 0 and first <= start and start + extent <= first + held):
            raise Corrupt(f"{box.name}: this rank holds no box at {box.offset} of {box.shape}")
        inside.append(slice(start - first, start - first + extent))
    digest = Xxh3()
    if entry.pieces:
        (piece,) = entry.pieces  # A shard is stored whole.
        dtype = dtype_of(entry.dtype)
        flat = np.frombuffer(half[piece.payload_offset : piece.payload_offset + piece.length], "u1")
        array: AnyArray = flat.view(dtype).reshape(entry.shape)
        _update(digest, array[tuple(inside)])
    return digest.digest()


def _update(digest: Xxh3, array: AnyArray) -> None:
    if not array.nbytes:
        return
    if array.flags.c_contiguous:
        digest.update(array.reshape(-1).view(np.uint8).data)
    elif array.nbytes <= GATHER_BYTES or array.ndim == 1:
        gathered = np.ascontiguousarray(array)
        digest.update(gathered.reshape(-1).view(np.uint8).data)
    else:
        for row in array:
            _update(digest, row)
