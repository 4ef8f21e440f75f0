"""The last of each target's space is kept: saves that begin see targets without it."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.plan.seating import Candidate
from ckpt.protocol.coordinator.cluster.membership import Membership, Target


def kept_bytes(target: Target, share: float) -> int:
    """This share of what it may use; 0 while it has not said that."""
    return int(share * usable_bytes(target))


def usable_bytes(target: Target) -> int:
    """What it may use in all; 0 while it has not said that."""
    return target.counters.get("usable_bytes", 0)


def candidates(members: Membership, share: float, *, last_resort: bool) -> list[Candidate]:
    """All targets as placement sees them, without this share of each."""
    found = members.candidates(last_resort=last_resort)
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
