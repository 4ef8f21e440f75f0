"""Where a checkpoint comes from when it is written to a store or exported: the tier, a store, a
file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexTensor
from ckpt.format.tree import Node
from ckpt.objects.documents import Header
from ckpt.objects.sinks.sink import at_once

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Wish:
    """Fill `memory` (C-contiguous, of the tensor's dtype) with the items at `offset`."""

    tensor: IndexTensor
    rank: Rank | None
    """Whose own tensor is meant; None for one of all ranks."""
    offset: tuple[int, ...]
    memory: Array
    shared: bool = False
    """Other ranks of a load wish for the same."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose elements something holds."""

    tensor: IndexTensor
    rank: Rank | None
    """As in a Wish."""

    def wish_whole(self) -> Wish:
        """Wish for all of the elements, in new memory."""
        memory = np.empty(self.tensor.global_shape, dtype_of(self.tensor.dtype))
        return Wish(self.tensor, self.rank, (0,) * memory.ndim, memory)


class Source(Protocol):
    """One whole checkpoint, read in boxes. `read` is called from one thread at a time."""

    @property
    def header(self) -> Header:
        """Whose it is."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """What its save was given to say of the step."""

    def tensors(self) -> Sequence[IndexTensor]:
        """All of them, in the same order each time. Where their bytes lie is the source's own
        business: `locations` of boxes may be empty."""

    def trees(self) -> Mapping[Rank, Node]:
        """Each rank's tree."""

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        """Fill all of them; verified. Raises CkptError.

        go_on: called now and then where this waits for somebody; what it raises ends the read.
        """

    def close(self) -> None:
        """Close it. Idempotent."""
