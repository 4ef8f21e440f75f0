"""Blocks of a column's file to where they belong, by a thread that a sick disk may hold up."""

from __future__ import annotations

import ctypes

from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.arrays import Crcs, address_of
from ckpt.native.isal import find_isal
from ckpt.native.library import FetchState, find_library


class Fetch:
    """Whole blocks on their way from a file into memory. `fetch` may be held up for as long as the
    disk likes; once `cancel` has returned it writes nothing to that memory any more.
    """

    __slots__ = ("_crcs", "_first", "_slice", "_state")

    def __init__(
        self, descriptor: int, offset: int, crcs: Crcs, to: memoryview, slice: memoryview
    ) -> None:
        """`to` is writable, contiguous and not empty; `crcs` is contiguous, with one of each of its
        blocks. Bytes come through `slice` first, whole blocks of it, which nobody else uses while
        `fetch` runs; with O_DIRECT it is aligned.

        Raises ValueError for other buffers: an assert can be switched off, and then C code would
        write where it must not.
        """
        blocks = -(-to.nbytes // BLOCK_BYTES)
        if to.readonly or not (to.nbytes and to.c_contiguous and crcs.flags.c_contiguous):
            raise ValueError(f"{to.nbytes} bytes cannot come into such a buffer")
        if len(crcs) != blocks or slice.readonly or not slice.c_contiguous:
            raise ValueError(f"{len(crcs)} checksums of {blocks} blocks, or no slice")
        if not slice.nbytes or slice.nbytes % BLOCK_BYTES:
            raise ValueError(f"a slice of {slice.nbytes} bytes")
        self._crcs, self._slice = crcs, ctypes.c_char.from_buffer(slice)
        #: Of the buffer, which it keeps exported: nobody can free it meanwhile.
        self._first = ctypes.c_char.from_buffer(to)
        self._state = FetchState(
            descriptor, offset, to.nbytes, BLOCK_BYTES, address_of(crcs),
            ctypes.addressof(self._first), ctypes.addressof(self._slice), slice.nbytes, 0, 0,
        )  # fmt: skip

    def fetch(self) -> int:
        """`landing.WHOLE` when all is there and right; CLOSED where the file ends before,
        GUARD_FAILED where a block is not what it must be, or a number of `errno`, of which
        ECANCELED is `cancel`. Once.
        """
        outcome: int = find_library().fetch(find_isal().kernels, ctypes.byref(self._state))
        return outcome

    def cancel(self) -> None:
        """From any thread; idempotent."""
        find_library().let_go(ctypes.byref(self._state))
