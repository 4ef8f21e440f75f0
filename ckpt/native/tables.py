"""A rank's table as arrays: what is the same on all ranks of a model apart from what differs.

C walks over the MessagePack, so that no object is made for an entry. What it does not take is left
to `ckpt.format.table_decoding`, which says what is wrong with it, if anything is.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckpt.native.arrays import address_of
from ckpt.native.library import TableState, find_library

Numbers = NDArray[np.int64]
PIECE_NUMBERS: Final = 5
"""`CKPT_PIECE_NUMBERS` of source/ckpt_native.h."""
PRINT_BYTES: Final = 16
NO_PIECE: Final = -1
"""As the length of an entry's one piece: there is none."""
MANY_PIECES: Final = -2
"""There are several."""


@dataclass(frozen=True, slots=True)
class TableArrays:
    """A table that has no number below 0; of nothing else has it been looked at."""

    rank: int
    world_size: int
    form: bytes
    """Name, meaning, dtype and global shape of each entry, as they came."""
    axes_each: NDArray[np.uint8]
    """Axes of each entry."""
    wholes: Numbers
    """Each axis of each entry: items of the tensor."""
    offsets: Numbers
    """Each axis: where the box begins."""
    shapes: Numbers
    """Each axis: items of the box."""
    pieces: Numbers
    """[5, entries]: start, place in the payload, length, term, counter. Length: or NO_PIECE, or
    MANY_PIECES. Term -1: it lies in the payload at hand.
    """
    prints: NDArray[np.uint8]
    """[entries, 16]; zeros where there is none."""
    printed: NDArray[np.bool_]
    """Whether an entry has a fingerprint."""
    form_ends: Numbers
    """Where the bytes of each entry end in the form."""
    marks: NDArray[np.uint64]
    """Of each entry: equal where its bytes of the form are equal, and hardly ever else."""
    kinds: Numbers
    """Of each entry: the first one, or one, that has the same meaning, dtype and global shape."""
    name_bytes: Numbers
    """Of each entry's name, in UTF-8."""
    plain: NDArray[np.bool_]
    """Of each entry: whether its name is ASCII and after the one before, its box is the whole
    tensor, and its one piece, of at least a byte, begins with it and lies in the payload at hand.
    """
    begins: Numbers
    """Where each entry begins in the body."""
    body: bytes
    """All of it, as it came."""

    def entry_bytes(self, number: int) -> bytes:
        """One entry, as it came."""
        begins = self.begins
        end = int(begins[number + 1]) if number + 1 < len(begins) else len(self.body)
        return self.body[int(begins[number]) : end]

    def tensors(self, first: int, end: int, bytes_max: int) -> bytes:
        """Entries [first, end), which are plain, as MessagePack of an index's tensors, one after
        the other. Of at most `bytes_max` bytes.
        """
        source, out = np.frombuffer(self.body, np.uint8), np.empty(bytes_max, np.uint8)
        rank = np.frombuffer(msgspec.msgpack.encode(self.rank), np.uint8)
        begins = self.begins[first:end]
        count = find_library().write_tensors(
            address_of(source), source.nbytes, address_of(begins), begins.size,
            address_of(rank), rank.nbytes, address_of(out), out.nbytes,
        )  # fmt: skip
        assert count or not begins.size, "plain entries, and room for them"
        return out[:count].tobytes()


def read_table(raw: bytes) -> TableArrays | None:
    """From the body of a table's document; None where it has not the usual form. Raises CkptError
    where there is no native library.
    """
    library, state = find_library(), TableState()
    if not raw:
        return None
    source = np.frombuffer(raw, np.uint8)
    address = address_of(source)
    # The first call counts, and the second fills what there is room for.
    if not library.read_table(address, source.nbytes, ctypes.byref(state)):
        return None
    entries, axes = state.entries, state.axes
    form = np.empty(state.form_bytes + 1, np.uint8)
    begins, form_ends = np.empty(entries, np.int64), np.empty(entries, np.int64)
    axes_each, marks = np.empty(entries, np.uint8), np.empty(entries, np.uint64)
    wholes, offsets, shapes = (np.empty(axes, np.int64) for _ in range(3))
    pieces = np.empty((PIECE_NUMBERS, entries), np.int64)
    prints = np.zeros((entries, PRINT_BYTES), np.uint8)
    printed, plain = np.empty(entries, np.bool_), np.empty(entries, np.bool_)
    kinds, name_bytes = np.empty(entries, np.int64), np.empty(entries, np.int64)
    state.entries_max, state.axes_max, state.form_bytes_max = entries, axes, state.form_bytes
    state.form, state.begins = address_of(form), address_of(begins)
    state.axes_each, state.form_ends = address_of(axes_each), address_of(form_ends)
    state.marks = address_of(marks)
    state.wholes, state.offsets = address_of(wholes), address_of(offsets)
    state.shapes, state.pieces = address_of(shapes), address_of(pieces)
    state.prints, state.printed = address_of(prints), address_of(printed)
    state.kinds, state.name_bytes = address_of(kinds), address_of(name_bytes)
    state.plain = address_of(plain)
    if not library.read_table(address, source.nbytes, ctypes.byref(state)):
        return None
    return TableArrays(
        state.rank, state.world_size, form[:-1].tobytes(), axes_each, wholes, offsets, shapes,
        pieces, prints, printed, form_ends, marks, kinds, name_bytes, plain, begins, raw,
    )  # fmt: skip
