"""In which placement group is each target, while targets come and go?

A payload stays inside one group, and what is lost of it is made again there (placement.py). As long
as nothing is kept anybody may be in any group. From then on a target stays in its own: who would be
dealt out again would have partners in two groups, and twice as many sets of targets could lose data
together.

    comes                     into the group that has fewest of its domains, then fewest targets
    a group is twice as large as it must be      is cut in two: no target gets a new partner
    a group is less than half as large           its targets come again
    one is left, or two new ones would be too small    there are no groups

Equal arguments give equal groups, in whatever order targets come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ckpt.base.ids import Domain, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.placement import LEVELS, domain_key
from ckpt.plan.seating import group_count, group_targets_min

Groups = dict[TargetId, int]
"""The number of each target's group; empty: there is one for all."""


def regrouped(
    code: Code, known: Mapping[TargetId, int], targets: Mapping[TargetId, Domain]
) -> Groups:
    """The groups of these targets, of which some had one before."""
    least = group_targets_min(code)
    ordered = sorted(targets, key=lambda id: (targets[id], id))
    found = {id: known[id] for id in ordered if id in known}
    sizes = Counter(found.values())
    found = {id: number for id, number in found.items() if 2 * sizes[number] >= least}
    if not found:
        count = group_count(code, len(ordered))
        return {id: i % count for i, id in enumerate(ordered)} if count > 1 else {}
    dealt = _Dealt(found, targets)
    for id in ordered:
        if id not in found:
            dealt.add(id)
    groups = _halved(dealt.groups, ordered, least)
    return groups if len(set(groups.values())) > 1 else {}


class _Dealt:
    """I deal out those that come, one after the other."""

    def __init__(self, groups: Groups, targets: Mapping[TargetId, Domain]) -> None:
        self.groups = dict(groups)
        self._targets = targets
        #: How many targets of each domain, and how many in all, are in each group.
        self._held: Counter[tuple[int, object]] = Counter()
        for id, number in groups.items():
            self._note(id, number)

    def add(self, id: TargetId) -> None:
        keys = self._keys(id)
        numbers = sorted(set(self.groups.values()))
        best = min(numbers, key=lambda n: (*(self._held[n, key] for key in keys), n))
        self.groups[id] = best
        self._note(id, best)

    def _note(self, id: TargetId, number: int) -> None:
        self._held.update((number, key) for key in self._keys(id))

    def _keys(self, id: TargetId) -> list[object]:
        """Its domains, the widest first as that counts most; at last all targets."""
        return [*(domain_key(id, self._targets[id], level) for level in LEVELS[:0:-1]), None]


def _halved(groups: Groups, ordered: Iterable[TargetId], least: int) -> Groups:
    """No group is twice as large as it must be: its targets are dealt out in two."""
    found = dict(groups)
    by_number: dict[int, list[TargetId]] = {}
    for id in ordered:
        by_number.setdefault(found[id], []).append(id)
    large = sorted(number for number, some in by_number.items() if len(some) >= 2 * least)
    free = max(by_number) + 1
    while large:
        number = large.pop()
        some = by_number.pop(number)
        for part, into in ((some[::2], number), (some[1::2], free)):
            by_number[into] = part
            found.update(dict.fromkeys(part, into))
            if len(part) >= 2 * least:
                large.append(into)
        free += 1
    return found
