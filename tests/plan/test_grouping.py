"""Placement groups: a target that comes or goes gives no other one a new partner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from random import Random

import pytest
from msgspec.structs import replace

from ckpt.base.ids import Domain, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.grouping import Groups, regrouped
from ckpt.plan.placement import place_in
from ckpt.plan.seating import Candidate, Seating, group_numbers, group_targets_min
from tests.plan.clusters import cluster

CODE = Code(4, 2)
LEAST = 24
Pairs = set[tuple[TargetId, TargetId]]


def domains(candidates: list[Candidate]) -> dict[TargetId, Domain]:
    return {c.target: c.domain for c in candidates}


def pairs(groups: Mapping[TargetId, int]) -> Pairs:
    """Who may hold columns of one payload together."""
    return {(a, b) for a, b in combinations(sorted(groups), 2) if groups[a] == groups[b]}


def check_sizes(groups: Groups) -> None:
    sizes = Counter(groups.values())
    assert all(LEAST <= size < 2 * LEAST for size in sizes.values()), sizes


def test_so_large_is_a_group_at_least() -> None:
    assert group_targets_min(CODE) == LEAST
    assert group_targets_min(Code(8, 4)) == 36


def test_fewer_targets_than_two_groups_need_have_none() -> None:
    assert regrouped(CODE, {}, domains(cluster(47, 47))) == {}
    assert regrouped(CODE, {TargetId("t0001"): 3}, domains(cluster(47, 47))) == {}


def test_at_first_they_are_those_that_placement_has_dealt_out() -> None:
    candidates = cluster(100, 25)
    found = regrouped(CODE, {}, domains(candidates))
    assert found == group_numbers(CODE, candidates)
    check_sizes(found)


@pytest.mark.parametrize(("targets", "hosts"), [(48, 48), (60, 10), (100, 25)])
def test_a_target_that_comes_gives_no_other_one_a_new_partner(targets: int, hosts: int) -> None:
    """Nor do a hundred more, in any order and wherever they are."""
    everybody = cluster(targets + 100, hosts)
    rng = Random(targets)
    coming = everybody[targets:]
    rng.shuffle(coming)
    here = domains(everybody[:targets])
    groups = regrouped(CODE, {}, here)
    for one in coming:
        before = pairs(groups)
        here[one.target] = one.domain
        groups = regrouped(CODE, groups, here)
        new = pairs({id: number for id, number in groups.items() if id != one.target})
        assert new <= before
        assert one.target in groups
        check_sizes(groups)
    assert groups == regrouped(CODE, groups, here), "nobody has come"


def test_targets_that_are_replaced_one_by_one_part_nobody_where_there_are_just_two_groups() -> None:
    """Though for a while there is one fewer than two new groups would need."""
    everybody = cluster(60, 30)
    here = domains(everybody[:48])
    groups = regrouped(CODE, {}, here)
    for gone, new in zip(everybody, everybody[48:], strict=False):
        before = pairs(groups)
        del here[gone.target]
        groups = regrouped(CODE, groups, here)
        assert len(set(groups.values())) == 2
        here[new.target] = new.domain
        groups = regrouped(CODE, groups, here)
        assert {pair for pair in pairs(groups) if new.target not in pair} <= before
        check_sizes(groups)


def test_of_two_groups_one_that_goes_leaves_none() -> None:
    here = domains(cluster(48, 24))
    groups = regrouped(CODE, {}, here)
    for id in [id for id, number in groups.items() if number == 0][:13]:
        del here[id]
    assert regrouped(CODE, groups, here) == {}


def test_each_group_has_its_share_of_every_host() -> None:
    """Else a host's columns would crowd in the group that has most of it."""
    candidates = cluster(200, 8)
    rng = Random(1)
    rng.shuffle(candidates)
    here = domains(candidates[:48])
    groups = regrouped(CODE, {}, here)
    for one in candidates[48:]:
        here[one.target] = one.domain
        groups = regrouped(CODE, groups, here)
    hosts: dict[str, Counter[int]] = {}
    for id, number in groups.items():
        hosts.setdefault(here[id].host, Counter())[number] += 1
    sizes = Counter(groups.values())
    assert len(sizes) >= 4
    for host, held in hosts.items():
        for number, size in sizes.items():
            assert abs(held[number] - size / len(hosts)) < 2, (host, held, sizes)


def test_who_goes_leaves_all_others_where_they_are() -> None:
    here = domains(cluster(100, 25))
    groups = regrouped(CODE, {}, here)
    for id in sorted(here)[:20]:
        del here[id]
    assert regrouped(CODE, groups, here) == {id: groups[id] for id in here}


def test_what_is_left_of_a_group_that_has_shrunk_goes_to_others() -> None:
    here = domains(cluster(100, 25))
    groups = regrouped(CODE, {}, here)
    shrunk = [id for id, number in groups.items() if number == 2]
    for id in shrunk[:-11]:
        del here[id]
    found = regrouped(CODE, groups, here)
    assert 2 not in found.values()
    assert found.keys() == here.keys()
    stayed = {id: number for id, number in groups.items() if id in here and number != 2}
    assert stayed.items() <= found.items()


def test_a_payload_stays_in_the_groups_that_are_known() -> None:
    """Though domain order would deal targets out otherwise."""
    candidates = cluster(96, 24)
    before = regrouped(CODE, {}, domains(candidates[:90]))
    groups = regrouped(CODE, before, domains(candidates))
    known = [replace(c, group=groups[c.target]) for c in candidates]
    assert group_numbers(CODE, known) != group_numbers(CODE, candidates)
    seating = Seating(CODE, known)
    for turn in range(200):
        placed = place_in(seating, 1 << 20, "host", 1, 2, turn)
        assert len({groups[t] for t in (*placed.columns, *placed.spares) if t is not None}) == 1


def test_one_that_has_no_group_yet_takes_what_nobody_else_can() -> None:
    candidates = cluster(96, 24)
    groups = regrouped(CODE, {}, domains(candidates[:95]))
    new = candidates[95].target
    known = [replace(c, group=groups.get(c.target, -1)) for c in candidates]
    seating = Seating(CODE, known)
    placed = [place_in(seating, 1 << 20, "host", 1, 0, turn).columns for turn in range(200)]
    assert not any(new in columns for columns in placed)
    assert new not in group_numbers(CODE, known)
    full = [replace(c, bytes_free=0 if c.target != new else c.bytes_free) for c in known]
    assert new in place_in(Seating(CODE, full), 1 << 20, "host", 1, 0, 0).columns
