"""Bytes from where they lie to a socket, as they are."""

from __future__ import annotations

import ctypes

from ckpt.native.library import SendingState, find_library


class PlainSending:
    """The rest of one view on its way out."""

    __slots__ = ("_first", "_state")

    def __init__(self, view: memoryview) -> None:
        """`view` is writable, contiguous and not empty; it stays as it is until all is sent.

        Raises ValueError for another buffer: an assert can be switched off, and then C code would
        read where it must not.
        """
        if not view.nbytes or not view.c_contiguous or view.readonly:
            raise ValueError(f"{view.nbytes} bytes cannot be sent from such a buffer")
        #: Of the buffer, which it keeps exported: nobody can free it meanwhile.
        self._first = ctypes.c_char.from_buffer(view)
        self._state = SendingState(ctypes.addressof(self._first), view.nbytes, 0, 0)

    @property
    def address(self) -> int:
        """Of what the library knows of it, as long as I live."""
        return ctypes.addressof(self._state)

    @property
    def sent(self) -> int:
        """How many bytes the socket has taken."""
        return int(self._state.sent)

    def send(self, descriptor: int) -> int:
        """Send what the socket takes, without waiting: `landing.WHOLE`, or a number of `errno`,
        EAGAIN among them.
        """
        outcome: int = find_library().send(descriptor, ctypes.byref(self._state))
        return outcome
