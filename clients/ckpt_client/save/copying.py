"""How do the bytes of a state get into a half of the arena? With one call for each leaf, or fewer.

That copy is the stall. Where each leaf goes, as an array of its own type over the half's memory, is
made once for a layout and kept with the half: the next save only copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Final, Protocol, cast

import numpy as np

from ckpt.format.dtypes import dtype_of
from ckpt_client.save.packing import TAIL_BYTES, PackingPlan, Picker, Span, StateLayout, picker
from ckpt_client.save.state import AnyArray

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Copier(Protocol):
    """What the elements of `PackingPlan.arrays` are, and how they are copied."""

    def place(self, memory: Bytes, dtype: str, shape: tuple[int, ...]) -> object:
        """An array over these bytes, of the element type and shape."""

    def copy(self, places: Sequence[object], arrays: Sequence[object]) -> None:
        """Each array into its place, of the same type and shape; any strides."""

    def array(self, array: object) -> AnyArray:
        """The same memory as a numpy array."""


class NumpyCopier:
    """Of numpy arrays."""

    def place(self, memory: Bytes, dtype: str, shape: tuple[int, ...]) -> object:
        return memory.view(dtype_of(dtype)).reshape(shape)

    def copy(self, places: Sequence[object], arrays: Sequence[object]) -> None:
        # The loop is C's; types and shapes are the same, so that this is `np.copyto`, cheaper.
        deque(map(_SET, cast(Sequence[AnyArray], places), repeat(...), arrays), maxlen=0)

    def array(self, array: object) -> AnyArray:
        return cast(AnyArray, array)


_SET: Final = np.ndarray.__setitem__
NUMPY: Final = NumpyCopier()


class HalfWriter:
    """I write packings into one half, one at a time."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        """Writable."""
        self._bytes: Bytes = np.frombuffer(memory, np.uint8)
        #: Made for the last layout and copier, since most saves have the same: the places of all
        #: whole leaves, in the order of their spans, and what takes their arrays.
        self._last: tuple[StateLayout, Copier, tuple[list[object], Picker]] | None = None

    def write(self, packing: PackingPlan, copier: Copier = NUMPY) -> None:
        """Copy everything; the half has at least `layout.half_bytes`."""
        layout = packing.layout
        assert len(self.memory) >= layout.half_bytes
        document = packing.document
        self.memory[: len(document)] = document
        self._bytes[len(document) : layout.document_room] = 0
        self._bytes[layout.payload_bytes : layout.payload_bytes + TAIL_BYTES] = 0
        places, whole = self._places(layout, copier)
        copier.copy(places, whole(packing.arrays))
        for span in layout.parts:
            array = copier.array(packing.arrays[span.leaf])
            copy_bytes(array, span.start, self._bytes[span.offset : span.offset + span.length])
        self.memory[layout.declaration_offset : layout.half_bytes] = layout.declaration

    def _places(self, layout: StateLayout, copier: Copier) -> tuple[list[object], Picker]:
        if self._last is None or self._last[0] is not layout or self._last[1] is not copier:
            places = [self._place(layout, span, copier) for span in layout.whole.values()]
            self._last = layout, copier, (places, picker(tuple(layout.whole)))
        return self._last[2]

    def _place(self, layout: StateLayout, span: Span, copier: Copier) -> object:
        memory = self._bytes[span.offset : span.offset + span.length]
        return copier.place(memory, layout.dtypes[span.leaf], layout.shapes[span.leaf])


def copy_bytes(array: AnyArray, start: int, target: Bytes) -> None:
    """Bytes [start, start + len(target)) of the array's elements in C order into `target`.

    Without a temporary of more than one element: strided arrays are copied by numpy's own loops.
    """
    if not target.size:
        return
    if array.flags.c_contiguous:
        target[:] = array.reshape(-1).view(np.uint8)[start : start + target.size]
    elif start == 0 and target.size == array.nbytes:
        np.copyto(target.view(array.dtype).reshape(array.shape), array, casting="no")
    else:
        _copy_part(array, start, target)


def _copy_part(array: AnyArray, start: int, target: Bytes) -> None:
    """Row by row along the first axis, so that all but the two cut rows are copied whole."""
    if array.ndim == 0:
        target[:] = np.frombuffer(array.tobytes(), np.uint8)[start : start + target.size]
        return
    row_bytes = array.nbytes // array.shape[0]
    done = 0
    while done < target.size:
        row, skipped = divmod(start + done, row_bytes)
        if skipped == 0 and target.size - done >= row_bytes:
            rows = (target.size - done) // row_bytes
            copy_bytes(array[row : row + rows], 0, target[done : done + rows * row_bytes])
            done += rows * row_bytes
        else:
            count = min(row_bytes - skipped, target.size - done)
            copy_bytes(array[row, ...], skipped, target[done : done + count])
            done += count
