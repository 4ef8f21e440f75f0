"""The door of a daemon: listening sockets, and who is let in when there is no room.

    a connection waits --a seat is free, or a ripe stranger gives its own (`seats`)--> welcome
          |
          +-- all seats are young: wait for the first to ripen
          +-- no descriptor: a ripe stranger goes; else the reserve gives one; else rest

The budget: _ACCEPTS_PER_TURN connections, then every session that has something gets its turn. The
seats' grace bounds the pace besides. Without a descriptor `accept` fails at once and would be
called again at once, since the connection still waits: so the door rests (REST_US).

Warning: `loop.create_server` has no such care. It fails 128 times in a row on one connection (up
to Python 3.13), logs each, and does so many times a second.
"""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Final, Generic, Protocol, TypeVar

from ckpt.aio import descriptors
from ckpt.aio.clock import now_us
from ckpt.aio.net.address import TcpAddress
from ckpt.aio.net.serving.seats import BACKLOG, Seats, source_of
from ckpt.base.errors import Unavailable
from ckpt.base.units import US_PER_S

BOTH_FAMILIES: Final = "::"
"""All addresses of this host. Python would take IPv6 alone there."""
REST_US: Final = 100_000
_ACCEPTS_PER_TURN: Final = 16
_SHARE_OF_DESCRIPTORS: Final = 8
"""Strangers take at most one in so many descriptors."""

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)


class Host(Protocol[K_contra]):
    """The server that a door hands accepted connections to."""

    def welcome(self, sock: socket.socket, source: str) -> None:
        """Take over a new connection, and report to `seats` who has taken a seat."""

    def send_away(self, who: K_contra) -> None:
        """Close this connection to free its seat, unless it has just proved the secret."""


class Door(Generic[K]):
    """See the module. Every method belongs to the loop's thread."""

    def __init__(
        self, host: Host[K], seats_max: int, reserve_count: int = descriptors.RESERVE_COUNT
    ) -> None:
        share = max(1, descriptors.limit() // _SHARE_OF_DESCRIPTORS)
        self.seats: Seats[K] = Seats(min(seats_max, share), random.Random())
        self.reserve = descriptors.DescriptorReserve(reserve_count)
        self.accepted_count = 0
        self.evicted_count = 0
        """Strangers that gave their seats to others."""
        self.shortage_count = 0
        """Connections for which no descriptor was free."""
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._closed = False
        self._rest: asyncio.TimerHandle | None = None
        self._waits_for_seat = False
        self._refill: asyncio.TimerHandle | None = None

    def is_short(self) -> bool:
        """No descriptor is free but those of the reserve."""
        return not self.reserve.refill()

    def add(self, listener: socket.socket) -> None:
        """Let in whoever comes to this socket; it is mine now."""
        listener.setblocking(False)
        self._listeners.append(listener)
        if self._rest is None:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def leave(self, who: K) -> None:
        """Its seat is free: it proved itself, or is gone."""
        if self.seats.leave(who) and self._waits_for_seat:
            self._open()

    def close(self) -> None:
        """Nobody is let in any more; idempotent."""
        self._closed = True
        self._open()
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        if self._refill is not None:
            self._refill.cancel()
        self.reserve.close()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._closed or not self._has_seat():
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in descriptors.SHORTAGES or not self._found_descriptor():
                    self._shut_for(REST_US)
                    return
                continue
            self.accepted_count += 1
            self._host.welcome(sock, source_of(sock.family, address))

    def _has_seat(self) -> bool:
        """True when the next connection may come in."""
        while self.seats.is_full:
            now = now_us()
            victim = self.seats.victim(now)
            if victim is None:
                self._shut_for(self.seats.ripe_in_us(now), for_seat=True)
                return False
            self._send_away(victim)
        return True

    def _found_descriptor(self) -> bool:
        """There was none: strangers go first, then the reserve."""
        self.shortage_count += 1
        victim = self.seats.victim(now_us())
        if victim is not None:
            self._send_away(victim)
            return True
        given = self.reserve.give()
        if self._refill is None:
            self._refill = self._loop.call_later(REST_US / US_PER_S, self._fill)
        return given

    def _send_away(self, victim: K) -> None:
        before = len(self.seats)
        self._host.send_away(victim)
        assert len(self.seats) < before
        self.evicted_count += 1

    def _fill(self) -> None:
        """Until the reserve is whole, whatever becomes free belongs to it."""
        self._refill = None
        if not self._closed and not self.reserve.refill():
            self._refill = self._loop.call_later(REST_US / US_PER_S, self._fill)

    def _shut_for(self, rest_us: int, *, for_seat: bool = False) -> None:
        if self._rest is not None:
            return
        self._waits_for_seat = for_seat
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
        self._rest = self._loop.call_later(rest_us / US_PER_S, self._open)

    def _open(self) -> None:
        if self._rest is None:
            return
        self._rest.cancel()
        self._rest = None
        self._waits_for_seat = False
        if not self._closed:
            for listener in self._listeners:
                self._loop.add_reader(listener.fileno(), self._accept, listener)


def listen_at(host: str, port: int) -> socket.socket:
    """A socket for a door: at the first address of that host, or at all of this one's, of IPv4 as
    well as of IPv6, for `::`. May block where it is a name. Raises Unavailable.
    """
    try:
        # With the scope of a link's own address (fe80::1%eth0): `bind` takes none out of a text.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = host == BOTH_FAMILIES and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        where = TcpAddress(host, port)
        raise Unavailable(f"cannot listen on {where}: {error.strerror}") from None
