"""Bytes from where they lie to a socket, encrypted slice by slice while a slice is in the cache."""

from __future__ import annotations

import ctypes

from ckpt.native.library import GuardState, SealingState, find_library


class Sealing:
    """One bulk on its way out."""

    __slots__ = ("_first", "_kept", "_slice", "_state")

    def __init__(self, view: memoryview, guard: GuardState, place: memoryview) -> None:
        """`view` is contiguous, not empty, and stays as it is until all of it is sent; what may not
        be written to is copied: such bulks are documents. `guard` encrypts and has begun. `place`
        holds a slice, and is mine until then.

        Raises ValueError for another buffer: an assert can be switched off, and then C code would
        read or write where it must not.
        """
        if not view.nbytes or not view.c_contiguous or not place.nbytes or place.readonly:
            raise ValueError(f"{view.nbytes} bytes cannot be sealed by {place.nbytes}")
        memory = memoryview(bytearray(view)) if view.readonly else view
        #: Of both buffers, which they keep exported: nobody can free them meanwhile.
        self._first = ctypes.c_char.from_buffer(memory)
        self._slice = ctypes.c_char.from_buffer(place)
        self._kept = guard
        self._state = SealingState(
            ctypes.addressof(self._first), memory.nbytes, 0,
            ctypes.addressof(self._slice), place.nbytes, 0, 0, ctypes.pointer(guard), 0,
        )  # fmt: skip

    @property
    def address(self) -> int:
        """Of what the library knows of it, as long as I live."""
        return ctypes.addressof(self._state)

    @property
    def sent(self) -> int:
        """How many bytes the socket has taken."""
        state = self._state
        count: int = state.sealed - state.filled + state.sent
        return count

    def send(self, descriptor: int) -> int:
        """Encrypt and send what the socket takes, without waiting: `landing.WHOLE`, GUARD_FAILED,
        or a number of `errno`, EAGAIN among them.
        """
        outcome: int = find_library().seal(descriptor, ctypes.byref(self._state))
        return outcome
