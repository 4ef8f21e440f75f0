"""The bulk that lands on one socket, and what that socket is woken for."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from ckpt.aio.net.sockets import connection_failed, peer_closed
from ckpt.base.units import MiB
from ckpt.native.landing import CLOSED, GUARD_FAILED, WHOLE, Landing, LandingGuard
from ckpt.native.polling import BulkPoll

WAKE_BYTES: Final = 1 * MiB
"""Of a bulk over TCP that must lie in the kernel before its reader is woken: to be woken for each
segment costs more than the segment's copy."""


class IncomingBulk:
    """One bulk after the other: `begin`, `receive` until it is whole, `end`."""

    def __init__(self, sock: socket.socket, bulks: BulkPoll | None) -> None:
        """`bulks`: of what watches the socket, where bulks land on while it waits."""
        self.landing: Landing | None = None
        """Of the bulk that lands now."""
        self._sock = sock
        self._bulks = bulks
        #: Unix sockets wake for any byte, whatever is asked.
        self._wake_max = 0 if sock.family == socket.AF_UNIX else WAKE_BYTES
        #: What the socket was asked to wait for; 0: for any byte.
        self._wake_bytes = 0
        #: Bytes of the landing that `receive` has returned, or that came with the message.
        self._counted = 0

    @property
    def uncounted_bytes(self) -> int:
        """What has landed since the last `receive`."""
        return 0 if self.landing is None else self.landing.filled - self._counted

    @property
    def is_whole(self) -> bool:
        """Whether all of the bulk that lands now is there."""
        return self.landing is not None and not self.landing.rest

    def begin(
        self, view: memoryview, filled: int, guard: LandingGuard | None, tail_bytes: int,
        tail: bytes,
    ) -> None:  # fmt: skip
        """The first `filled` bytes are there, and perhaps some of the tail: see `Landing`."""
        self.landing = Landing(view, filled, guard, tail_bytes, tail, self._wake_max)
        self._counted = self.landing.filled
        # All of the rest may be there already: it waited for memory.
        if self._wake_bytes > self.landing.rest:
            self._wake_at(self.landing.rest)
        if self._bulks is not None:
            self._bulks.land(self._sock.fileno(), self.landing)

    def receive(self) -> int:
        """Take what the socket has of it: how many bytes came since the last call, those that
        landed meanwhile among them. Raises Unavailable when the connection is over.
        """
        landing = self.landing
        assert landing is not None
        outcome = landing.receive(self._sock.fileno())
        count, self._counted = landing.filled - self._counted, landing.filled
        if outcome in (WHOLE, errno.EAGAIN):
            return count
        assert outcome != GUARD_FAILED, "a cipher's context takes whatever comes"
        if outcome == CLOSED:
            raise peer_closed()
        raise connection_failed(OSError(outcome, os.strerror(outcome)))

    def end(self) -> Landing | None:
        """Its landing, when it did not come whole with its message; what comes now is no part of
        it. Idempotent.
        """
        landing, self.landing = self.landing, None
        if landing is not None:
            # One that was whole at once asked for nothing: what the one before it asked for stands.
            self._wake_bytes = landing.woken_by or self._wake_bytes
            if self._bulks is not None:
                self._bulks.landed(self._sock.fileno())
        return landing

    def wake_for_frames(self) -> None:
        """When no bulk lands, the next byte wakes."""
        if self._wake_bytes and self.landing is None:
            self._wake_at(1)
            self._wake_bytes = 0

    def _wake_at(self, count: int) -> None:
        self._wake_bytes = count
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
