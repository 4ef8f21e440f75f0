"""Which targets does a drill do without? Named ones, a domain's, the worst domain's, some drawn.

Nothing here asks anybody: targets and where they stand are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import Domain, TargetId
from ckpt.base.near import did_you_mean
from ckpt.plan.placement import Level, check_level, domain_key

Domains = Mapping[TargetId, Domain]
"""All targets, with the failure domain of each."""


@dataclass(frozen=True, slots=True)
class SupposedLoss:
    """Targets that are supposed to be gone."""

    what: str
    """For people: `t1, t2`, `host h3`, `2 targets at random`."""
    targets: frozenset[TargetId]


def of_names(text: str, domains: Domains) -> SupposedLoss:
    """`t1,t2`. Raises Refused when none is named, NotFound for an unknown name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise Refused("--lose names no target", hint="such as --lose t1,t2; see ckpt status")
    for name in names:
        if name not in domains:
            known = ", ".join(sorted(domains))
            hint = did_you_mean(name, domains, f"there are {known}")
            raise NotFound(f"there is no target {name!r}", hint=hint)
    targets = frozenset(map(TargetId, names))
    return SupposedLoss(", ".join(sorted(targets)), targets)


def of_domain(text: str, domains: Domains) -> SupposedLoss:
    """`rack=r1`, or with the domain around it, `rack=p1/r1`. Raises Refused when that is ambiguous,
    NotFound when there is none.
    """
    level_text, equals, name = text.partition("=")
    if not (equals and name):
        raise Refused(
            f"{text!r} is not of the form LEVEL=NAME",
            hint="such as --lose-domain rack=r1; ckpt status shows where targets stand",
        )
    level = check_level(level_text)
    found: dict[str, set[TargetId]] = {}
    for target, domain in domains.items():
        key = domain_key(target, domain, level)
        if name in (key[-1], "/".join(key)):
            found.setdefault("/".join(key), set()).add(target)
    if not found:
        known = sorted({domain_key(*one, level)[-1] for one in domains.items()})
        hint = did_you_mean(name, known, f"there are {', '.join(known)}")
        raise NotFound(f"there is no {level} {name!r}", hint=hint)
    if len(found) > 1:
        places = " and ".join(sorted(found))
        raise Refused(
            f"there are {len(found)} domains {text}: {places}",
            hint=f"say which: --lose-domain {level}={min(found)}",
        )
    ((place, targets),) = found.items()
    return SupposedLoss(f"{level} {place}", frozenset(targets))


def together(losses: Sequence[SupposedLoss]) -> SupposedLoss:
    """All of these losses at once."""
    every = frozenset[TargetId]().union(*(loss.targets for loss in losses))
    return SupposedLoss(", ".join(loss.what for loss in losses), every)


def worst_domain(
    columns: Iterable[Sequence[TargetId | None]], domains: Domains, level: Level
) -> SupposedLoss:
    """The domain that holds most columns of one payload; among equals the one that holds most in
    all, then the first by name. `columns`: of each payload, by target.
    """
    most = Counter[str]()
    every = Counter[str]()
    members: dict[str, set[TargetId]] = {}
    for target, domain in domains.items():
        members.setdefault("/".join(domain_key(target, domain, level)), set()).add(target)
    place_of = {target: place for place, targets in members.items() for target in targets}
    for payload in columns:
        held = Counter(place_of[target] for target in payload if target in place_of)
        every.update(held)
        most |= held
    worst = min(members, key=lambda place: (-most[place], -every[place], place))
    return SupposedLoss(f"the worst {level}, {worst}", frozenset(members[worst]))


def at_random(held: Iterable[TargetId], count: int, seed: int) -> SupposedLoss:
    """So many of the targets that hold something, or all of them; one seed always gives the
    same.
    """
    known = sorted(set(held))
    drawn = Random(seed).sample(known, min(count, len(known)))
    noun = "target" if len(drawn) == 1 else "targets"
    return SupposedLoss(f"{len(drawn)} {noun} at random, seed {seed}", frozenset(drawn))
