"""What is to be sent over one non-blocking socket: a queue of views, gathered by `sendmsg`.

Nothing is copied: a view must stay as it is until its `sent` is called, which happens exactly once,
in order, also when the connection dies first. A descriptor goes along with the first byte of its
own view and of no other.

A view that is to be sealed is encrypted slice by slice, as the socket takes it (`Sealing`), into
one buffer of a slice, which lives while such a view is queued: what is sent comes from the
second-level cache, and a connection has SLICE_BYTES more at most, whatever waits. Its tag goes
after it.

The first in the queue, if it is large, leaves between two calls of `push` as well, where what
watches the socket does that (`BulkPoll`): `push` is called when all of it has left, or it is stuck.
"""

from __future__ import annotations

import array
import errno
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ckpt.base.errors import CkptError
from ckpt.base.units import KiB, MiB
from ckpt.native.gcm import TAG_BYTES, Sealer
from ckpt.native.landing import GUARD_FAILED, WHOLE
from ckpt.native.plain_sending import PlainSending
from ckpt.native.polling import BulkPoll
from ckpt.native.sealing import Sealing

SEND_VIEWS_MAX: Final = 32
SEND_BYTES_MAX: Final = 2 * MiB
"""Most bytes that are offered to one sendmsg."""
SLICE_BYTES: Final = 256 * KiB
"""Bytes that are encrypted at once."""
ALONE_BYTES: Final = 128 * KiB
"""Less of a view than this leaves in `push` alone."""

Sent = Callable[[], None]
_Ancillary = tuple[int, int, "array.array[int]"]
_EMPTY: Final = memoryview(b"")
_FLAGS: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_MORE: Final = int(socket.MSG_MORE)


class _Sealed(NamedTuple):
    """What is to be encrypted on its way."""

    view: memoryview
    sealer: Sealer
    number: int
    """Of its frame."""


@dataclass(slots=True)
class _Outgoing:
    view: memoryview
    """What the socket gets next."""
    sent: Sent | None
    descriptor: int = -1
    sealed: _Sealed | None = None
    """Goes before `view`, which becomes its tag."""


class SendQueue:
    """I belong to one thread."""

    def __init__(self, sock: socket.socket, bulks: BulkPoll | None = None) -> None:
        """`bulks`: of what watches the socket."""
        self.queued_bytes = 0
        """What the socket has not taken yet, as of the last `push`: not 0 before each `sent` was
        called."""
        self.sent_bytes = 0
        """What the socket took, as of the last `push`."""
        self._bulks = bulks
        #: Also when the socket is closed.
        self._number = sock.fileno()
        self._sock = sock
        self._outgoing: deque[_Outgoing] = deque()
        #: Of a slice, for the sealed ones in the queue; None while there are none.
        self._slice: memoryview | None = None
        #: Of the first in the queue, once a part of it may have left.
        self._sealing: Sealing | None = None
        #: Of the first in the queue, while it leaves without `push`.
        self._sending: PlainSending | None = None
        #: What of `_sealing` is in the counts.
        self._counted = 0
        self._pushing = self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, and nobody is sending."""
        return not self._outgoing and not self._pushing

    def put(self, view: memoryview, sent: Sent | None = None, descriptor: int = -1) -> None:
        """Queue a view; the descriptor is mine now."""
        self._outgoing.append(_Outgoing(view, sent, descriptor))
        self.queued_bytes += len(view)

    def put_sealed(self, view: memoryview, sent: Sent | None, sealer: Sealer, number: int) -> None:
        """Queue a view that is not empty, as the bulk of this frame of the sealer's; nobody else
        uses that meanwhile.
        """
        assert len(view)
        self._outgoing.append(_Outgoing(_EMPTY, sent, sealed=_Sealed(view, sealer, number)))
        self.queued_bytes += len(view) + TAG_BYTES

    def push(self) -> None:
        """Send what the socket takes now. Raises OSError, and CkptError where libcrypto refuses.

        Never entered twice: a `sent` that sends again only lengthens the queue.
        """
        self._pushing = True
        try:
            self._take_back()
            self._push()
            self._hand_over()
        finally:
            self._pushing = False

    def _hand_over(self) -> None:
        """What is stuck leaves without me, when the socket takes more."""
        if self._bulks is None or not self._outgoing or self._closed:
            return
        view = self._outgoing[0].view
        if self._sealing is not None:
            self._bulks.send(self._number, self._sealing)
        elif len(view) >= ALONE_BYTES and not view.readonly:
            self._sending = PlainSending(view)
            self._bulks.send(self._number, self._sending)

    def _take_back(self) -> None:
        """What was handed over is mine; count what has left."""
        if self._bulks is not None:
            self._bulks.sent(self._number)
        sending, self._sending = self._sending, None
        if sending is not None:
            self._count(sending.sent)
            self._take_sent(sending.sent)

    def _count(self, sent: int) -> None:
        self.sent_bytes += sent
        self.queued_bytes -= sent

    def _push(self) -> None:
        while self._outgoing:
            first = self._outgoing[0]
            if first.sealed is not None:
                if not self._seal(first, first.sealed):
                    return
                continue
            views, rights = self._offer()
            offered = sum(map(len, views))
            sealed_next = len(views) < len(self._outgoing) and self._outgoing[len(views)].sealed
            flags = _FLAGS | (_MORE if sealed_next else 0)
            try:
                count = self._sock.sendmsg(views, rights, flags)
            except (BlockingIOError, InterruptedError):
                return
            if rights:
                self._drop_descriptor(self._outgoing[0])
            self._count(count)
            self._take_sent(count)
            if count < offered or self._closed:
                return

    def _seal(self, outgoing: _Outgoing, sealed: _Sealed) -> bool:
        """Encrypt and send it; False when the socket takes no more."""
        sealing = self._sealing
        if sealing is None:
            if self._slice is None:
                self._slice = memoryview(bytearray(SLICE_BYTES))
            sealed.sealer.begin(sealed.number)
            sealing = self._sealing = Sealing(sealed.view, sealed.sealer.state, self._slice)
            self._counted = 0
        outcome = sealing.send(self._sock.fileno())
        self._count(sealing.sent - self._counted)
        self._counted = sealing.sent
        if outcome == errno.EAGAIN:
            return False
        if outcome == GUARD_FAILED:
            raise CkptError("libcrypto refuses to encrypt")
        if outcome != WHOLE:
            raise OSError(outcome, os.strerror(outcome))
        outgoing.view, outgoing.sealed = memoryview(sealed.sealer.end()), None
        self._sealing = None
        if all(each.sealed is None for each in self._outgoing):
            self._slice = None
        return True

    def _offer(self) -> tuple[list[memoryview], list[_Ancillary]]:
        """Views from the front of the queue, up to what is sent in another way."""
        views: list[memoryview] = []
        offered = 0
        for outgoing in itertools.islice(self._outgoing, SEND_VIEWS_MAX):
            if outgoing.descriptor >= 0:
                if not views:
                    rights = array.array("i", [outgoing.descriptor])
                    return [outgoing.view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                break
            if outgoing.sealed is not None:
                break
            views.append(outgoing.view)
            offered += len(outgoing.view)
            if offered >= SEND_BYTES_MAX:
                break
        return views, []

    def _take_sent(self, count: int) -> None:
        """Forget `count` bytes from the front of the queue, and say so to their owners."""
        done: list[Sent] = []
        while count and count >= len(self._outgoing[0].view):
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
        if self._bulks is not None:
            self._bulks.sent(self._number)
        outgoing, self._outgoing = self._outgoing, deque()
        self._slice = self._sealing = self._sending = None
        self.queued_bytes = 0
        for each in outgoing:
            self._drop_descriptor(each)
            if each.sent is not None:
                each.sent()

    def _drop_descriptor(self, outgoing: _Outgoing) -> None:
        if outgoing.descriptor >= 0:
            os.close(outgoing.descriptor)
            outgoing.descriptor = -1
