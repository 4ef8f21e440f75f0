"""xxh3-128 of what a half holds: tensors for the table,
boxes of shards when the coordinator asks.

Runs on a worker thread after `save` has returned. The bytes are read where they lie; a box that is
not contiguous is gathered in bounded parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ckpt.base.errors import Aborted, Corrupt
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB
from ckpt.format.checksum import Xxh3, xxh3_128
from ckpt.format.dtypes import dtype_of
from ckpt.format.messages.saving import BoxQuery
from ckpt.format.table import RankTable, TensorEntry
from ckpt.plan.references import (
    REFERRED_BYTES_MIN,
    Base,
    Key,
    bytes_of,
    key_of,
    may_refer,
)
from ckpt_client.stager.declaration import Declaration

GATHER_BYTES: Final = MiB
SAMPLED_BYTES_MIN: Final = MiB
"""Larger tensors are sampled first."""
Samples = Mapping[Key, bytes]
"""Of an entry: xxh3-128 of a few pages of a tensor."""


class Fingerprinter:
    """I fingerprint the tensors of one half, each at most once. Used by one thread at a time."""

    def __init__(self, half: memoryview, declaration: Declaration) -> None:
        self._staged = _Staged(half, declaration)
        self._declaration = declaration
        #: By the entry's number in the declaration.
        self._digests: dict[int, bytes] = {}
        self.samples: dict[Key, bytes] = {}
        """Of the tensors that were sampled until now."""

    def compare(self, base: Base, samples: Samples, stored: Collection[str]) -> bool:
        """Fingerprint what a save may refer to and whose samples are those of the base; whether
        any of it is the same. In a training that goes on, nearly all costs a few pages.
        """
        found = False
        for number, entry in enumerate(self._declaration.table.entries):
            key = key_of(entry)
            if may_refer(base, entry, stored) and self._sample(number) == samples.get(key):
                found |= self._digest(number) == base.entries[key].fingerprint
        return found

    def table(self, last: Samples | None, *, warn: bool, refer: bool) -> RankTable:
        """The table, with the fingerprint of every copy, and of what may be the same as in the save
        whose samples are `last`.

        warn: of small tensors always, and of large ones. refer: of what a save may refer to.
        """
        outside, copies = self._staged.outside, self._declaration.copies
        for number, entry in enumerate(self._declaration.table.entries):
            if len(entry.pieces) == 1 and number not in outside:
                stored_bytes, others_bytes = entry.pieces[0].length, 0
            else:
                stored_bytes, others_bytes = bytes_of(entry), self._staged.outside_bytes(number)
            if stored_bytes + others_bytes < REFERRED_BYTES_MIN:  # As of many tensors are all.
                wanted = warn
            else:
                large = stored_bytes + others_bytes > SAMPLED_BYTES_MIN
                wanted = warn and not large
                if (warn and large) or (refer and stored_bytes >= REFERRED_BYTES_MIN):
                    sample = self._sample(number)
                    wanted |= last is None or last.get(key_of(entry)) == sample
            if wanted or number in copies:
                self._digest(number)
        return _with_fingerprints(self._declaration.table, self._digests)

    def _sample(self, number: int) -> bytes:
        key = key_of(self._declaration.table.entries[number])
        if key not in self.samples:
            self.samples[key] = self._staged.sample(number)
        return self.samples[key]

    def _digest(self, number: int) -> bytes:
        if number not in self._digests:
            self._digests[number] = self._staged.digest(number)
        return self._digests[number]


def _with_fingerprints(table: RankTable, digests: Mapping[int, bytes]) -> RankTable:
    entries = [
        entry.with_fingerprint(digests[number]) if number in digests else entry
        for number, entry in enumerate(table.entries)
    ]
    return replace(table, entries=tuple(entries))


def fingerprint_boxes(
    half: memoryview, declaration: Declaration, boxes: Sequence[BoxQuery]
) -> tuple[bytes, ...]:
    """One digest for each box, whose offset is the global tensor's.

    Raises Corrupt when the rank lacks it, Aborted when it was moved out of the half.
    """
    staged = _Staged(half, declaration)
    return tuple(staged.box_digest(box) for box in boxes)


class _Staged:
    """I know where the bytes of each entry lie in a half."""

    def __init__(self, half: memoryview, declaration: Declaration) -> None:
        self._half = half
        self._entries = declaration.table.entries
        self.outside: dict[int, list[tuple[int, int, int]]] = {}
        """By the entry's number, for few of many: what others store of it."""
        for one in declaration.witnesses:
            self.outside.setdefault(one.entry, []).append((one.start, one.offset, one.length))

    def digest(self, number: int) -> bytes:
        """Of a whole entry."""
        pieces = self._entries[number].pieces
        if len(pieces) == 1 and number not in self.outside:  # As nearly all have it.
            piece = pieces[0]
            if piece.home is None and not piece.start:
                begin = piece.payload_offset
                return xxh3_128(self._half[begin : begin + piece.length])
        parts = self._parts(number)
        if len(parts) == 1:
            return xxh3_128(parts[0])
        digest = Xxh3()
        for part in parts:
            digest.update(part)
        return digest.digest()

    def outside_bytes(self, number: int) -> int:
        """So much of an entry others store."""
        return sum([length for _, _, length in self.outside.get(number, ())])

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

    def _array(self, number: int) -> NDArray[np.generic]:
        """In place, unless other ranks store parts of it: then a copy is put together."""
        entry = self._entries[number]
        parts = self._parts(number)
        flat = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        array: NDArray[np.generic] = flat.view(dtype_of(entry.dtype)).reshape(entry.shape)
        return array

    def _parts(self, number: int) -> list[memoryview]:
        """The entry's bytes in C order: stored ones and witness."""
        entry = self._entries[number]
        places: list[tuple[int, int, int]] = []
        for piece in entry.pieces:
            if piece.home is not None:
                raise Aborted(
                    f"{entry.name} is to be compared with another rank's, and was not stored again",
                    hint="save again: the next save stores it",
                )
            start, offset, length = piece.start, piece.payload_offset, piece.length
            places.append((start, offset, length))
        if number in self.outside:
            places = sorted(places + self.outside[number])
        elif len(places) == 1 and not start:  # As nearly all are.
            return [self._half[offset : offset + length]]
        parts: list[memoryview] = []
        at = 0
        for start, offset, length in places:
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


def _update(digest: Xxh3, array: NDArray[np.generic]) -> None:
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
