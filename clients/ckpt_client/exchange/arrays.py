"""An array that somebody else has written, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from ckpt.format.dtypes import dtype_of
from ckpt.objects.source import Array


class Elements(Protocol):
    """What is in one array, until it is closed."""

    def read(self, offset: tuple[int, ...], memory: Array) -> None:
        """Fill `memory` (C-contiguous, of the array's dtype) with the elements from `offset` on.
        Raises ChangedMeanwhile when somebody has written the array since its header was read.
        """

    def close(self) -> None:
        """Idempotent."""


class Incoming(Protocol):
    """One array that somebody else has written."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """Ours."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def opened(self) -> Elements:
        """Its elements: read from a file where possible, otherwise held in memory."""


@dataclass(frozen=True, slots=True)
class HeldArray:
    """An array that can only be read whole, again each time that it is opened."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    """Raises what `Elements.read` raises."""

    def opened(self) -> Elements:
        return HeldElements(self.load())


class HeldElements:
    """All elements of one array, in memory."""

    def __init__(self, whole: Array) -> None:
        self._whole = whole

    def read(self, offset: tuple[int, ...], memory: Array) -> None:
        memory[...] = self._whole[box(offset, memory.shape)]

    def close(self) -> None:
        self._whole = np.empty(0, self._whole.dtype)


def box(offset: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The elements of such a part, for numpy."""
    return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


def byte_count(array: Incoming) -> int:
    """Of its elements."""
    return prod(array.shape) * dtype_of(array.dtype).itemsize
