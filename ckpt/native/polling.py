"""Waiting for sockets, while bulks land and leave at those that nobody need hear of yet: an
interpreter that is woken for each part of a bulk comes back to caches which the part before has
swept.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.native.isal import find_isal
from ckpt.native.landing import Landing
from ckpt.native.library import READY_MAX, BulkState, PollState, ReadyState, find_library
from ckpt.native.plain_sending import PlainSending
from ckpt.native.sealing import Sealing

SHOWN_S: Final = 0.1
"""A bulk that is under way for longer is shown this often: others ask whether its peer lives."""
_FIRST_DESCRIPTORS: Final = 64


class BulkPoll:
    """I belong to the thread that waits."""

    def __init__(self, epoll: int) -> None:
        """`epoll`: its descriptor, in which each one's data is itself, as in `select.epoll`."""
        self._landings: dict[int, Landing] = {}
        self._sendings: dict[int, PlainSending | Sealing] = {}
        #: Their addresses, by descriptor.
        self._table = (BulkState * _FIRST_DESCRIPTORS)()
        self._state = PollState(epoll=epoll, show_us=round(SHOWN_S * US_PER_S))
        self._ready = (ReadyState * READY_MAX)()
        self._use(self._table)

    def _use(self, table: ctypes.Array[BulkState]) -> None:
        self._table = table
        self._state.bulks = ctypes.addressof(table)
        self._state.descriptors = len(table)

    def __bool__(self) -> bool:
        """Whether any bulk is under way."""
        return bool(self._landings or self._sendings)

    @property
    def worked_us(self) -> int:
        """For how long all calls of `wait` did not wait, but moved bytes."""
        return int(self._state.worked_us)

    def land(self, descriptor: int, landing: Landing) -> None:
        """From now on what comes there is this landing's, until `landed`."""
        self._bulk(descriptor).landing = landing.address
        self._landings[descriptor] = landing

    def landed(self, descriptor: int) -> None:
        """Before the landing is forgotten, or the descriptor closed. Idempotent."""
        if self._landings.pop(descriptor, None) is not None:
            self._table[descriptor].landing = None

    def send(self, descriptor: int, sending: PlainSending | Sealing) -> None:
        """From now on what the socket takes is this one's, until `sent`."""
        bulk = self._bulk(descriptor)
        if isinstance(sending, Sealing):
            bulk.sealing = sending.address
        else:
            bulk.sending = sending.address
        self._sendings[descriptor] = sending

    def sent(self, descriptor: int) -> None:
        """Before it is forgotten, or the descriptor closed. Idempotent."""
        if self._sendings.pop(descriptor, None) is not None:
            self._table[descriptor].sending = self._table[descriptor].sealing = None

    def _bulk(self, descriptor: int) -> BulkState:
        size = len(self._table)
        if descriptor >= size:
            table = (BulkState * max(2 * size, descriptor + 1))()
            ctypes.memmove(table, self._table, ctypes.sizeof(self._table))
            self._use(table)
        if not self._state.kernels:
            # Not before it is used: most processes that wait for sockets never get a bulk. `wait`
            # takes the library, and must not raise what ends more than one connection.
            find_library()
            self._state.kernels = ctypes.pointer(find_isal().kernels)
        return self._table[descriptor]

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """As `select.epoll.poll`, but for parts of bulks; SHOWN_S at most. Raises OSError."""
        rest_s = SHOWN_S if timeout_s is None else min(max(timeout_s, 0.0), SHOWN_S)
        count: int = find_library().poll(
            ctypes.byref(self._state), -int(-rest_s * 1_000 // 1), self._ready
        )
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        return [(each.descriptor, each.events) for each in self._ready[:count]]
