"""Which targets get less of a burst, and which does each payload need, as their room goes?

A burst is as fast as its busiest target: so all get alike while there is plenty of room, and shares
follow the room only as that gets short.

    half of a target is free, or more   weight 1: an even share
    a quarter of it is free, or less    by its room: that beside the largest one's, times NEARLY
    between                             from the one to the other

So small targets come to about 75% before large ones get more than they, and from there on all fill
together. An empty target among others of its size that are 70% full gets twice what they get, among
others that are 90% full eight times. Where rooms differ by less than a fifth, as they do by chance,
all weigh the same.

What no weight may cost is room. Each payload goes to n targets: with P payloads to come, a target
is of use for P columns at most, and a domain for P times its limit. The greatest P is that at which
the room of use is n * P columns. Who has more room than P is *needed*: each payload that does
without it wastes a column that only it can give. Nobody is among targets that are alike; one is
that has more than an n-th of all room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

AMPLE: Final = 0.5
SHORT: Final = 0.25
NEARLY: Final = 1.25
"""Who has 1 / NEARLY of the largest room, or more, weighs as much as it."""
WEIGHT_MIN: Final = 1e-6
"""A target without room still has this weight, because loads are divided by it."""


@dataclass(frozen=True, slots=True)
class DomainRooms:
    """The targets of one failure domain that have room, each for so many columns."""

    rooms: tuple[int, ...]
    limit: int
    """So many columns of a payload it may hold."""

    @property
    def width(self) -> int:
        return min(self.limit, len(self.rooms))

    def of_use(self, payloads: float) -> float:
        """So many columns it can give to so many payloads, but for its limit."""
        return sum(min(room, payloads) for room in self.rooms)


def weight(room: int, room_max: int, free_share: float) -> float:
    """The weight of one target, 1 at most: `room` is what its columns may take, `room_max` the same
    of the target with most, `free_share` the part of this target that is free.
    """
    short = min(1.0, max(0.0, (AMPLE - free_share) / (AMPLE - SHORT)))
    by_room = min(1.0, NEARLY * room / max(1, room_max))
    return max(WEIGHT_MIN, 1.0 - short * (1.0 - by_room))


def needed(domains: Sequence[DomainRooms], column_count: int) -> list[frozenset[int]]:
    """For each domain which of its targets, as positions, the next payload should go to first."""
    payloads = _payloads_max(domains, column_count)
    # What is left of a whole column counts: who is left out now has to have room for use later.
    later = payloads - 1
    return [
        frozenset(range(len(domain.rooms)))
        if domain.of_use(payloads) > domain.width * later
        else frozenset(i for i, room in enumerate(domain.rooms) if room > later)
        for domain in domains
    ]


def _payloads_max(domains: Sequence[DomainRooms], column_count: int) -> float:
    """How many payloads find `column_count` places, or as many as there are.

    From an upper bound down: what is more than of use is cut off, until nothing is.
    """
    count = min(column_count, sum(domain.width for domain in domains))
    payloads = sum(sum(domain.rooms) for domain in domains) / max(1, count)
    cut = -1
    while True:
        of_use, at_limit = 0.0, 0
        for domain in domains:
            if domain.of_use(payloads) > domain.width * payloads:
                at_limit += domain.width
            else:
                at_limit += sum(room > payloads for room in domain.rooms)
                of_use += sum(room for room in domain.rooms if room <= payloads)
        if at_limit in (cut, count) or at_limit > count:
            return payloads
        cut = at_limit
        payloads = of_use / (count - at_limit)
