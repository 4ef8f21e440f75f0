"""Bytes from a socket to where they belong, summed block by block while they are in the cache."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.arrays import address_of
from ckpt.native.isal import find_isal
from ckpt.native.library import LandingState, find_library
from ckpt.native.sums import Sums, block_count

WHOLE: Final = 0
CLOSED: Final = -1
"""What `receive` says besides numbers of `errno`: `CKPT_CLOSED` of source/ckpt_native.h."""


class Landing:
    """One bulk on its way. I keep its memory exported until I am dropped."""

    __slots__ = ("_blocks", "_flat", "_state")

    def __init__(self, view: memoryview, filled: int) -> None:
        """`view` is writable and contiguous; its first `filled` bytes are there already.

        Raises ValueError for another buffer: an assert can be switched off, and then C code would
        write where it must not.
        """
        if view.readonly or not view.c_contiguous or not 0 <= filled <= view.nbytes:
            raise ValueError(f"{filled} of {view.nbytes} bytes cannot land in such a buffer")
        self._flat = np.frombuffer(view, np.uint8)
        self._blocks = np.empty(block_count(view.nbytes), np.uint32)
        self._state = LandingState(
            address_of(self._flat), view.nbytes, BLOCK_BYTES, address_of(self._blocks), filled, 0
        )

    @property
    def filled(self) -> int:
        """How many bytes are there."""
        count: int = self._state.filled
        return count

    @property
    def rest(self) -> int:
        """How many are still to come."""
        return int(self._state.length) - self.filled

    def receive(self, descriptor: int) -> int:
        """Take what the socket has of it, without waiting: WHOLE, CLOSED, or a number of `errno`,
        EAGAIN among them.
        """
        outcome: int = find_library().land(
            find_isal().kernels, descriptor, ctypes.byref(self._state)
        )
        return outcome

    def sums(self) -> Sums:
        """Of all bytes, once `receive` said WHOLE."""
        assert not self.rest
        joined: int = find_library().join_blocks(
            address_of(self._blocks), self._flat.nbytes, BLOCK_BYTES
        )
        return Sums(joined, self._blocks)
