"""How do the bytes of a state get into a half of the arena? With one call for each leaf, or fewer.

That copy is the stall, unless it is done beside the training. Where each leaf goes, as an array of
its own type over the half's memory, is made once for a layout and kept with the half: the next save
only copies.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from typing import Final, Protocol, cast

import numpy as np

from ckpt.aio.collector import collector_paused
from ckpt.format.dtypes import dtype_of
from ckpt_client.accelerator import Accelerator
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.finite import check_finite
from ckpt_client.save.packing import TAIL_BYTES, PackingPlan, Picker, Span, StateLayout, picker

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
ArrayPlace = tuple[int, str, tuple[int, ...]]
"""(offset in the half, dtype, shape) of an array that lies there in one piece."""


class Copier(Protocol):
    """How one save's arrays, the elements of `PackingPlan.arrays`, get into a half."""

    @property
    def kind(self) -> Hashable:
        """Copiers of one kind, for one layout and half, can use what one of them has prepared."""

    @property
    def accelerators(self) -> Sequence[Accelerator]:
        """The accelerators on which arrays lie; none for arrays in host memory."""

    def places(self, memory: Bytes, wanted: Iterable[ArrayPlace]) -> list[object]:
        """Arrays over parts of the memory."""

    def prepare(self, places: Sequence[object], arrays: Sequence[object]) -> object:
        """What `copy` needs to copy such arrays into these places, of the same types and shapes."""

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        """Copy each array into its place, or queue that; any strides."""

    def copy_part(self, array: object, start: int, target: Bytes) -> None:
        """The same with bytes [start, start + len(target)) of the array's elements in C order."""

    def finish(self) -> None:
        """Wait until all that is queued is copied."""


class NumpyCopier:
    """Of numpy arrays."""

    kind: Hashable = "numpy"
    accelerators: Sequence[Accelerator] = ()

    def places(self, memory: Bytes, wanted: Iterable[ArrayPlace]) -> list[object]:
        # To cut, view and reshape the memory instead costs twice as much.
        return [np.ndarray(shape, dtype_of(dtype), memory, at) for at, dtype, shape in wanted]

    def prepare(self, places: Sequence[object], arrays: Sequence[object]) -> object:
        return places

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        # The loop is C's; types and shapes are the same, so that this is `np.copyto`, cheaper.
        deque(map(_SET, cast(Sequence[AnyArray], prepared), repeat(...), arrays), maxlen=0)

    def copy_part(self, array: object, start: int, target: Bytes) -> None:
        copy_bytes(cast(AnyArray, array), start, target)

    def finish(self) -> None:
        """Nothing is queued."""


_SET: Final = np.ndarray.__setitem__
NUMPY: Final = NumpyCopier()


class HalfWriter:
    """I write packings into one half, one at a time; another thread may make me ready."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        """Writable."""
        self._bytes: Bytes = np.frombuffer(memory, np.uint8)
        #: Made for the last layout and kind of copier, since most saves have the same: what the
        #: copier has prepared for all whole leaves, and what takes their arrays.
        self._last: tuple[StateLayout, Hashable, tuple[object, Picker]] | None = None
        #: Those that copy into this memory by themselves.
        self._locked: list[Accelerator] = []
        #: Whether the memory is given up: nobody locks it any more.
        self._released = False
        #: Guards these three.
        self._readying = threading.Lock()

    def make_ready(self, packing: PackingPlan, copier: Copier = NUMPY) -> None:
        """What `write` does once for such packings, ahead of it. Raises Aborted."""
        with self._readying:
            self._ready(packing, copier)

    def declare(self, layout: StateLayout) -> bool:
        """Write the declaration ahead of `write`, into a half of at least `layout.half_bytes`.
        Whether it may be new to those who read it.
        """
        self.memory[layout.declaration_offset : layout.half_bytes] = layout.declaration
        return self._last is None or self._last[0] is not layout

    def write(self, packing: PackingPlan, copier: Copier = NUMPY) -> None:
        """Copy everything; the half has at least `layout.half_bytes`. It is all there once
        `copier.finish` returns.
        """
        layout = packing.layout
        assert len(self.memory) >= layout.half_bytes
        with self._readying:
            prepared, whole = self._ready(packing, copier)
        copier.copy(prepared, whole(packing.arrays))
        for span in layout.parts:
            target = self._bytes[span.offset : span.offset + span.length]
            copier.copy_part(packing.arrays[span.leaf], span.start, target)
        document = packing.document
        self.memory[: len(document)] = document
        self._bytes[len(document) : layout.document_room] = 0
        self._bytes[layout.payload_bytes : layout.payload_bytes + TAIL_BYTES] = 0
        self.memory[layout.declaration_offset : layout.half_bytes] = layout.declaration

    def check_finite(self, packing: PackingPlan) -> None:
        """Look at the leaves that are to be checked here, where all is copied. Raises Refused
        naming the first that holds NaN or infinity.
        """
        for leaf in packing.checked:
            check_finite(packing.layout.names[leaf], self._copied(packing.layout, leaf))

    def release(self) -> None:
        """No accelerator copies into the half any more; call it before the memory is freed."""
        with self._readying:
            self._released = True
            while self._locked:
                self._locked.pop().unlock_pages(self.memory)

    def _ready(self, packing: PackingPlan, copier: Copier) -> tuple[object, Picker]:
        for accelerator in copier.accelerators:
            known = accelerator in self._locked or self._released
            if not known and accelerator.lock_pages(self.memory):
                self._locked.append(accelerator)
        layout = packing.layout
        if self._last is None or self._last[0] is not layout or self._last[1] != copier.kind:
            whole = picker(tuple(layout.whole))
            with collector_paused():
                places = self._places(layout, layout.whole.values(), copier)
                prepared = copier.prepare(places, whole(packing.arrays))
            self._last = layout, copier.kind, (prepared, whole)
        return self._last[2]

    def _copied(self, layout: StateLayout, leaf: int) -> AnyArray:
        """A leaf as it lies here; put together where it lies in parts."""
        if leaf in layout.whole:
            (place,) = self._places(layout, [layout.whole[leaf]], NUMPY)
            return cast(AnyArray, place)
        array = np.empty(layout.shapes[leaf], dtype_of(layout.dtypes[leaf]))
        flat = array.reshape(-1).view(np.uint8)
        for span in layout.parts:
            if span.leaf == leaf:
                here = self._bytes[span.offset : span.offset + span.length]
                flat[span.start : span.start + span.length] = here
        return array

    def _places(
        self, layout: StateLayout, spans: Iterable[Span], copier: Copier
    ) -> Sequence[object]:
        dtypes, shapes = layout.dtypes, layout.shapes
        wanted = [(span.offset, dtypes[span.leaf], shapes[span.leaf]) for span in spans]
        return copier.places(self._bytes, wanted)


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
