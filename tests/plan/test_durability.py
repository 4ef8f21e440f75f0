"""The chance that a year costs data: the chain's exact solution, beside closed forms, enumerations
and trials of the same assumptions."""

from __future__ import annotations

import math
from itertools import combinations, product
from random import Random

import pytest
from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckpt.plan.durability import markov, outlook
from ckpt.plan.durability.group import WHOLE, Hazards, PlacementGroup
from ckpt.plan.durability.markov import loss_chance
from ckpt.plan.durability.outlook import (
    Conditions,
    Tier,
    as_placed,
    at_random,
    by_group_size,
    hazards_of,
    placed_group,
    rebuild_s,
    replicated,
)
from ckpt.plan.durability.trials import Tried, tried
from ckpt.plan.placement import LEVELS, domain_key
from ckpt.plan.seating import group_count
from tests.landing import in_turn
from tests.plan.clusters import cluster

DAY = 1 / 365.25
SEEDS = 20
TRIALS = 500
AGREEING_MIN = 16
"""19 are expected; with fewer than 16 it is by chance in 3 of 1,000 cases."""
CASES = [
    # One target a domain, every set in use.
    (PlacementGroup(Code(2, 1), 4, 1), Hazards(1.0, 0.1, 20 * DAY, 30 * DAY)),
    (PlacementGroup(Code(4, 2), 24, 1), Hazards(0.5, 0.0, 10 * DAY, 10 * DAY)),
    # Hosts of several targets, which fail by themselves and together.
    (PlacementGroup(Code(4, 2), 8, 3), Hazards(0.4, 0.2, 20 * DAY, 30 * DAY)),
    (PlacementGroup(Code(8, 4), 12, 2), Hazards(1.0, 0.4, 20 * DAY, 30 * DAY)),
    # Two columns in a host; all columns on one.
    (PlacementGroup(Code(8, 3), 6, 4, 2), Hazards(0.8, 0.1, 20 * DAY, 30 * DAY)),
    (PlacementGroup(Code(4, 2), 1, 7, 7), Hazards(2.0, 0.01, 20 * DAY, 30 * DAY)),
    # Few payloads: most losses are deadly for none of them.
    (PlacementGroup(Code(4, 2), 8, 3, payloads=20), Hazards(1.0, 0.2, 20 * DAY, 30 * DAY)),
    (PlacementGroup(Code(1, 2), 12, 2, payloads=20), Hazards(2.0, 0.1, 20 * DAY, 30 * DAY)),
    (PlacementGroup(Code(6, 3), 12, 2, 2, payloads=30), Hazards(1.5, 0.3, 20 * DAY, 30 * DAY)),
]


def agreeing(group: PlacementGroup, hazards: Hazards, chance: float) -> int:
    """Of SEEDS streams of trials, how many have the chance in their 95% interval."""
    found = (tried(group, hazards, TRIALS, Random(seed).random) for seed in range(SEEDS))
    return sum(least <= chance <= most for least, most in (each.interval for each in found))


@pytest.mark.parametrize(
    ("group", "hazards"), in_turn(CASES, every=3), ids=lambda one: str(getattr(one, "code", ""))
)
def test_chain_and_trials_agree_within_the_interval_of_the_trials(
    group: PlacementGroup, hazards: Hazards
) -> None:
    chance = loss_chance(group, hazards)
    assert 0.02 < chance < 0.98, "a chance near 0 or 1 would agree with anything"
    assert agreeing(group, hazards, chance) >= AGREEING_MIN


def test_trials_refute_other_rates() -> None:
    """They would not agree with whatever they are held against."""
    group, hazards = CASES[2]
    for factor in (0.85, 1.15):
        other = replace(hazards, target_losses=hazards.target_losses * factor)
        assert agreeing(group, hazards, loss_chance(group, other)) < AGREEING_MIN
    shorter = replace(hazards, domain_return=hazards.domain_return * 0.4)
    assert agreeing(group, hazards, loss_chance(group, shorter)) < AGREEING_MIN


def test_the_interval_is_wilsons() -> None:
    assert Tried(100, 10).interval == pytest.approx((0.05522914, 0.17436566), abs=1e-7)
    least, most = Tried(1000, 0).interval
    assert least == 0
    assert 0.003 < most < 0.004, "none of a thousand does not prove 0"


def test_without_parity_the_first_loss_counts() -> None:
    group = PlacementGroup(Code(3, 0), 5, 1)
    chance = loss_chance(group, Hazards(0.02, 0.01, DAY, DAY), years=2)
    assert chance == pytest.approx(-math.expm1(-2 * 5 * 0.03), rel=1e-9)


def test_two_copies_on_two_targets_are_lost_as_the_closed_form_says() -> None:
    lost, back = 0.3, 12.0
    trace, determinant = -(3 * lost + back), 2 * lost * lost
    root = math.sqrt(trace * trace - 4 * determinant)
    slow, fast = (trace + root) / 2, (trace - root) / 2
    alive = (slow * math.exp(fast) - fast * math.exp(slow)) / (slow - fast)
    chance = loss_chance(PlacementGroup(Code(1, 1), 2, 1), Hazards(lost, 0.0, 1 / back, 1.0))
    assert chance == pytest.approx(1 - alive, rel=1e-9)


def test_a_very_small_chance_keeps_its_digits() -> None:
    """1 minus something near 1 would be 0, or noise, from 1e-16 on."""
    lost, back = 1e-4, 365.25 * 24
    chance = loss_chance(PlacementGroup(Code(8, 4), 24, 1), Hazards(lost, 0.0, 1 / back, 1.0))
    jumps = math.prod((24 - i) * lost for i in range(5)) / (math.factorial(4) * back**4)
    assert jumps < 1e-28
    assert chance == pytest.approx(jumps, rel=2e-3)


def test_states_that_are_counted_together_change_nothing_to_speak_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, hazards = PlacementGroup(Code(8, 4), 12, 6), Hazards(0.1, 0.02, DAY, 2 * DAY)
    exact = loss_chance(group, hazards)
    monkeypatch.setattr(markov, "STATES_MAX", 100)
    assert loss_chance(group, hazards) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("group", "lost"),
    [
        (PlacementGroup(Code(2, 1), 4, 2), (1, 1)),
        (PlacementGroup(Code(2, 1), 4, 2), (2, 1)),
        (PlacementGroup(Code(2, 1), 4, 2), (WHOLE, 1)),
        (PlacementGroup(Code(3, 2), 5, 2), (1, 1, WHOLE)),
        (PlacementGroup(Code(3, 2), 8, 1), (1, 1, 1)),
    ],
)
def test_a_loss_is_deadly_as_often_as_payloads_lie_on_it(
    group: PlacementGroup, lost: tuple[int, ...]
) -> None:
    counts = [group.domain_targets if each == WHOLE else each for each in lost]
    gone = {(at, one) for at, count in enumerate(counts) for one in range(count)}
    placed = [
        tuple(zip(domains, targets, strict=True))
        for domains in combinations(range(group.domains), group.columns)
        for targets in product(range(group.domain_targets), repeat=group.columns)
    ]
    hit = sum(len(gone.intersection(one)) > group.loss_max for one in placed) / len(placed)
    assert 0 < hit < 1
    for payloads in (1, 10, 1000):
        chance = replace(group, payloads=payloads).deadly(lost)
        assert chance == pytest.approx(1 - (1 - hit) ** payloads, rel=1e-9)
    assert group.deadly(lost) == 1


def test_without_a_domain_rule_columns_lie_on_any_targets() -> None:
    group = PlacementGroup(Code(3, 2), 2, 4, 4, payloads=1)
    gone = {0, 1, 2, 3}
    placed = list(combinations(range(8), 5))
    hit = sum(len(gone.intersection(one)) > 2 for one in placed) / len(placed)
    assert group.deadly((WHOLE,)) == pytest.approx(hit)
    assert group.deadly((2, 2)) == pytest.approx(hit)


def test_a_group_that_has_no_room_for_k_columns_is_refused() -> None:
    with pytest.raises(Refused, match="room for 3 columns of a payload, 4\\+2 needs 4"):
        PlacementGroup(Code(4, 2), 3, 8)
    assert PlacementGroup(Code(4, 2), 5, 8).loss_max == 1, "the sixth column is absent"


# --------------------------------------------------------------------------- a cluster's year

BUSY = Conditions(2.4, 0.1, 0.01, 3600.0, 3600.0)
LARGE = Tier(Code(4, 2), 1024, 1024, payloads=1e6, target_bytes=1 << 40)


def test_groups_are_those_of_the_placement() -> None:
    for code, targets, hosts in ((Code(4, 2), 96, 12), (Code(8, 3), 1024, 128)):
        ordered = sorted(cluster(targets, hosts), key=lambda c: (c.domain, c.target))
        count = group_count(code, targets)
        assert count > 1
        found = as_placed(Tier(code, targets, hosts), BUSY)
        assert found.groups == count
        for first in range(count):
            hit = {domain_key(c.target, c.domain, LEVELS[2]) for c in ordered[first::count]}
            assert abs(len(hit) - found.group.domains) <= 1


def test_any_of_the_groups_may_be_the_one_that_loses() -> None:
    busy = replace(BUSY, permanent=0.5, step_life_s=864_000.0)
    placed = as_placed(LARGE, busy)
    in_one = loss_chance(placed.group, hazards_of(placed.group, busy, LARGE.target_bytes))
    assert 0.01 < in_one < 0.99
    assert placed.loss_chance == pytest.approx(1 - (1 - in_one) ** 42)


def test_few_groups_can_lose_data_together() -> None:
    """What copysets are for: a million payloads anywhere make every triple deadly."""
    placed, spread = as_placed(LARGE, BUSY), at_random(LARGE, BUSY)
    assert placed.groups == 42
    assert spread.loss_chance > 100 * placed.loss_chance
    few = replace(LARGE, payloads=10)
    assert at_random(few, BUSY).loss_chance < 1e-3 * spread.loss_chance


def test_three_copies_store_twice_as_much_and_lose_no_less() -> None:
    copies = replicated(LARGE, BUSY)
    assert copies is not None
    assert (copies.overhead, as_placed(LARGE, BUSY).overhead) == (3.0, 1.5)
    assert copies.loss_chance > as_placed(LARGE, BUSY).loss_chance
    assert replicated(Tier(Code(1, 1), 2, 2), BUSY) is None


def test_larger_groups_heal_sooner_and_can_be_lost_in_more_ways() -> None:
    """Which of them wins is the rate's: without any, small groups do."""
    resting = by_group_size(LARGE, BUSY)
    assert [each.rebuild_s for each in resting] == [None] * len(resting)
    chances = [each.loss_chance for each in resting]
    assert chances == sorted(chances)
    healing = by_group_size(LARGE, replace(BUSY, rebuild_rate=200e6, step_life_s=1e9))
    times = [each.rebuild_s or 0.0 for each in healing]
    assert times == sorted(times, reverse=True)
    assert [each.name for each in healing if "as it is" in each.name] == ["24 (as it is)"]


def test_a_lost_target_is_made_again_by_its_group() -> None:
    group = PlacementGroup(Code(4, 2), 24, 1)
    conditions = replace(BUSY, rebuild_rate=1e9, rebuild_after_s=300.0)
    assert rebuild_s(group, conditions, 10**12, lost=1) == pytest.approx(300 + 5e12 / 23e9)
    assert rebuild_s(group, BUSY, 10**12, lost=1) is None
    alone = PlacementGroup(Code(1, 0), 1, 1)
    assert rebuild_s(alone, conditions, 10**12, lost=1) is None, "nobody is left to do it"
    assert hazards_of(group, BUSY, 10**12).target_return == pytest.approx(1 / 8766)
    both = hazards_of(group, conditions, 10**12).target_return
    assert 1 / both == pytest.approx(8766 + outlook.YEAR_S / (300 + 5e12 / 23e9))


def test_nothing_made_again_and_steps_that_stay_is_worse_than_steps_that_pass() -> None:
    day, hour = replace(BUSY, step_life_s=86_400.0), BUSY
    assert as_placed(LARGE, day).loss_chance > 100 * as_placed(LARGE, hour).loss_chance
    healed = as_placed(LARGE, replace(day, rebuild_rate=1e9))
    assert healed.loss_chance < as_placed(LARGE, day).loss_chance


def test_away_is_counted_as_an_enumeration_does() -> None:
    conditions = replace(BUSY, failures=300.0, domain_failures=50.0, permanent=0.0)
    found = at_random(Tier(Code(2, 1), 6, 3), conditions)
    back = 3600 / outlook.YEAR_S
    target, domain = (rate * back / (1 + rate * back) for rate in (300.0, 50.0))
    chance = 0.0
    for gone in product((False, True), repeat=9):
        targets, domains = gone[:6], gone[6:]
        hit = sum(domains[d] or targets[2 * d] or targets[2 * d + 1] for d in range(3))
        if hit > 1:
            odds = [target if one else 1 - target for one in targets]
            odds += [domain if one else 1 - domain for one in domains]
            chance += math.prod(odds)
    assert found.away_chance == pytest.approx(chance, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"permanent": 1.5}, "share"),
        ({"failures": -1.0}, "0 or more"),
        ({"step_life_s": 0.0}, "longer than 0"),
    ],
)
def test_conditions_that_cannot_be_are_refused(change: dict[str, float], text: str) -> None:
    with pytest.raises(Refused, match=text):
        replace(BUSY, **change)
    with pytest.raises(Refused, match="9 domains of 8 targets"):
        Tier(Code(4, 2), 8, 9)


@pytest.mark.parametrize(
    ("code", "targets", "domains", "max_per_domain", "survivable"),
    [
        ("4+2", 9, 8, 1, 2),  # One more target than hosts: on one of them there are two.
        ("4+2", 10, 9, 1, 2),
        ("6+2", 12, 8, 1, 2),
        ("6+2", 15, 8, 1, 2),
        ("3+1", 4, 3, 2, 1),  # Two columns in one domain, for want of another.
        ("8+4", 1100, 128, 1, 4),
    ],
)
def test_domains_of_unlike_size_count_as_many_as_there_are(
    code: str, targets: int, domains: int, max_per_domain: int, survivable: int
) -> None:
    group = placed_group(Tier(Code.parse(code), targets, domains, max_per_domain))
    assert group.loss_max == survivable
    assert group.domains == min(domains, round(targets / group_count(group.code, targets)))
