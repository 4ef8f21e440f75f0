"""Placement: balance, the rule for domains, and which losses a payload survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.base.ids import Domain, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.placement import (
    LEVELS,
    Holder,
    Level,
    Placement,
    Survivable,
    check_level,
    document_targets,
    domain_key,
    pick_replacement,
    place,
    place_in,
    survivable,
)
from ckpt.plan.seating import Candidate, Seating, group_numbers
from tests.landing import examples, in_turn
from tests.plan.clusters import candidate, cluster

MiB = 1 << 20


def loads(
    candidates: Sequence[Candidate], sizes: Sequence[int], placed: Sequence[Placement]
) -> Counter[TargetId]:
    load = Counter({c.target: 0 for c in candidates})
    for size, placement in zip(sizes, placed, strict=True):
        for target in placement.columns:
            if target is not None:
                load[target] += size
    return load


def held_max(
    targets: Sequence[TargetId | None], candidates: Sequence[Candidate], level: Level
) -> int:
    domains = {c.target: c.domain for c in candidates}
    held = Counter(domain_key(t, domains[t], level) for t in targets if t is not None)
    return max(held.values(), default=0)


BURSTS = [
    (7, 7, Code(4, 2), "host", 4),
    (7, 7, Code(4, 2), "host", 256),
    (7, 1, Code(4, 2), "target", 256),
    (12, 12, Code(5, 1), "host", 300),
    (14, 2, Code(4, 2), "target", 100),
    (16, 8, Code(4, 2), "host", 64),
    (60, 7, Code(4, 2), "host", 512),
    (63, 9, Code(4, 2), "host", 333),
    (64, 64, Code(4, 2), "host", 1024),
    (64, 16, Code(8, 3), "host", 1024),
]  # fmt: skip


@pytest.mark.parametrize("mix", ["equal", "mixed"])
@pytest.mark.parametrize(
    ("target_count", "host_count", "code", "level", "rank_count"), in_turn(BURSTS, every=2)
)
def test_a_burst_loads_all_targets_alike(
    target_count: int, host_count: int, code: Code, level: Level, rank_count: int, mix: str
) -> None:
    random = Random(1)
    sizes = [
        MiB if mix == "equal" else random.choice((1, 10, 1000, 5000)) * 4096
        for _ in range(rank_count)
    ]
    candidates = cluster(target_count, host_count)

    placed = place_all(code, sizes, candidates, level, 2)

    assert all(len(set(p.columns)) == code.n and None not in p.columns for p in placed)
    assert all(held_max((*p.columns, *p.spares), candidates, level) <= 1 for p in placed)
    load = loads(candidates, sizes, placed)
    mean = sum(load.values()) / target_count
    # A burst of few columns cannot be even: nobody can do better than one whole column above the
    # mean.
    assert max(load.values()) <= max(1.05 * mean, mean + max(sizes)), (
        f"{max(load.values()) / mean:.3f}"
    )


@pytest.mark.parametrize(
    ("target_count", "host_count", "code", "level", "rank_count"), in_turn(BURSTS, every=2, first=1)
)
def test_payloads_that_come_one_by_one_load_all_targets_alike_up_to_one_column(
    target_count: int, host_count: int, code: Code, level: Level, rank_count: int
) -> None:
    random = Random(2)
    current = {c.target: c for c in cluster(target_count, host_count)}
    sizes = [random.choice((1, 10, 1000, 5000)) * 4096 for _ in range(rank_count)]
    for turn, size in enumerate(sizes):
        for target in place(code, size, list(current.values()), level, 1, 2, turn).columns:
            assert target is not None
            current[target] = replace(current[target], load_bytes=current[target].load_bytes + size)

    load = [c.load_bytes for c in current.values()]
    mean = sum(load) / target_count
    assert max(load) <= max(1.05 * mean, mean + max(sizes))


@pytest.mark.parametrize("code", [Code(4, 2), Code(5, 1), Code(2, 1)])
@pytest.mark.parametrize("target_count", [6, 7, 12, 24])
def test_parity_is_shared_as_evenly_as_bytes(code: Code, target_count: int) -> None:
    placed = place_all(code, [MiB] * 240, cluster(target_count, target_count), "host", 0)
    parity = Counter(t for p in placed for t in p.columns[code.k :])
    assert max(parity.values()) <= 240 * code.m / target_count + 1


def test_without_known_parity_roles_rotate_by_turn() -> None:
    candidates = cluster(6, 6)
    roles = Counter(
        (target, column)
        for turn in range(600)
        for column, target in enumerate(
            place(Code(4, 2), MiB, candidates, "host", 1, 0, turn).columns
        )
    )
    assert all(95 <= count <= 105 for count in roles.values())
    assert len(roles) == 36


def test_equal_arguments_give_equal_placements_in_any_order_of_candidates() -> None:
    candidates = cluster(64, 16)
    shuffled = candidates[:]
    Random(3).shuffle(shuffled)
    for turn in range(40):
        assert place(Code(4, 2), MiB, candidates, "host", 1, 2, turn) == place(
            Code(4, 2), MiB, shuffled, "host", 1, 2, turn
        )


def test_the_placement_of_a_small_cluster_is_frozen() -> None:
    placed = place_all(Code(4, 2), [4096] * 3, cluster(7, 7), "host", 1)
    assert [(" ".join(t or "-" for t in p.columns), *p.spares) for p in placed] == GOLDEN


def test_columns_that_the_rule_leaves_no_room_for_are_absent_and_parity_first() -> None:
    candidates = [candidate(i, f"w/r/h{i % 5}/d{i}") for i in range(10)]
    placed = place(Code(4, 2), MiB, candidates, "host", 1, 2, 0)
    assert None not in placed.columns[:5]
    assert placed.columns[5] is None
    assert placed.spares == ()


def test_two_columns_in_a_domain_are_allowed_by_policy_and_lie_on_different_devices() -> None:
    candidates = [candidate(i, f"w/r/h{i % 3}/d{i // 6}") for i in range(12)]
    placed = place(Code(4, 2), MiB, candidates, "host", 2, 0, 0)
    assert held_max(placed.columns, candidates, "host") == 2
    assert held_max(placed.columns, candidates, "device") == 1


def test_at_target_level_hosts_still_hold_even_shares() -> None:
    candidates = [candidate(i, f"w/r/h{i % 3}/d{i}") for i in range(12)]
    for turn in range(24):
        assert (
            held_max(
                place(Code(4, 2), MiB, candidates, "target", 1, 0, turn).columns, candidates, "host"
            )
            == 2
        )


def test_one_device_takes_all_columns_only_at_target_level() -> None:
    candidates = [candidate(i, "w/r/h/d", device="disk") for i in range(7)]
    assert None not in place(Code(4, 2), MiB, candidates, "target", 1, 1, 0).columns
    assert place(Code(4, 2), MiB, candidates, "device", 1, 1, 0).columns.count(None) == 5


def test_targets_of_one_device_share_its_space() -> None:
    candidates = [candidate(i, "w/r/h/d", device="disk", bytes_free=5 * MiB) for i in range(7)]
    placed = place(Code(4, 2), MiB, candidates, "target", 1, 1, 0)
    assert placed.columns.count(None) == 1
    assert placed.spares == ()


def test_a_targets_own_capacity_counts_besides_its_devices_space() -> None:
    candidates = [
        replace(
            candidate(i, "w/r/h/d", device="disk", bytes_free=100 * MiB),
            own_bytes_free=MiB if i else MiB - 1,
        )
        for i in range(7)
    ]
    placed = place(Code(4, 2), MiB, candidates, "target", 1, 0, 0)
    assert sorted(t for t in placed.columns if t) == [c.target for c in candidates[1:]]


def test_full_and_dead_targets_take_nothing() -> None:
    candidates = cluster(9, 9)
    candidates[2] = replace(candidates[2], live=False)
    candidates[5] = replace(candidates[5], bytes_free=MiB - 1)
    for turn in range(20):
        placed = place(Code(4, 2), MiB, candidates, "host", 1, 9, turn)
        assert {*placed.columns, *placed.spares} == {
            c.target for i, c in enumerate(candidates) if i not in (2, 5)
        }


def test_a_large_cluster_stays_inside_groups_that_do_not_change_when_a_target_dies() -> None:
    candidates = cluster(96, 24)
    placed = place_all(Code(4, 2), [MiB] * 400, candidates, "host", 2)
    groups = partners(placed)
    assert sorted(len(g) for g in groups) == [24, 24, 24, 24]

    candidates[7] = replace(candidates[7], live=False)
    again = partners(place_all(Code(4, 2), [MiB] * 400, candidates, "host", 2))
    assert again == [g - {candidates[7].target} for g in groups]


def test_inside_a_group_a_lost_target_is_rebuilt_from_all_others() -> None:
    candidates = [candidate(i, f"w/r{i}/h{i}/d{i}") for i in range(24)]
    placed = place_all(Code(4, 2), [MiB] * 400, candidates, "host", 0)
    pairs = Counter(
        pair for p in placed for pair in combinations(sorted(t for t in p.columns if t), 2)
    )
    mean = 400 * 15 / 276
    assert len(pairs) == 276
    assert max(pairs.values()) < 2.5 * mean


def test_so_it_is_inside_each_of_many_groups() -> None:
    """Payloads that come one by one, each when those before are gone: turns alone part them."""
    candidates = cluster(1024, 128)
    groups = group_numbers(Code(4, 2), candidates)
    own = [id for id, number in groups.items() if number == 0]
    seating, count = Seating(Code(4, 2), candidates), max(groups.values()) + 1
    pairs: Counter[tuple[TargetId, ...]] = Counter()
    for turn in range(0, 200 * count, count):
        columns = place_in(seating, MiB, "host", 1, 0, turn).columns
        pairs.update(combinations(sorted(t for t in columns if t), 2))
    assert {id for pair in pairs for id in pair} == set(own)
    possible = len(own) * (len(own) - 1) // 2
    assert len(pairs) > 0.9 * possible
    assert max(pairs.values()) < 3 * 200 * 15 / possible


def place_all(
    code: Code,
    column_bytes: Sequence[int],
    candidates: Sequence[Candidate],
    level: Level,
    spare_count: int,
) -> list[Placement]:
    """A whole burst, largest payloads first; payload i has columns of `column_bytes[i]`."""
    placements = [Placement((), ())] * len(column_bytes)
    current = {c.target: c for c in candidates}
    largest_first = sorted(range(len(column_bytes)), key=lambda i: (-column_bytes[i], i))
    for turn, index in enumerate(largest_first):
        size = column_bytes[index]
        placed = place(code, size, list(current.values()), level, 1, spare_count, turn)
        placements[index] = placed
        for column, target in enumerate(placed.columns):
            if target is not None:
                current[target] = _with_column(current[target], size, is_parity=column >= code.k)
    return placements


def _with_column(c: Candidate, size: int, *, is_parity: bool) -> Candidate:
    return replace(
        c,
        load_bytes=c.load_bytes + size,
        parity_bytes=c.parity_bytes + size * is_parity,
        bytes_free=c.bytes_free - size,
    )


def partners(placed: Sequence[Placement]) -> list[set[TargetId]]:
    """Targets that are joined by payloads, spares included."""
    groups: list[set[TargetId]] = []
    for placement in placed:
        joined = {t for t in (*placement.columns, *placement.spares) if t is not None}
        apart = [g for g in groups if not g & joined]
        groups = [*apart, joined.union(*(g for g in groups if g & joined))]
    return sorted(groups, key=min)


@st.composite
def clusters(draw: st.DrawFn) -> list[Candidate]:
    hosts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    candidates: list[Candidate] = []
    for host, target_count in enumerate(hosts):
        for _ in range(target_count):
            index = len(candidates)
            candidates.append(
                candidate(
                    index,
                    f"w{host % 2}/r{host % 3}/h{host}/d{draw(st.integers(0, 2))}",
                    bytes_free=draw(st.sampled_from((0, MiB, 64 * MiB))),
                    load_bytes=draw(st.integers(0, 3)) * MiB,
                    live=draw(st.sampled_from((True, True, True, False))),
                )
            )
    return candidates


@settings(max_examples=examples(150))
@given(
    clusters(),
    st.sampled_from(LEVELS),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from((Code(4, 2), Code(1, 1), Code(2, 1), Code(8, 3))),
    st.integers(0, 50),
)
def test_the_domain_rule_holds_and_as_many_columns_are_placed_as_it_allows(
    candidates: list[Candidate],
    level: Level,
    max_per_domain: int,
    spare_count: int,
    code: Code,
    turn: int,
) -> None:
    placed = place(code, MiB, candidates, level, max_per_domain, spare_count, turn)

    used = [t for t in (*placed.columns, *placed.spares) if t is not None]
    assert len(set(used)) == len(used)
    able = {c.target: c for c in candidates if c.live and c.bytes_free >= MiB}
    assert set(used) <= set(able)
    assert held_max(used, candidates, level) <= max_per_domain
    room = Counter(domain_key(c.target, c.domain, level) for c in able.values())
    assert len(placed.columns) == code.n
    assert sum(t is not None for t in placed.columns) == min(
        code.n, sum(min(count, max_per_domain) for count in room.values())
    )


@settings(max_examples=examples(100))
@given(clusters(), st.sampled_from(LEVELS), st.integers(0, 50))
def test_a_replacement_keeps_the_rule_and_avoids_holders_and_failed_targets(
    candidates: list[Candidate], level: Level, turn: int
) -> None:
    placed = place(Code(4, 2), MiB, candidates, level, 1, 0, turn)
    by_target = {c.target: c for c in candidates}
    holders = [Holder(t, by_target[t].domain) for t in placed.columns[1:] if t is not None]
    failed = [t for t in placed.columns[:1] if t is not None]

    picked = pick_replacement(MiB, candidates, holders, level, 1, failed, count=3)

    assert len(set(picked)) == len(picked) <= 3
    for target in picked:
        assert target not in failed
        assert by_target[target].live
        assert held_max([target, *(h.target for h in holders)], candidates, level) == 1
    assert pick_replacement(MiB, candidates, holders, level, 1, list(by_target)) == ()


def test_a_replacement_is_the_least_loaded_target_that_the_rule_allows() -> None:
    candidates = cluster(8, 8)
    candidates[6] = replace(candidates[6], load_bytes=5)
    holders = [Holder(c.target, c.domain) for c in candidates[:5]]
    assert pick_replacement(MiB, candidates, holders, "host", 1, [candidates[5].target], 2) == (
        candidates[7].target,
        candidates[6].target,
    )


def test_documents_lie_in_distinct_domains_where_possible() -> None:
    candidates = [candidate(i, f"w/r{i // 4}/h{i // 2}/d{i}") for i in range(8)]
    three = document_targets(candidates, 3)
    assert held_max(three, candidates, "rack") == 2
    assert held_max(three, candidates, "host") == 1
    assert len(document_targets(candidates, 20)) == 8
    assert document_targets([replace(c, live=False) for c in candidates], 3) == ()


def test_a_document_that_lies_somewhere_goes_to_another_domain_next() -> None:
    candidates = [candidate(i, f"w/r/h{i // 2}/d{i}", load_bytes=i) for i in range(4)]
    there = [Holder(candidates[0].target, candidates[0].domain)]
    assert document_targets(candidates[1:], 1, there) == (candidates[2].target,)


def test_documents_prefer_the_least_loaded_target() -> None:
    candidates = [candidate(i, f"w/r/h{i}/d", load_bytes=9 - i) for i in range(5)]
    assert document_targets(candidates, 2) == (candidates[4].target, candidates[3].target)


@settings(max_examples=examples(200))
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=6, max_size=6),
    st.sampled_from(("device", "host", "rack", "power")),
)
def test_survivable_losses_are_exactly_those_that_every_choice_survives(
    hosts: list[int | None], level: Level
) -> None:
    code = Code(4, 2)
    placed = [
        None if h is None else Domain(f"w{h // 4}", f"r{h // 2}", f"h{h}", "d") for h in hosts
    ]
    keys = [None if d is None else domain_key(TargetId(""), d, level) for d in placed]
    present = [key for key in keys if key is not None]

    def survives(count: int) -> bool:
        return all(
            sum(key not in lost for key in present) >= code.k
            for lost in combinations(sorted(set(present)), min(count, len(set(present))))
        )

    found = survivable(code, placed, level)

    assert found.level == level
    assert found.targets == max(-1, len(present) - code.k)
    if found.targets < 0:
        assert found.domains == -1
    else:
        assert survives(found.domains)
        assert not survives(found.domains + 1)


def test_seven_targets_of_one_disk_survive_two_targets_and_no_device() -> None:
    placed = [Domain("w", "r", "h", "d")] * 6
    assert survivable(Code(4, 2), placed, "device") == Survivable(2, 0, "device")
    assert survivable(Code(4, 2), placed, "target") == Survivable(2, 2, "target")
    assert survivable(Code(4, 2), [*placed[:5], None], "target") == Survivable(1, 1, "target")


def test_an_unknown_level_is_refused_by_name() -> None:
    assert check_level("rack") == "rack"
    with pytest.raises(Refused, match="shelf"):
        check_level("shelf")


GOLDEN = [
    ("t0000 t0002 t0004 t0006 t0001 t0003", "t0005"),
    ("t0001 t0003 t0005 t0000 t0004 t0006", "t0002"),
    ("t0002 t0004 t0006 t0003 t0005 t0000", "t0001"),
]


@pytest.mark.parametrize("targets", [7, 60, 300])
def test_one_look_at_the_targets_serves_a_burst(targets: int) -> None:
    """As if each payload had looked at their loads anew."""
    code, random = Code(4, 2), Random(targets)
    known = {c.target: c for c in cluster(targets, targets)}
    seating = Seating(code, list(known.values()))
    for turn in range(40):
        fresh = place(code, 4 * MiB, list(known.values()), "host", 1, 2, turn)
        assert place_in(seating, 4 * MiB, "host", 1, 2, turn) == fresh
        for target in (*fresh.columns, *random.sample(list(known), 3)):
            assert target is not None
            load = known[target].load_bytes + random.randrange(8) * MiB
            known[target] = replace(known[target], load_bytes=load)
            seating.load(target, load)
