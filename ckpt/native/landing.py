"""Bytes from a socket to where they belong, decrypted and summed block by block while they are in
the cache.
"""

from __future__ import annotations

import ctypes
from typing import Final, Protocol

from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.isal import find_isal
from ckpt.native.library import GuardState, LandingState, find_library
from ckpt.native.sums import Buffer, Sums, blocks_for

WHOLE: Final = 0
CLOSED: Final = -1
GUARD_FAILED: Final = -2
"""What `receive` says besides numbers of `errno`: `CKPT_CLOSED` of source/ckpt_native.h."""


class LandingGuard(Protocol):
    """What checks bulks as they come, or decrypts them in place: `Gmac`, `Opener`."""

    state: GuardState


class Landing:
    """One bulk on its way, and what of its tag follows it."""

    __slots__ = ("_blocks", "_first", "_state", "_tail")

    def __init__(
        self, view: memoryview, filled: int, guard: LandingGuard | None = None,
        tail_bytes: int = 0, tail: Buffer = b"", wake_bytes: int = 0,
    ) -> None:  # fmt: skip
        """`view` is writable, contiguous and not empty; its first `filled` bytes are there already,
        and when these are all, `tail` of the `tail_bytes` that follow.
        Its reader is woken when all of the rest has come, or `wake_bytes` of it (0: for any byte).
        `guard` has begun; once all bytes are there it has them too, and nothing else meanwhile.

        Raises ValueError for another buffer: an assert can be switched off, and then C code would
        write where it must not.
        """
        fits = 0 <= filled <= view.nbytes and view.nbytes
        fits = fits and len(tail) <= (tail_bytes if filled == view.nbytes else 0)
        if view.readonly or not view.c_contiguous or not fits:
            raise ValueError(f"{filled} of {view.nbytes} bytes cannot land in such a buffer")
        #: Of the buffer, which it keeps exported: nobody can free it meanwhile.
        self._first = ctypes.c_char.from_buffer(view)
        self._blocks = blocks_for(view.nbytes)
        self._tail = ctypes.create_string_buffer(bytes(tail), tail_bytes) if tail_bytes else None
        self._state = LandingState(
            ctypes.addressof(self._first), view.nbytes, BLOCK_BYTES,
            self._blocks.buffer_info()[0], filled + len(tail), 0,
            None if guard is None else ctypes.pointer(guard.state),
            None if self._tail is None else ctypes.addressof(self._tail), tail_bytes,
            wake_bytes,
        )  # fmt: skip

    @property
    def address(self) -> int:
        """Of what the library knows of it, as long as I live."""
        return ctypes.addressof(self._state)

    @property
    def woken_by(self) -> int:
        """How many bytes the socket was asked to wait for last; 0: nobody asked."""
        return int(self._state.wake)

    @property
    def filled(self) -> int:
        """How many bytes are there, those of the tail among them."""
        count: int = self._state.filled
        return count

    @property
    def rest(self) -> int:
        """How many are still to come."""
        return int(self._state.length + self._state.tail_length) - self.filled

    @property
    def tail(self) -> bytes:
        """What followed the bulk, once `receive` said WHOLE."""
        return b"" if self._tail is None else self._tail.raw

    def receive(self, descriptor: int) -> int:
        """Take what the socket has of it, without waiting: WHOLE, CLOSED, GUARD_FAILED (which
        says nothing about the bytes: libcrypto refused), or a number of `errno`, EAGAIN among them.
        """
        outcome: int = find_library().land(
            find_isal().kernels, descriptor, ctypes.byref(self._state)
        )
        return outcome

    def sums(self) -> Sums:
        """Of all bytes, once `receive` said WHOLE."""
        assert not self.rest
        joined: int = find_library().join_blocks(
            self._blocks.buffer_info()[0], self._state.length, BLOCK_BYTES
        )
        return Sums(joined, self._blocks)
