"""Who may sit at a daemon's door while it has not proved anything, and who goes when it is full?

    taken --(young: nobody may take its seat)--> ripe --(full: drawn by lot)--> sent away
      |                                           |
      +------------- left: proved, cut off or gone +

Goals: an honest peer that comes beside any number of strangers gets a seat soon, and keeps it for
as long as a handshake needs. A burst of honest peers takes nobody's seat.

Plan: a seat is young for `grace_us`. While all seats are young, newcomers wait in the system's
listen queue. The grace is so long that all seats change hands as often as it takes to empty a full
listen queue within QUEUE_TURN_US: so a newcomer that is in the queue is at the table after at most
that, whoever is before it (as long as accepting so many is within the processor's power), and then
nobody pushes it out for a grace (250 ms with all seats), which is a handshake many times over.

Who goes is drawn from the ripe ones: a few by lot, and of these the one whose source holds the most
seats. By lot, since whatever a rule rewards (a hello, a byte now and then) strangers would do;
by source, since strangers are many at one place and honest peers few at each. A source is an IPv4
address, the first 64 bits of an IPv6 one, or all peers of a Unix socket.
"""

from __future__ import annotations

import random
import socket
from collections import Counter
from typing import Final, Generic, TypeVar

BACKLOG: Final = 4096
"""Length of the listen queues. The system may allow less (net.core.somaxconn)."""
QUEUE_TURN_US: Final = 500_000
_DRAWN: Final = 8

K = TypeVar("K")


def grace_us(seats_max: int) -> int:
    """How long a seat is young: at this pace a full listen queue is seated in QUEUE_TURN_US."""
    return seats_max * QUEUE_TURN_US // BACKLOG


def source_of(family: int, address: object) -> str:
    """What counts as one source, from what `accept` says of the other end."""
    if family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return "unix"
    host = str(address[0])
    if family == socket.AF_INET:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"


class Seats(Generic[K]):
    """See the module. I know no clock and close nothing: I say who."""

    def __init__(self, seats_max: int, lot: random.Random) -> None:
        assert seats_max >= 1
        self.seats_max = seats_max
        self.grace_us = grace_us(seats_max)
        self._lot = lot
        #: Young seats and when they were taken, oldest first.
        self._young: dict[K, int] = {}
        #: Ripe seats in no order, for drawing, and where each lies in it.
        self._ripe: list[K] = []
        self._places: dict[K, int] = {}
        #: The source of every seat, young or ripe, and how many seats each source has.
        self._sources: dict[K, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def is_full(self) -> bool:
        """Whether a newcomer needs somebody's seat."""
        return len(self._sources) >= self.seats_max

    def take(self, who: K, source: str, at_us: int) -> None:
        """Give a seat to a newcomer."""
        assert who not in self._sources
        self._sources[who] = source
        self._counts[source] += 1
        self._young[who] = at_us

    def leave(self, who: K) -> bool:
        """Free the seat; False when it had none."""
        source = self._sources.pop(who, None)
        if source is None:
            return False
        self._counts[source] -= 1
        if not self._counts[source]:
            del self._counts[source]
        if self._young.pop(who, None) is None:
            place, last = self._places.pop(who), self._ripe.pop()
            if last is not who:
                self._ripe[place] = last
                self._places[last] = place
        return True

    def victim(self, at_us: int) -> K | None:
        """Who must give way to a newcomer; None while all seats are young."""
        self._ripen(at_us)
        if not self._ripe:
            return None
        drawn = [self._lot.choice(self._ripe) for _ in range(_DRAWN)]
        return max(drawn, key=lambda who: self._counts[self._sources[who]])

    def ripe_in_us(self, at_us: int) -> int:
        """Microseconds until there will be a victim, if nobody leaves before."""
        if self._ripe or not self._young:
            return 0
        oldest_us = next(iter(self._young.values()))
        return max(0, oldest_us + self.grace_us - at_us)

    def _ripen(self, at_us: int) -> None:
        while self._young:
            who, taken_us = next(iter(self._young.items()))
            if at_us - taken_us < self.grace_us:
                return
            del self._young[who]
            self._places[who] = len(self._ripe)
            self._ripe.append(who)
