"""What one rank declares of a tensor: is it sound by itself, and where do its bytes lie?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.format.array_table import ArrayTable
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, Location
from ckpt.format.table import Meaning, TensorEntry
from ckpt.plan.boxes import Extent, volume_of

Holding = tuple[Rank, TensorEntry]
"""A rank, and what it declares."""
AXIS_ITEMS_MAX: Final = 1 << 62


def fault_of(entry: TensorEntry) -> str:
    """What is wrong with an entry by itself; empty when nothing is."""
    meaning = entry.meaning
    fault, box_bytes = _form_fault(
        entry.dtype, entry.global_shape, entry.offset, entry.shape, meaning is Meaning.SHARD
    )
    if fault:
        return fault
    reach = 0
    for piece in entry.pieces:
        start, length = piece.start, piece.length
        end = start + length
        if start < reach or length < 1 or end > box_bytes or piece.payload_offset < 0:
            return f"stores bytes {start} to {end} of a box of {box_bytes}, out of order"
        if start > reach and meaning is Meaning.OWN:
            break
        reach = end
    if reach < box_bytes and meaning is Meaning.OWN:
        text = f"stores {reach} bytes from the beginning of a box of {box_bytes}"
        return f"{text}; the next ones are missing"
    return ""


def whole_entries(table: ArrayTable) -> NDArray[np.bool_]:
    """Of each entry, whether it is a tensor by itself, whole and without fault, in one piece."""
    wanted = table.by_kind(_whole_bytes)
    whole: NDArray[np.bool_] = table.plain & (table.arrays.pieces[2] == wanted)
    for number, entry in table.odd.items():  # A further box of the tensor before it?
        if number and table.entry(number - 1).name == entry.name:
            whole[number - 1] = False
    return whole


def _whole_bytes(entry: TensorEntry) -> int:
    """Of all of the tensor; -1 where it cannot be stored, or not in one piece."""
    whole, is_shard = entry.global_shape, entry.meaning is Meaning.SHARD
    fault, tensor_bytes = _form_fault(entry.dtype, whole, (0,) * len(whole), whole, is_shard)
    return -1 if fault or tensor_bytes > PAYLOAD_BYTES_MAX else tensor_bytes


@lru_cache(maxsize=4096)
def _form_fault(
    dtype: str, whole: Extent, offset: Extent, shape: Extent, is_shard: bool
) -> tuple[str, int]:
    """What is wrong with an entry's form, which most tensors of a model share with others; and how
    many bytes its box has.
    """
    try:
        item_bytes = dtype_of(dtype).itemsize
    except Refused as error:
        return f"declares what cannot be stored: {error.message}", 0
    box = f"a box at {offset} of shape {shape}"
    if not len(whole) == len(offset) == len(shape):
        return f"declares {box} in the global shape {whole}: the numbers of axes differ", 0
    if any(
        not (a >= 0 and n >= 0 and a + n <= w < AXIS_ITEMS_MAX)
        for a, n, w in zip(offset, shape, whole, strict=True)
    ):
        return f"declares {box}, which reaches out of the global shape {whole}", 0
    if shape != whole and not is_shard:
        return f"declares a box of shape {shape} of a tensor of shape {whole} that is no shard", 0
    return "", volume_of(shape) * item_bytes


def box_of(rank: Rank, entry: TensorEntry, writers: Sequence[Holding]) -> IndexBox:
    """The box that `rank` declared as `entry`, with each byte at one place: its own payload first,
    then the lowest rank's.
    """
    pieces = [(piece, writer) for writer, held in writers for piece in held.pieces]
    if len(pieces) == 1:
        piece, writer = pieces[0]
        place = Location(writer, piece.start, piece.payload_offset, piece.length)
        return IndexBox(rank, entry.offset, entry.shape, (place.at(piece.home),))
    pieces.sort(key=lambda p: (p[0].start, p[1] != rank, -p[0].length, p[1]))
    locations: list[Location] = []
    reach = 0
    for piece, writer in pieces:
        start, end = max(piece.start, reach), piece.start + piece.length
        if start < end:
            at = piece.payload_offset + start - piece.start
            locations.append(Location(writer, start, at, end - start).at(piece.home))
            reach = end
    return IndexBox(rank, entry.offset, entry.shape, tuple(locations))


def first_gap_of(writers: Sequence[Holding]) -> tuple[int, int] | None:
    """Bytes [start, end) of a replica, or of a box that all of them declare, that none stores."""
    entry = writers[0][1]
    box_bytes, reach = box_bytes_of(entry), 0
    for start, length in sorted(
        (piece.start, piece.length) for _, held in writers for piece in held.pieces
    ):
        if start > reach:
            return reach, start
        reach = max(reach, start + length)
    return (reach, box_bytes) if reach < box_bytes else None


def box_bytes_of(entry: TensorEntry) -> int:
    """Of its box, in C order."""
    return _box_bytes(entry.dtype, entry.shape)


@lru_cache(maxsize=4096)
def _box_bytes(dtype: str, shape: Extent) -> int:
    return volume_of(shape) * dtype_of(dtype).itemsize


def box_in_one_piece(rank: Rank, entry: TensorEntry) -> IndexBox:
    """That the rank stores so."""
    (piece,) = entry.pieces
    place = Location(rank, 0, piece.payload_offset, piece.length).at(piece.home)
    return IndexBox(rank, entry.offset, entry.shape, (place,))
