"""What is to be sent over one non-blocking socket: a queue of views, gathered by `sendmsg`.

Nothing is copied: a view must stay as it is until its `sent` is called, which happens exactly once,
in order, also when the connection dies first. A descriptor goes along with the first byte of its
own view and of no other.
"""

from __future__ import annotations

import array
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ckpt.base.units import MiB

SEND_VIEWS_MAX: Final = 32
SEND_BYTES_MAX: Final = 2 * MiB
"""Offered to one sendmsg."""

Sent = Callable[[], None]
_Ancillary = tuple[int, int, "array.array[int]"]


@dataclass(slots=True)
class _Outgoing:
    view: memoryview
    sent: Sent | None
    descriptor: int = -1


class SendQueue:
    """I belong to one thread; only `push` touches the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.queued_bytes = 0
        self.sent_bytes = 0
        self._sock = sock
        self._outgoing: deque[_Outgoing] = deque()
        self._pushing = self._closed = False

    @property
    def is_idle(self) -> bool:
        """Nothing is queued, and nobody is at it."""
        return not self._outgoing and not self._pushing

    def put(self, view: memoryview, sent: Sent | None = None, descriptor: int = -1) -> None:
        """Queue a view; the descriptor is mine now."""
        self._outgoing.append(_Outgoing(view, sent, descriptor))
        self.queued_bytes += len(view)

    def push(self) -> None:
        """Send what the socket takes now. Raises OSError.

        Never entered twice: a `sent` that sends again only lengthens the queue.
        """
        self._pushing = True
        try:
            self._push()
        finally:
            self._pushing = False

    def _push(self) -> None:
        while self._outgoing:
            views, rights = self._offer()
            offered = sum(map(len, views))
            try:
                count = self._sock.sendmsg(views, rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            if rights:
                self._drop_descriptor(self._outgoing[0])
            self.sent_bytes += count
            self.queued_bytes -= count
            self._take_sent(count)
            if count < offered or self._closed:
                return

    def _offer(self) -> tuple[list[memoryview], list[_Ancillary]]:
        views: list[memoryview] = []
        offered = 0
        for outgoing in itertools.islice(self._outgoing, SEND_VIEWS_MAX):
            if outgoing.descriptor >= 0:
                if not views:
                    rights = array.array("i", [outgoing.descriptor])
                    return [outgoing.view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                break
            views.append(outgoing.view)
            offered += len(outgoing.view)
            if offered >= SEND_BYTES_MAX:
                break
        return views, []

    def _take_sent(self, count: int) -> None:
        """Forget `count` bytes from the front of the queue, and say so to their owners."""
        done: list[Sent] = []
        while self._outgoing and count >= len(self._outgoing[0].view):
            outgoing = self._outgoing.popleft()
            count -= len(outgoing.view)
            if outgoing.sent is not None:
                done.append(outgoing.sent)
        if count:
            self._outgoing[0].view = self._outgoing[0].view[count:]
        for sent in done:
            sent()

    def close(self) -> None:
        """Forget everything; every `sent` is called."""
        self._closed = True
        outgoing, self._outgoing = self._outgoing, deque()
        self.queued_bytes = 0
        for each in outgoing:
            self._drop_descriptor(each)
            if each.sent is not None:
                each.sent()

    def _drop_descriptor(self, outgoing: _Outgoing) -> None:
        if outgoing.descriptor >= 0:
            os.close(outgoing.descriptor)
            outgoing.descriptor = -1
