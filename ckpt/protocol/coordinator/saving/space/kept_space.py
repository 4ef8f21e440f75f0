"""The last of each target's space is kept: saves that begin see targets without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from ckpt.base.ids import Epoch, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.seating import Candidate, Seating, group_numbers
from ckpt.protocol.coordinator.cluster.candidates import candidates_of
from ckpt.protocol.coordinator.cluster.membership import Membership, Target

VIEW_US: Final = 50_000
"""Targets say each RENEW_US what space they have: a look at all of them is as good for so long."""
VIEW_TARGETS_MIN: Final = 64
"""Fewer are looked at for each payload."""


def kept_bytes(target: Target, share: float) -> int:
    """This share of what it may use; 0 while it has not said that."""
    return int(share * usable_bytes(target))


def usable_bytes(target: Target) -> int:
    """What it may use in all; 0 while it has not said that."""
    return target.counters.get("usable_bytes", 0)


def candidates(
    members: Membership, share: float, *, last_resort: bool, among: Iterable[Target] | None = None
) -> list[Candidate]:
    """All targets, or some, as placement sees them, without this share of each."""
    found = candidates_of(members, last_resort=last_resort, among=among)
    return [_without(one, members.targets[one.target], share) for one in found]


def _without(candidate: Candidate, target: Target, share: float) -> Candidate:
    usable = usable_bytes(target)
    if not usable:
        return candidate
    kept, own = kept_bytes(target, share), candidate.own_bytes_free
    return replace(
        candidate,
        bytes_free=candidate.bytes_free - kept,
        own_bytes_free=None if own is None else own - kept,
        usable_bytes=usable - kept,
    )


class SeatView:
    """I look at all targets once for many payloads, and keep up with the loads that they give."""

    def __init__(self, members: Membership, share: float) -> None:
        """`share`: of each target's space, that saves which begin do not get."""
        self._members = members
        self._share = share
        self._seating: Seating | None = None
        self._epoch = Epoch(0)
        self._seen_us = 0
        #: Whose loads have changed since.
        self._changed: set[TargetId] = set()
        #: Of which roster, groups and code the groups are; what these are; who is in each.
        self._grouped: object = None
        self._numbers: Mapping[TargetId, int] = {}
        self._groups: dict[int, list[TargetId]] = {}

    def load_changed(self, target: TargetId) -> None:
        """Its `load_bytes` is another one."""
        self._changed.add(target)

    def look_again(self) -> None:
        """Targets have other space than they said last."""
        self._seating = None

    def home(self, code: Code, holders: Iterable[TargetId]) -> list[Target]:
        """The group in which most of these are; empty where one group has all targets."""
        members = self._members
        seen = members.roster, members.groups, code
        if self._grouped != seen:
            self._grouped = seen
            self._numbers = group_numbers(code, candidates_of(members))
            self._groups = {}
            for id, number in self._numbers.items():
                self._groups.setdefault(number, []).append(id)
        if len(self._groups) < 2:
            return []
        held = Counter(self._numbers[id] for id in holders if id in self._numbers)
        if not held:
            return []
        number = max(held, key=lambda one: (held[one], -one))
        return [members.targets[id] for id in self._groups[number]]

    def seating(self, code: Code, now_us: int) -> Seating:
        """Targets as they are now, without those whose device fails."""
        found, targets = self._seating, self._members.targets
        is_old = now_us - self._seen_us >= VIEW_US or self._epoch != self._members.epoch
        if found is None or found.code != code or is_old or len(targets) < VIEW_TARGETS_MIN:
            found = Seating(code, candidates(self._members, self._share, last_resort=False))
            self._seating, self._epoch, self._seen_us = found, self._members.epoch, now_us
        else:
            for id in self._changed:
                found.load(id, targets[id].load_bytes)
        self._changed.clear()
        return found
