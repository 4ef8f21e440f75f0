"""Is somebody who is away still waited for?"""

from __future__ import annotations

from ckpt.protocol.coordinator.catalog import TargetStanding
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState


def is_awaited(members: Membership, target: Target, now_us: int, after_us: int | None) -> bool:
    """Whether a target does not count, but what it has may count again, so that nobody takes its
    place yet. A target that is out is waited for only while it is about to come; others for
    `after_us` (None: always).
    """
    if target.state in (TargetState.LIVE, TargetState.REMOVED):
        return False
    if members.is_coming(target):
        return True
    if target.standing is TargetStanding.OUT:
        return False
    return after_us is None or now_us - members.away_since_us(target) < after_us
