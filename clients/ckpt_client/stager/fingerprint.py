"""xxh3-128 of what a half holds: tensors for the table,
boxes of shards when the coordinator asks.

Runs on a worker thread after `save` has returned. The bytes are read where they lie; a box that is
not contiguous is gathered in bounded parts.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB
from ckpt.format.checksum import Xxh3
from ckpt.format.dtypes import dtype_of
from ckpt.format.messages import BoxQuery
from ckpt.format.table import RankTable, TensorEntry
from ckpt_client.packing import Declaration
from ckpt_client.state import AnyArray

GATHER_BYTES: Final = MiB
SAMPLED_BYTES_MIN: Final = MiB
"""Larger tensors are sampled first."""
Samples = Mapping[tuple[str, tuple[int, ...]], bytes]
"""(name, box offset) -> xxh3-128 of a few pages of a tensor."""


def fingerprint_copies(half: memoryview, declaration: Declaration) -> RankTable:
    """The table with the fingerprint of every copy filled in: stored bytes and witness,
    in C order.
    """
    return _fingerprinted(half, declaration, declaration.copies)


def fingerprint_compared(
    half: memoryview, declaration: Declaration, last: Samples | None
) -> tuple[RankTable, Samples]:
    """The table, with the fingerprint of every tensor that may be the same as in the save whose
    samples are `last`, of copies and small ones always; and the samples of the others.

    In a training that goes on nearly every large tensor changes, and a few pages of each show it.
    """
    staged = _Staged(half, declaration)
    numbers, samples = set(declaration.copies), {}
    for number, entry in enumerate(declaration.table.entries):
        if staged.byte_count(number) > SAMPLED_BYTES_MIN:
            key = entry.name, entry.offset
            samples[key] = staged.sample(number)
            if last is not None and last.get(key) != samples[key]:
                continue
        numbers.add(number)
    return _fingerprinted(half, declaration, numbers), samples


def _fingerprinted(
    half: memoryview, declaration: Declaration, numbers: Container[int]
) -> RankTable:
    staged = _Staged(half, declaration)
    entries = tuple(
        replace(entry, fingerprint=staged.digest(number)) if number in numbers else entry
        for number, entry in enumerate(declaration.table.entries)
    )
    return replace(declaration.table, entries=entries)


def fingerprint_boxes(
    half: memoryview, declaration: Declaration, boxes: Sequence[BoxQuery]
) -> tuple[bytes, ...]:
    """One digest for each box, whose offset is the global tensor's.

    Raises Corrupt when the rank lacks it.
    """
    staged = _Staged(half, declaration)
    return tuple(staged.box_digest(box) for box in boxes)


class _Staged:
    """I know where the bytes of each entry lie in a half."""

    def __init__(self, half: memoryview, declaration: Declaration) -> None:
        self._half = half
        self._entries = declaration.table.entries
        self._outside: dict[int, list[tuple[int, int, int]]] = {}
        for one in declaration.witnesses:
            self._outside.setdefault(one.entry, []).append((one.start, one.offset, one.length))

    def digest(self, number: int) -> bytes:
        """Of a whole entry."""
        digest = Xxh3()
        for part in self._parts(number):
            digest.update(part)
        return digest.digest()

    def byte_count(self, number: int) -> int:
        """Of a whole entry."""
        return sum(len(part) for part in self._parts(number))

    def sample(self, number: int) -> bytes:
        """Of the first, the middle and the last page of each of its parts."""
        digest = Xxh3()
        for part in self._parts(number):
            for at in (0, len(part) // 2, max(0, len(part) - PAGE_BYTES)):
                digest.update(part[at : at + PAGE_BYTES])
        return digest.digest()

    def box_digest(self, box: BoxQuery) -> bytes:
        """Of a part of the entry that contains it."""
        for number, entry in enumerate(self._entries):
            inside = _inside(entry, box) if entry.name == box.name else None
            if inside is not None:
                digest = Xxh3()
                _update(digest, self._array(number)[inside])
                return digest.digest()
        raise Corrupt(f"{box.name}: this rank holds no box at {box.offset} of {box.shape}")

    def _array(self, number: int) -> AnyArray:
        """In place, unless other ranks store parts of it: then a copy is put together."""
        entry = self._entries[number]
        parts = self._parts(number)
        flat = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        array: AnyArray = flat.view(dtype_of(entry.dtype)).reshape(entry.shape)
        return array

    def _parts(self, number: int) -> list[memoryview]:
        """The entry's bytes in C order: stored ones and witness."""
        entry = self._entries[number]
        stored = [(piece.start, piece.payload_offset, piece.length) for piece in entry.pieces]
        parts: list[memoryview] = []
        at = 0
        for start, offset, length in sorted([*stored, *self._outside.get(number, [])]):
            if start != at:
                raise Corrupt(f"{entry.name}: the staged copy has a hole at byte {at}")
            parts.append(self._half[offset : offset + length])
            at += length
        return parts


def _inside(entry: TensorEntry, box: BoxQuery) -> tuple[slice, ...] | None:
    """Where the box lies in the entry; None when it is not wholly in it."""
    if len(box.offset) != len(entry.offset):
        return None
    inside = []
    for start, extent, first, held in zip(
        box.offset, box.shape, entry.offset, entry.shape, strict=True
    ):
        if not (extent >= 0 and first <= start and start + extent <= first + held):
            return None
        inside.append(slice(start - first, start - first + extent))
    return tuple(inside)


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
