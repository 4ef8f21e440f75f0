"""What another program's files hold, as `ckpt import` reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ckpt.format.dtypes import dtype_of
from ckpt.objects.source import Array
from ckpt_client.exchange.arrays import Elements, Incoming


def whole(array: Incoming) -> Array:
    """All of its elements."""
    memory = np.empty(array.shape, dtype_of(array.dtype))
    with closing(array.opened()) as elements:
        elements.read((0,) * memory.ndim, memory)
    return memory


@dataclass
class Harm:
    """Something that happens once, ahead of the n-th time that one of some arrays is opened."""

    happen: Callable[[], object]
    countdown: int

    def around(self, arrays: Sequence[Incoming]) -> list[Incoming]:
        """The same arrays, watched."""
        return [_Watched(array, self) for array in arrays]

    def count(self) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            self.happen()


@dataclass
class _Watched:
    """One array, whose opening counts."""

    array: Incoming
    harm: Harm

    @property
    def name(self) -> str:
        return self.array.name

    @property
    def dtype(self) -> str:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def opened(self) -> Elements:
        self.harm.count()
        return self.array.opened()
