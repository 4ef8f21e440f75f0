"""Whose word is waited for before anybody is served, and in which domains they stand?

It is asked for each of a thousand targets that come back to a new coordinator, and all of them are
counted again only when one came for the first time, moved, or was removed: who asks whether enough
have spoken hears at once that so few cannot be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from itertools import accumulate

from ckpt.base.ids import TargetId
from ckpt.plan.placement import Level, domain_key
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.cluster.membership import Membership

DomainKey = tuple[str, ...]


class Electorate:
    """All targets but those that were removed, or were not there when the catalog was made of the
    others and have not come since.
    """

    def __init__(self, members: Membership, level: Level) -> None:
        self._members = members
        self._level = level
        #: The roster of which the rest was made.
        self._made_of: tuple[int, int, int] | None = None
        self._domains: dict[TargetId, DomainKey] = {}
        #: The most targets that stand in none, one, two, ... of the domains.
        self._most: list[int] = [0]

    @property
    def domains(self) -> Mapping[TargetId, DomainKey]:
        """Of each the domain that it stands in."""
        if self._made_of != self._members.roster:
            self._count()
        return self._domains

    def lacks_at_most(self, domains: int, *, come: int, absent: int) -> bool:
        """Whether it can be that no more than so many domains lack targets, when so many have come
        and as many as `absent` are not waited for. False is certain.
        """
        away = len(self.domains) - come - absent
        return away <= self._most[min(domains, len(self._most) - 1)]

    def away(self, come: Set[TargetId], absent: Set[TargetId]) -> set[DomainKey]:
        """Domains of which not all have come that are waited for."""
        waited = self.domains.keys() - absent
        return {self._domains[id] for id in waited - come}

    def domain_count(self, absent: Set[TargetId]) -> int:
        """Of those that are waited for."""
        return len({self._domains[id] for id in self.domains.keys() - absent})

    def _count(self) -> None:
        seats, none = self._members.seats, catalog.TargetStanding.ABSENT
        self._domains = {
            target.id: domain_key(target.id, target.domain, self._level)
            for target in self._members.all()
            if seats.standing_of(target.id) is not none
        }
        sizes = sorted(Counter(self._domains.values()).values(), reverse=True)
        self._most = [0, *accumulate(sizes)]
        self._made_of = self._members.roster
