"""Which columns go from full devices to empty ones, and where to?

Goals:
1. What a payload survives is never made less: no two columns on a target, no domain above its
   limit, and no domain of any level gets more of a payload than the one that the column leaves had.
2. It ends. A move makes the fuller device no emptier than the other one, so that the largest shares
   sink with each; and where the fullest and the emptiest differ by less than TOLERANCE nothing is
   moved.
3. Few bytes. Each move is from the fullest device that has a column to give to the emptiest that
   may take it; data before parity, which costs k columns to make; large columns first.

Targets of one device count as one. A column stays in its placement group. Equal arguments give
equal plans, in whatever order they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import ColumnId, Domain, TargetId
from ckpt.plan.placement import LEVELS, Holder, Level, domain_key

TOLERANCE: Final = 0.05
"""Share of a device's space by which devices may differ."""


@dataclass(frozen=True, slots=True)
class DeviceFill:
    """One device."""

    device: str
    targets: tuple[TargetId, ...]
    """Those there that take columns and keep them."""
    domain: Domain
    used_bytes: int
    """By whomever: what was moved away and is not freed yet is not in it."""
    total_bytes: int
    """Above 0."""
    takes_bytes: int
    """So much may be moved there."""

    @property
    def share(self) -> float:
        return self.used_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class Movable:
    """A column that may leave its target."""

    column: ColumnId
    source: TargetId
    file_bytes: int
    is_data: bool
    others: tuple[Holder, ...]
    """Of the other columns of its payload, all of which are there."""


@dataclass(frozen=True, slots=True)
class ColumnMove:
    """From here to there."""

    column: ColumnId
    source: TargetId
    destination: TargetId
    file_bytes: int


@dataclass(frozen=True, slots=True)
class BalanceRule:
    """What a plan goes by."""

    level: Level
    max_per_domain: int
    groups: Mapping[TargetId, int]
    """The placement group of each target."""
    above: float = 0.0
    """Only devices with a larger share give columns."""


@dataclass(slots=True)
class _Filling:
    """A device as it will be once what is planned is moved."""

    shelf: DeviceFill
    used_bytes: int
    takes_bytes: int
    columns: list[Movable] = field(default_factory=list)
    """The best one last."""

    @property
    def share(self) -> float:
        return self.used_bytes / self.shelf.total_bytes


def planned(
    shelves: Iterable[DeviceFill], columns: Iterable[Movable], rule: BalanceRule, moves_max: int
) -> list[ColumnMove]:
    """At most so many moves, one of a payload, in the order in which they help."""
    ordered = sorted(shelves, key=lambda shelf: shelf.device)
    fillings = [_Filling(shelf, shelf.used_bytes, shelf.takes_bytes) for shelf in ordered]
    of_target = {id: filling for filling in fillings for id in filling.shelf.targets}
    best_last = sorted(columns, key=lambda one: (one.is_data, one.file_bytes, one.column))
    for one in best_last:
        if one.source in of_target:
            of_target[one.source].columns.append(one)
    moves: list[ColumnMove] = []
    payloads = set()
    givers = [filling for filling in fillings if filling.columns]
    takers = _by_share(fillings)
    while givers and len(moves) < moves_max:
        giver = max(givers, key=lambda filling: (filling.share, filling.shelf.device))
        if giver.share <= rule.above or not giver.columns:
            givers.remove(giver)
            continue
        one = giver.columns.pop()
        if one.column.payload in payloads:
            continue
        taker = _taker(one, giver, takers, rule)
        if taker is not None:
            filling, target = taker
            moves.append(ColumnMove(one.column, one.source, target, one.file_bytes))
            payloads.add(one.column.payload)
            giver.used_bytes -= one.file_bytes
            filling.used_bytes += one.file_bytes
            filling.takes_bytes -= one.file_bytes
            takers = _by_share(fillings)
    return moves


def excess_bytes(shelves: Iterable[DeviceFill], rule: BalanceRule) -> int:
    """About how many bytes there are to move, if columns were as fine as sand and allowed
    anywhere.
    """
    of_group: dict[int, list[DeviceFill]] = {}
    for shelf in shelves:
        group = min((rule.groups.get(id, 0) for id in shelf.targets), default=0)
        of_group.setdefault(group, []).append(shelf)
    return sum(_excess(members, rule.above) for members in of_group.values())


def is_safe(column: Movable, destination: TargetId, domain: Domain, rule: BalanceRule,
    source: Domain) -> bool:  # fmt: skip
    """Whether its payload would survive as much there as it does now."""
    if any(holder.target == destination for holder in column.others):
        return False
    for level in LEVELS:
        here = domain_key(column.source, source, level)
        there = domain_key(destination, domain, level)
        if here == there:
            continue
        held = Counter(domain_key(each.target, each.domain, level) for each in column.others)
        if held[there] > held[here]:
            return False
        if level == rule.level and held[there] >= rule.max_per_domain:
            return False
    return True


# --------------------------------------------------------------------------- helpers


def _by_share(fillings: Iterable[_Filling]) -> list[_Filling]:
    return sorted(fillings, key=lambda filling: (filling.share, filling.shelf.device))


def _taker(
    one: Movable, giver: _Filling, takers: Sequence[_Filling], rule: BalanceRule
) -> tuple[_Filling, TargetId] | None:
    """The emptiest that may have it, and is no fuller afterwards than who gives it. `takers`: the
    emptiest first.
    """
    group = rule.groups.get(one.source)
    for filling in takers:
        if giver.share - filling.share < TOLERANCE:
            break
        after = (filling.used_bytes + one.file_bytes) / filling.shelf.total_bytes
        left = (giver.used_bytes - one.file_bytes) / giver.shelf.total_bytes
        if after > left or filling.takes_bytes < one.file_bytes:
            continue
        for id in sorted(filling.shelf.targets):
            fits = is_safe(one, id, filling.shelf.domain, rule, giver.shelf.domain)
            if rule.groups.get(id) == group and fits:
                return filling, id
    return None


def _excess(shelves: Sequence[DeviceFill], above: float) -> int:
    shares = [shelf.share for shelf in shelves]
    if max(shares) - min(shares) < TOLERANCE:
        return 0
    mean = sum(s.used_bytes for s in shelves) / sum(s.total_bytes for s in shelves)
    level = max(mean, above)
    return sum(max(0, round(s.used_bytes - level * s.total_bytes)) for s in shelves)
