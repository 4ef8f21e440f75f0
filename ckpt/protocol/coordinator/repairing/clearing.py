"""Room for what is to be made again, where every target that may take it is full.

    no place --some may take it but for room--> evict what was drained, the oldest first
        |                                           | nothing may go, or not enough
        |                                           v
        `-- none may take it: nothing goes      give back space that stands for the next saves,
                                                the longest idle first --none is there--> it waits

The target that costs least is cleared. As it takes a while until what goes is free, more goes with
it for what else is due: so much as repair makes again before it may ask for the next room, at its
cap or at the rate that it goes at, and never more than is due. A save that was let in keeps its
space (P6). Of a step that a store has nothing goes for its repair but what is older. Whoever asked
tries again after a rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import NoSpace
from ckpt.base.ids import CheckpointId, ColumnNumber, TargetId
from ckpt.base.units import counted
from ckpt.erasure.code import Code
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.cluster.devices import has_no_inodes
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.evicting import DueColumns, Evictor, RoomWanted
from ckpt.protocol.coordinator.policy import SpreadRule
from ckpt.protocol.coordinator.repairing.context import RepairContext
from ckpt.protocol.coordinator.repairing.lacking import LackingPayload
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.coordinator.saving.space.standing import StandingSpace

NO_ROOM: Final = "no target that its domains allow has room for it"
NAMED_MAX: Final = 3
"""So many full targets are named in one sentence."""
LOOKED_AT_MAX: Final = 16
"""Of the full targets, those that have most room are looked at."""
AT_ONCE_S: Final = 20.0
"""Room is made for as long a time: twice as long as until somebody may ask for more."""


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

    def clear(
        self, id: CheckpointId, size: int, full: Iterable[TargetId],
        wanted: Callable[[], RoomWanted] = RoomWanted,
    ) -> NoPlace:  # fmt: skip
        """Why there is no place for so many bytes of a checkpoint on any of these; and make one, if
        it may be, and places for what else is due.
        """
        targets, checkpoint = self._members.targets, self._checkpoints.get(id)
        by_room = sorted(full, key=lambda id: (-targets[id].bytes_free, id))
        if not by_room or checkpoint is None:
            return NoPlace(self.no_place(id))
        more = f" and {len(by_room) - NAMED_MAX} more" if len(by_room) > NAMED_MAX else ""
        reason = f"no room on {', '.join(by_room[:NAMED_MAX])}{more}"
        looked_at = [id for id in by_room if not has_no_inodes(targets[id])][:LOOKED_AT_MAX]
        if not looked_at:
            return NoPlace(f"{reason}: no inodes are left there for more files")
        if self._evictor.is_settling:
            return NoPlace(f"{reason}: what was drained is going", comes=True)
        cleared = self._evictor.clear(looked_at, size, checkpoint, wanted)
        if cleared is not None:
            return NoPlace(f"{reason}: what was drained goes from {cleared}", comes=True)
        given = self._standing.drop_on(looked_at, size, lambda: wanted().bytes_in_all)
        if given is not None:
            return NoPlace(
                f"{reason}: {given} gives back what stood for the next saves", comes=True
            )
        return NoPlace(reason)

    def no_place(self, id: CheckpointId) -> str:
        """Why none is left for its columns."""
        checkpoint = self._checkpoints.get(id)
        return NO_ROOM if checkpoint is None else NO_ROOM + self._lack(checkpoint.code)

    def wanted(self, due: Iterable[LackingPayload], bytes_per_s: float) -> RoomWanted:
        """For what is due and has no place, at the rate at which that is made again."""
        found: dict[CheckpointId, DueColumns] = {}
        for one in due:
            id = one.payload.checkpoint
            checkpoint = self._checkpoints.get(id)
            if one.is_move or checkpoint is None or checkpoint.placement is None:
                continue
            layout = checkpoint.placement[one.payload.rank].layout
            size = len(one.columns) * file_bytes(layout, manifest_bytes_bound(layout))
            known = found[id].file_bytes if id in found else 0
            found[id] = DueColumns(id, one.committed_at_s, one.stored, known + size)
        return RoomWanted(tuple(found.values()), round(bytes_per_s * AT_ONCE_S))

    def _lack(self, code: Code) -> str:
        """Which are too few: targets, or the domains that columns are spread over."""
        here = [target for target in self._members.live() if target.stays]
        if len(here) < code.n:
            return f": {counted(len(here), 'target', 'is', 'are')} live, {code} needs {code.n}"
        most, level = self._rule.max_per_domain, self._rule.level
        domains = Counter(self.domain_of(target.id) for target in here)
        if sum(min(most, count) for count in domains.values()) < code.n:
            each = f", with {most} columns in each" if most > 1 else ""
            return f": targets are live in {counted(len(domains), level)}, {code} needs more{each}"
        return ""

    @staticmethod
    def _is_full(allotment: Allotment, target: TargetId) -> bool:
        """Who was not asked has said before that it has no room."""
        refusal = allotment.refused.get(target)
        return refusal is None or refusal.code == NoSpace.code

    def domain_of(self, target: TargetId) -> tuple[str, ...]:
        """Of the level that the rule counts."""
        return domain_key(target, self._members.targets[target].domain, self._rule.level)


def clearing_of(context: RepairContext) -> Clearing:
    """Who makes room for what that one hands out."""
    return Clearing(
        context.desk, context.members, context.checkpoints, context.evictor,
        context.reserver.standing, context.policy.spread,
    )  # fmt: skip
