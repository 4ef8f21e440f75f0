"""How much may a generation lose before it cannot be read?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ckpt.base.ids import Domain, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.placement import Level, Survivable, survivable


@dataclass(frozen=True, slots=True)
class Redundancy:
    """What a checkpoint could lose at this moment; negative `targets` means that it
    cannot be read now.
    """

    targets: int
    domains: int
    columns_missing: int


GONE: Final = Redundancy(-1, 0, 0)
"""That of a home that is gone, and of what is not placed yet."""


def redundancy_of(
    code: Code,
    payloads: Iterable[tuple[TargetId | None, ...]],
    domains: Mapping[TargetId, Domain],
    level: Level,
) -> Redundancy:
    """payloads: who holds each column of each; None for one that does not count. Many payloads lie
    on the same targets: these are looked at once.
    """
    chances: dict[tuple[TargetId | None, ...], Survivable] = {}
    missing = 0
    for columns in payloads:
        missing += columns.count(None)
        if columns not in chances:
            placed = [None if id is None else domains[id] for id in columns]
            chances[columns] = survivable(code, placed, level)
    spare = min((len(columns) - columns.count(None) - code.k for columns in chances), default=0)
    domains_left = min((chance.domains for chance in chances.values()), default=0)
    return Redundancy(spare, domains_left, missing)
