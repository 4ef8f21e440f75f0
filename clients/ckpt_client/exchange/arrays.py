"""An array that somebody else has written, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Protocol

from ckpt.format.dtypes import dtype_of
from ckpt.objects.source import Array


class Incoming(Protocol):
    """One array that somebody else has written."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """Ours."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def mapped(self) -> Array:
        """Its elements: the pages of a file where possible, otherwise memory of its own."""


@dataclass(frozen=True, slots=True)
class HeldArray:
    """An array that can only be read whole, again with each `mapped`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]

    def mapped(self) -> Array:
        return self.load()


def byte_count(array: Incoming) -> int:
    """Of its elements."""
    return prod(array.shape) * dtype_of(array.dtype).itemsize
