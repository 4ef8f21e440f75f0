"""All targets as placement sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.plan.placement import domain_key
from ckpt.plan.seating import NO_GROUP, Candidate
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState
from ckpt.protocol.coordinator.policy import SpreadRule

LAST_LOAD_BYTES: Final = PAYLOAD_BYTES_MAX << 8
"""The load that a failing target seems to have: placement takes the least loaded first."""


def candidates_of(
    members: Membership, *, last_resort: bool = False, among: Iterable[Target] | None = None
) -> list[Candidate]:
    """For columns; `among` some or all. Targets that do not count, or are to be emptied, keep their
    seat but take nothing. Those whose device fails take something as a last resort only, after all
    others.
    """
    return [
        Candidate(
            target=t.id,
            boot=t.boot,
            domain=t.domain,
            device=str(t.domain),
            bytes_free=t.device_bytes_free,
            own_bytes_free=t.bytes_free,
            load_bytes=t.load_bytes + LAST_LOAD_BYTES * t.is_failing,
            live=t.state is TargetState.LIVE and t.stays and (last_resort or not t.is_failing),
            slow=t.slowness.holds(members.now_us),
            group=members.groups.get(t.id, NO_GROUP),
        )
        for t in (members.all() if among is None else among)
    ]


def document_candidates(members: Membership, *, last_resort: bool) -> list[Candidate]:
    """For small documents: one that was slow comes last for longer than for columns."""
    known = candidates_of(members, last_resort=last_resort)
    doubted = {t.id for t in members.all() if t.slowness.is_doubted(members.now_us)}
    if not doubted:
        return known
    return [replace(c, slow=c.target in doubted) for c in known]


def few_domains(targets: Iterable[Target], wanted: int, rule: SpreadRule) -> str:
    """In how few domains these are; empty where so many columns of a payload find places there."""
    counts = Counter(domain_key(one.id, one.domain, rule.level) for one in targets)
    most = rule.max_per_domain
    if sum(min(most, count) for count in counts.values()) >= wanted:
        return ""
    domains = f"{len(counts)} {rule.level}{'' if len(counts) == 1 else 's'}"
    columns = f"{most} column{'' if most == 1 else 's'}"
    return f" in {domains}, with at most {columns} of a payload in each"
