"""The last of each target's space is kept: saves that begin see targets without it."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from ckpt.base.ids import Epoch, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.seating import Candidate, Seating
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


def candidates(members: Membership, share: float, *, last_resort: bool) -> list[Candidate]:
    """All targets as placement sees them, without this share of each."""
    found = candidates_of(members, last_resort=last_resort)
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

    def load_changed(self, target: TargetId) -> None:
        """Its `load_bytes` is another one."""
        self._changed.add(target)

    def look_again(self) -> None:
        """Targets have other space than they said last."""
        self._seating = None

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
