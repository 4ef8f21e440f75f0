"""How do the arrays of another program's files get into a save's memory? Read straight into it.

None of them is held twice, and no file is mapped.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import closing
from typing import cast

import numpy as np

from ckpt.format.dtypes import dtype_of
from ckpt.objects.source import Array
from ckpt_client.accelerator import Accelerator
from ckpt_client.exchange.arrays import Incoming
from ckpt_client.save.copying import NUMPY, ArrayPlace, Bytes, copy_bytes


class IncomingCopier:
    """A Copier of arrays that somebody else has written."""

    kind: Hashable = "incoming"
    accelerators: Sequence[Accelerator] = ()

    def places(self, memory: Bytes, wanted: Iterable[ArrayPlace]) -> list[object]:
        return NUMPY.places(memory, wanted)

    def prepare(self, places: Sequence[object], arrays: Sequence[object]) -> object:
        return places

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        places = cast(Sequence[Array], prepared)
        for place, array in zip(places, cast(Sequence[Incoming], arrays), strict=True):
            _read_whole(array, place)

    def copy_part(self, array: object, start: int, target: Bytes) -> None:
        found = cast(Incoming, array)
        whole = np.empty(found.shape, dtype_of(found.dtype))
        _read_whole(found, whole)
        copy_bytes(whole, start, target)

    def finish(self) -> None:
        """Nothing is queued."""


def _read_whole(array: Incoming, memory: Array) -> None:
    with closing(array.opened()) as elements:
        elements.read((0,) * memory.ndim, memory)
