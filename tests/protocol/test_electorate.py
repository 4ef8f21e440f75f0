"""Whether enough targets have spoken is said without a look at each of them, and never wrongly."""

from __future__ import annotations

from itertools import combinations

import pytest

from ckpt.base.ids import Domain, TargetId
from ckpt.protocol.coordinator.catalog import TargetSeen, TargetStanding
from ckpt.protocol.coordinator.cluster.electorate import Electorate
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.image import CatalogImage

HOSTS = (3, 2, 1, 1)
"""So many targets stand on each."""


def _members() -> Membership:
    image = CatalogImage(1)
    for host, count in enumerate(HOSTS):
        for number in range(count):
            id = TargetId(f"h{host}t{number}")
            domain = str(Domain("power", "rack", f"host{host}", f"{id}"))
            image.apply(TargetSeen(id, domain, "/data", bytes([host + 1, number] * 8), "here"))
    return Membership(Desk(), cluster="c", secret=b"s" * 32, image=image)


def _sets(ids: list[TargetId]) -> list[frozenset[TargetId]]:
    return [frozenset(one) for count in range(len(ids) + 1) for one in combinations(ids, count)]


@pytest.mark.parametrize("lost", [0, 1, 2, 9])
def test_who_hears_that_too_few_have_come_would_have_found_it(lost: int) -> None:
    votes = Electorate(_members(), "host")
    ids = sorted(votes.domains)
    helped = 0
    for come in _sets(ids):
        for absent in (frozenset(), frozenset(ids[:1]), frozenset(ids[2:5])):
            may_be = votes.lacks_at_most(lost, come=len(come), absent=len(absent))
            assert may_be or len(votes.away(come, absent)) > lost
            helped += not may_be
    assert helped or lost > len(HOSTS), "it spares most of the looks"


def test_a_target_that_is_removed_is_waited_for_no_more() -> None:
    members = _members()
    votes = Electorate(members, "host")
    assert len(votes.domains) == sum(HOSTS)
    gone = TargetId("h2t0")
    members.stand(gone, TargetStanding.REMOVED)
    assert gone not in votes.domains
    assert (members.count, members.live_count) == (sum(HOSTS) - 1, 0)
    assert votes.domain_count(frozenset()) == len(HOSTS) - 1


def test_one_that_was_not_there_when_the_catalog_was_made_is_not_waited_for() -> None:
    members = _members()
    absent = TargetId("h3t0")
    members.seats.stand(absent, TargetStanding.ABSENT)
    assert absent not in Electorate(members, "host").domains
