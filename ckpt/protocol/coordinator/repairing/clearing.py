"""Room for what is to be made again, where every target that may take it is full.

    no place --some may take it but for room--> evict what was drained, the oldest first
        |                                           | nothing may go, or not enough
        |                                           v
        `-- none may take it: nothing goes      give back space that stands for the next saves,
                                                the longest idle first --none is there--> it waits

One target is cleared at a time, the one that costs least. A save that was let in keeps its space
(P6). Of a step that a store has nothing goes for its repair but what is older. What goes is not
free at once: whoever asked tries again after a rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import NoSpace
from ckpt.base.ids import ColumnNumber, PayloadId, TargetId
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.policy import SpreadRule
from ckpt.protocol.coordinator.saving.allotment import Allotment
from ckpt.protocol.coordinator.saving.standing import StandingSpace

NO_ROOM: Final = "no target that its domains allow has room for it"
NAMED_MAX: Final = 3
"""So many full targets are named in one sentence."""
LOOKED_AT_MAX: Final = 16
"""Of the full targets, those that have most room are looked at."""


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why a payload waits."""

    reason: str
    comes: bool = False
    """Room is being made."""


class Clearing:
    """I say why a column has no place, and make one where that is allowed."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, evictor: Evictor,
        standing: StandingSpace, rule: SpreadRule,
    ) -> None:  # fmt: skip
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._evictor = evictor
        self._standing = standing
        self._rule = rule

    def may_take(
        self, allotment: Allotment, column: ColumnNumber, own: TargetId | None
    ) -> list[TargetId]:
        """But for room; `own`: who may write over what it has."""
        taken = {place.target for place in allotment.places} | allotment.asked_spares
        others = [id for j, id in allotment.intended.items() if j != column]
        held = Counter(map(self.domain_of, filter(self._members.targets.__contains__, others)))
        free = [
            target.id
            for target in self._members.live()
            if target.stays
            and not target.is_failing
            and target.id not in taken
            and target.id not in others
            and self._is_full(allotment, target.id)
            and held[self.domain_of(target.id)] < self._rule.max_per_domain
        ]
        return free if own is None else [*free, own]

    def clear(self, payload: PayloadId, size: int, full: Iterable[TargetId]) -> NoPlace:
        """Why there is no place for so many bytes on any of these; and make one, if it may be."""
        targets, checkpoint = self._members.targets, self._checkpoints.get(payload.checkpoint)
        by_room = sorted(full, key=lambda id: (-targets[id].bytes_free, id))
        if not by_room or checkpoint is None:
            return NoPlace(NO_ROOM)
        more = f" and {len(by_room) - NAMED_MAX} more" if len(by_room) > NAMED_MAX else ""
        reason = f"no room on {', '.join(by_room[:NAMED_MAX])}{more}"
        looked_at = by_room[:LOOKED_AT_MAX]
        if self._evictor.is_settling:
            return NoPlace(f"{reason}: what was drained is going", comes=True)
        cleared = self._evictor.clear(looked_at, size, checkpoint)
        if cleared is not None:
            return NoPlace(f"{reason}: what was drained goes from {cleared}", comes=True)
        given = self._standing.drop_on(looked_at, size)
        if given is not None:
            return NoPlace(
                f"{reason}: {given} gives back what stood for the next saves", comes=True
            )
        return NoPlace(reason)

    @staticmethod
    def _is_full(allotment: Allotment, target: TargetId) -> bool:
        """Who was not asked has said before that it has no room."""
        refusal = allotment.refused.get(target)
        return refusal is None or refusal.code == NoSpace.code

    def domain_of(self, target: TargetId) -> tuple[str, ...]:
        """Of the level that the rule counts."""
        return domain_key(target, self._members.targets[target].domain, self._rule.level)
