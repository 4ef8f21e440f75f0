"""What a year may cost a whole cluster: its placement groups, beside other ways to place.

Redundancy returns after a loss when the columns were made again (`rebuild_rate`; 0 where nothing
makes them), or when no step needs them any more: a later one was saved, or it was drained
(`step_life_s`). Both are taken as times without memory, so their rates add up.

A group of G targets makes what one of them had again together: (k + 1) bytes are read or written
for each byte that was lost, by G - 1 targets. Large groups heal sooner; small ones have fewer sets
of targets whose loss is deadly (Cidon et al., "Copysets: Reducing the Frequency of Data Loss in
Cloud Storage", USENIX ATC 2013). `by_group_size` shows that trade.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckpt.plan.durability.group import Hazards, PlacementGroup
from ckpt.plan.durability.markov import loss_chance
from ckpt.plan.seating import group_count

YEAR_S: Final = 365.25 * 86_400
REPLICAS: Final = Code(1, 2)
"""Three whole copies."""
TARGETS_MAX: Final = 1 << 16
"""A chain of more targets takes minutes to solve."""
GROUP_SIZES: Final = (12, 24, 48, 96, 192, 384)


class Tier(Struct, frozen=True, gc=False):
    """Targets, and what lies on them."""

    code: Code
    targets: int
    domains: int
    """Failure domains at the level that the placement spreads over."""
    max_per_domain: int = 1
    payloads: float = 1000.0
    """At once in the tier: ranks, times the steps that it keeps."""
    target_bytes: int = 0
    """On one target."""

    def __post_init__(self) -> None:
        if self.targets > TARGETS_MAX:
            raise Refused(f"{self.targets} targets: at most {TARGETS_MAX} are reckoned with")
        if not 1 <= self.domains <= self.targets:
            raise Refused(f"{self.domains} domains of {self.targets} targets: 1 to {self.targets}")


class Conditions(Struct, frozen=True, gc=False):
    """How often what fails, and how long until redundancy is back."""

    failures: float
    """Of one target a year, whatever the cause."""
    domain_failures: float
    """Of one domain with all its targets, a year."""
    permanent: float
    """The share of both that costs the bytes, from 0 to 1; after the others they are back."""
    return_s: float
    """Mean time until a target that failed is back with its bytes."""
    step_life_s: float
    """Mean time for which a step is needed in the tier."""
    rebuild_rate: float = 0.0
    """Bytes a second that each target reads or writes to make lost columns again; 0: none are."""
    rebuild_after_s: float = 0.0
    """From a loss until that begins."""

    def __post_init__(self) -> None:
        numbers = (self.failures, self.domain_failures, self.rebuild_rate, self.rebuild_after_s)
        if not all(map(math.isfinite, (*numbers, self.return_s, self.step_life_s))):
            raise Refused("rates and times are finite numbers")
        if min(numbers) < 0 or not 0 <= self.permanent <= 1:
            raise Refused("rates and times are 0 or more, the permanent share is from 0 to 1")
        if min(self.return_s, self.step_life_s) <= 0:
            raise Refused("a return and a step's life take longer than 0")


class Outlook(Struct, frozen=True, gc=False):
    """One way to place, and what it is likely to cost."""

    name: str
    code: Code
    groups: int
    group: PlacementGroup
    """One of them; all are alike."""
    rebuild_s: float | None
    """To make again what one target had; None: nothing is made again."""
    loss_chance: float
    """That in a year some payload of some group is lost."""
    away_chance: float
    """At most: that at a moment some payload cannot be read until targets are back."""

    @property
    def overhead(self) -> float:
        """Bytes that are stored for each byte of a payload."""
        return self.group.columns / self.code.k


def as_placed(tier: Tier, conditions: Conditions) -> Outlook:
    """As ckpt.plan.placement does it."""
    return _outlook("placement groups", tier, conditions, group_count(tier.code, tier.targets))


def placed_group(tier: Tier) -> PlacementGroup:
    """One of them."""
    return _group(tier, group_count(tier.code, tier.targets))


def at_random(tier: Tier, conditions: Conditions) -> Outlook:
    """The same code, each payload anywhere in the cluster."""
    return _outlook("anywhere", tier, conditions, 1)


def replicated(tier: Tier, conditions: Conditions) -> Outlook | None:
    """Three copies, anywhere in the cluster; None where it has no room for three."""
    other = replace(
        tier, code=REPLICAS, target_bytes=int(tier.target_bytes * 3 * tier.code.k / tier.code.n)
    )
    room = tier.domains * min(tier.max_per_domain, -(-tier.targets // tier.domains))
    if room < REPLICAS.n:
        return None
    return _outlook("three copies, anywhere", other, conditions, 1)


def by_group_size(tier: Tier, conditions: Conditions) -> Sequence[Outlook]:
    """Groups from small to the whole cluster; those among them that hold a payload."""
    own = group_count(tier.code, tier.targets)
    counts = {max(1, tier.targets // size) for size in GROUP_SIZES} | {own, 1}
    found = []
    for count in sorted(counts, reverse=True):
        try:
            found.append(_outlook(_size_name(tier, count, own), tier, conditions, count))
        except Refused:  # Its groups are too small for a payload.
            continue
    return [each for each in found if each.group.columns == tier.code.n or each.groups == own]


def hazards_of(group: PlacementGroup, conditions: Conditions, target_bytes: int) -> Hazards:
    """What befalls the targets of this group."""
    target_s = rebuild_s(group, conditions, target_bytes, lost=1)
    domain_s = rebuild_s(group, conditions, target_bytes, lost=group.domain_targets)
    return Hazards(
        conditions.failures * conditions.permanent,
        conditions.domain_failures * conditions.permanent,
        _return_s(conditions, target_s) / YEAR_S,
        _return_s(conditions, domain_s) / YEAR_S,
    )


def rebuild_s(
    group: PlacementGroup, conditions: Conditions, target_bytes: int, lost: int
) -> float | None:
    """To make again what so many targets had, by the rest of the group."""
    helpers = group.targets - lost
    if not conditions.rebuild_rate or not helpers:
        return None
    moved = lost * target_bytes * (group.code.k + 1)
    return conditions.rebuild_after_s + moved / (helpers * conditions.rebuild_rate)


def _return_s(conditions: Conditions, rebuilt_s: float | None) -> float:
    ends = 1 / conditions.step_life_s
    if rebuilt_s is not None:
        ends += 1 / max(rebuilt_s, 1.0)
    return 1 / ends


def _outlook(name: str, tier: Tier, conditions: Conditions, count: int) -> Outlook:
    group = _group(tier, count)
    hazards = hazards_of(group, conditions, tier.target_bytes)
    in_one = loss_chance(group, hazards)
    away = _away_chance(group, conditions, hazards)
    return Outlook(
        name, tier.code, count, group,
        rebuild_s(group, conditions, tier.target_bytes, lost=1),
        _in_any(in_one, count), _in_any(away, count),
    )  # fmt: skip


def _group(tier: Tier, count: int) -> PlacementGroup:
    """Targets are dealt out in the order of domains: a domain's lie in as many groups as can be.
    Domains of unlike size are reckoned with as many alike ones.
    """
    in_domain = tier.targets / tier.domains / count
    payloads = tier.payloads / count
    if in_domain < 1:
        domains = min(tier.domains, max(1, round(tier.targets / count)))
        return PlacementGroup(tier.code, domains, 1, tier.max_per_domain, payloads)
    domain_targets = round(in_domain)
    if tier.domains * min(tier.max_per_domain, domain_targets) < tier.code.n:
        # The larger ones take what the others have no place for.
        domain_targets = math.ceil(in_domain)
    return PlacementGroup(tier.code, tier.domains, domain_targets, tier.max_per_domain, payloads)


def _in_any(chance: float, count: int) -> float:
    return 1.0 if chance >= 1 else -math.expm1(count * math.log1p(-chance))


def _away_chance(group: PlacementGroup, conditions: Conditions, hazards: Hazards) -> float:
    """That at a moment more of the group is away or lost than a payload may lose. Targets and
    domains are so by themselves, each for its share of the time.
    """
    back = conditions.return_s / YEAR_S * (1 - conditions.permanent)
    target = conditions.failures * back + hazards.target_losses * hazards.target_return
    domain = conditions.domain_failures * back + hazards.domain_losses * hazards.domain_return
    held = _held(group, target / (1 + target), domain / (1 + domain))
    spread = np.ones(1)
    for _ in range(group.domains):
        spread = np.convolve(spread, held)
    return min(1.0, float(spread[group.loss_max + 1 :].sum()))


def _held(group: PlacementGroup, target: float, domain: float) -> list[float]:
    """The chances that one domain takes 0, 1, … columns of a payload with it."""
    size = group.domain_targets
    held = [0.0] * (group.weight(size) + 1)
    for lost in range(size + 1):
        ways = math.comb(size, lost) * target**lost * (1 - target) ** (size - lost)
        held[group.weight(lost)] += (1 - domain) * ways
    held[-1] += domain
    return held


def _size_name(tier: Tier, count: int, own: int) -> str:
    return f"{tier.targets // count}" + (" (as it is)" if count == own else "")
