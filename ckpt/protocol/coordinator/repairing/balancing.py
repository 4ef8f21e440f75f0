"""Columns go from full devices to empty ones: when somebody says so, and from what is too full.

    asked, or a device above the mark --> some moves are planned (ckpt.plan.balancing)
       ^                                              v
       |                    due as a drain's moves are, after all else; a worker makes the copies
       |                                              v
       +--SETTLE_US later: devices have said        all named, or not to be had
          what they hold now                          |
                                                      '--no move helps, or the bound is met--> ended

A move is a task of the queue of what is made again, and nothing else: the same workers, pace, and
way of naming a copy before the old one goes. What is moved is memory of this coordinator; that it
was asked for is in the catalog, so that the next one goes on. A catalog that is made again from the
targets does not know of it.

Invariants: a balance that was asked for moves at most BOUND times what there was to move when it
began, under each coordinator; a column that is missing, rots or leaves a drained target is never
one of its moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET, UnsetType

from ckpt.base.errors import Refused
from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank, TargetId
from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.messages.balancing import BalanceTargets, DeviceShare, TargetsBalanced
from ckpt.plan.balancing import (
    TOLERANCE,
    BalanceRule,
    ColumnMove,
    DeviceFill,
    Movable,
    excess_bytes,
    is_safe,
    planned,
)
from ckpt.plan.placement import Holder
from ckpt.plan.seating import group_numbers
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.candidates import candidates_of
from ckpt.protocol.coordinator.cluster.devices import DeviceSpace, device_spaces
from ckpt.protocol.coordinator.cluster.membership import TargetState
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.coordinator.desk import Then, nothing
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.repairing.context import RepairContext
from ckpt.protocol.coordinator.repairing.rate import RepairRate
from ckpt.protocol.coordinator.repairing.ruling import RepairRuling
from ckpt.protocol.events import Session

MOVES_MAX: Final = 64
"""Most moves that are planned at a time: then devices say again how full they are."""
LOOKED_MAX: Final = 20_000
"""Payloads that one plan looks at, those of the newest checkpoint first."""
GIVEN_MAX: Final = 4 * MOVES_MAX
"""Columns of one device from which a plan chooses."""
LOOK_US: Final = 10 * US_PER_S
SETTLE_US: Final = 2 * LEASE_US
"""After the last move, until its old copy is gone and both devices have said so."""
BOUND: Final = 2
IDLE_MAX: Final = 3
"""After so many plans of which nothing could be moved a balance that was asked for ends."""
NOT_HERE: Final = "nothing is moved here (repair = false of the coordinator)"


class Balancer:
    """I say which columns move; Repairs hands them out."""

    def __init__(self, context: RepairContext, rate: RepairRate, ruling: RepairRuling) -> None:
        self._desk = context.desk
        self._members = context.members
        self._checkpoints = context.checkpoints
        self._moving = context.checkpoints.moving
        self._policy = context.policy
        self._rate = rate
        self._ruling = ruling
        bytes_max = ruling.said.balance_bytes_max
        self.is_asked = bytes_max is not UNSET
        """Somebody has asked for all devices to be about equally full."""
        self.columns_moved = 0
        """Since the last balance was asked for, or this coordinator began."""
        self.bytes_moved = 0
        #: What was asked for ends when so many bytes are moved.
        self._bytes_max = 0 if isinstance(bytes_max, UnsetType) else bytes_max
        #: Plans of which nothing was moved, one after the other; and what was moved before the
        #: plan that counts now.
        self._idle_plans = 0
        self._moved_before = 0
        #: When a plan is made next.
        self._plan_at_us = 0
        #: Copies that were moved away, until their targets have dropped them: their bytes.
        self._going: dict[tuple[TargetId, ColumnId], int] = {}

    # ----------------------------------------------------------------------- what people say

    def handle(self, session: Session, request: int, message: BalanceTargets) -> None:
        """What changes is durable when it is answered. Raises Refused where there is nothing to
        balance, or nothing can be moved, NoSpace while the catalog is full.
        """

        def answer() -> None:
            self._desk.send(session, request, self.told())

        if message.stop and self.is_asked:
            self._end("somebody has stopped it", answer)
            return
        if not message.stop and not self.is_asked:
            self._check()
            if not message.dry_run:
                self._begin(answer)
                return
        answer()

    def told(self) -> TargetsBalanced:
        """How far the balance is."""
        shelves = sorted(self._shelves(), key=lambda shelf: (-shelf.share, shelf.device))
        left = excess_bytes(shelves, self._rule())
        return TargetsBalanced(
            self.is_asked, left, self.columns_moved, self.bytes_moved, self._rate.left_s(left),
            tuple(
                DeviceShare(one.device, one.targets, one.used_bytes, one.total_bytes)
                for one in shelves
            ),
        )  # fmt: skip

    def planned(self) -> list[ColumnMove]:
        """What is planned to be moved."""
        return list(self._moving)

    def _check(self) -> None:
        if self._policy.rebuild_after_us is None:
            raise Refused(NOT_HERE, hint="start the coordinator with repair = true")
        if self._desk.no_moves is not None:
            raise self._desk.no_moves
        shelves = sorted(self._shelves(), key=lambda shelf: shelf.share)
        if len(shelves) < 2:
            where = f"all targets lie on {shelves[0].device}" if shelves else "no target is here"
            raise Refused(
                f"{where}: nothing can go to another device",
                hint="add a target on another device (ckpt target add)",
            )
        if not self._planned(self._rule()):
            least, most = shelves[0], shelves[-1]
            text = (
                f"{most.device} is {most.share:.0%} full and {least.device} {least.share:.0%}:"
                f" nothing is moved for less than {TOLERANCE:.0%}, nor what another device may"
                " not take, nor a copy of an index or a record"
            )
            raise Refused(text, hint="ckpt target ls shows what each has")

    def _begin(self, then: Then) -> None:
        self._desk.check_room()
        self.is_asked = True
        self.columns_moved = self.bytes_moved = 0
        self._idle_plans = self._moved_before = 0
        least = max((move.file_bytes for move in self._planned(self._rule())), default=0)
        self._bytes_max = BOUND * max(least, excess_bytes(self._shelves(), self._rule()))
        self._plan_at_us = self._desk.now_us
        self._desk.report("info", "targets are balanced", bytes_max=self._bytes_max)
        self._ruling.balance(self._bytes_max, then)

    def _end(self, why: str, then: Then = nothing) -> None:
        self.is_asked = False
        self._moving.clear()
        self._desk.report(
            "info", "balance has ended", why=why, columns=self.columns_moved,
            bytes=self.bytes_moved,
        )  # fmt: skip
        self._ruling.balance(UNSET, then)

    # ----------------------------------------------------------------------- in the course of time

    def tick(self) -> None:
        """Note what has moved, and plan what moves next."""
        if self._policy.rebuild_after_us is None or self._desk.no_moves is not None:
            return
        now_us = self._desk.now_us
        if self._settle_moves():
            self._plan_at_us = max(self._plan_at_us, now_us + SETTLE_US)
        self._forget_gone()
        if self._moving or now_us < self._plan_at_us:
            return
        self._plan_at_us = now_us + LOOK_US
        self._plan()

    def _plan(self) -> None:
        above = self._policy.balance_above
        is_idle = self._is_known and self.columns_moved == self._moved_before
        self._idle_plans = self._idle_plans + 1 if is_idle else 0
        self._moved_before = self.columns_moved
        if self.is_asked and self.bytes_moved >= self._bytes_max:
            self._end("it has moved all that there was to move when it began")
            return
        if self.is_asked and self._idle_plans > IDLE_MAX:
            self._end("what was planned could not be moved: see ckpt repair")
            return
        rule = self._rule() if self.is_asked else self._rule(above or 1.0)
        if not self.is_asked and (above is None or not self._is_any_above(above)):
            return
        moves = self._planned(rule)
        if self.is_asked and not moves and self._is_known:
            self._end("no move helps any more")
        for move in moves:
            self._moving.add(move)

    @property
    def _is_known(self) -> bool:
        """All that may be moved. To one that has just begun targets are about to come, and it is
        reading indexes.
        """
        committed = (c for c in self._checkpoints.all() if c.state is RowState.COMMITTED)
        known = (one.placement is not None or one.unread for one in committed)
        return not self._members.gathering and all(known)

    def _is_any_above(self, share: float) -> bool:
        return any(shelf.share > share for shelf in self._shelves())

    def _settle_moves(self) -> bool:
        """Those that are done, or not to be done any more, are moves no more. Whether any was
        done."""
        is_any = False
        for move in list(self._moving):
            holder = self._holder(move.column)
            if holder == move.source and self._may_go_on(move):
                continue
            self._moving.discard(move.column)
            if holder is not None and holder != move.source:
                self._going[move.source, move.column] = move.file_bytes
                self.columns_moved += 1
                self.bytes_moved += move.file_bytes
                is_any = True
        return is_any

    def _forget_gone(self) -> None:
        targets = self._members.targets
        self._going = {
            (id, column): size
            for (id, column), size in self._going.items()
            if targets[id].state is TargetState.LIVE
            and targets[id].proved.digest(column) is not None
        }

    def _holder(self, column: ColumnId) -> TargetId | None:
        """Who is named for it; None when it is kept no more."""
        checkpoint = self._checkpoints.get(column.payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return None
        if checkpoint.state is not RowState.COMMITTED:
            return None
        return checkpoint.placement[column.payload.rank].columns[column.column]

    def _may_go_on(self, move: ColumnMove) -> bool:
        """Both are here and stay, its payload lacks nothing and survives as much there."""
        checkpoint = self._checkpoints.get(move.column.payload.checkpoint)
        assert checkpoint is not None
        targets = self._members.targets
        both = targets.get(move.source), targets.get(move.destination)
        if any(one is None or one.state is not TargetState.LIVE or not one.stays for one in both):
            return False
        if targets[move.destination].is_failing:
            return False
        one = self._movable(checkpoint, move.column.payload.rank, move.column.column)
        domain, source = targets[move.destination].domain, targets[move.source].domain
        return one is not None and is_safe(one, move.destination, domain, self._rule(), source)

    # ----------------------------------------------------------------------- what there is

    def _rule(self, above: float = 0.0) -> BalanceRule:
        groups = group_numbers(self._policy.code, candidates_of(self._members))
        spread = self._policy.spread
        return BalanceRule(spread.level, spread.max_per_domain, groups, above)

    def _shelves(self) -> list[DeviceFill]:
        """Of the devices that have said how much they may take, and that a balance is about: what
        leaves a target which is drained, out or failing goes by itself, and nothing comes.
        """
        spaces = [one for one in device_spaces(self._members.live()) if one.usable_bytes > 0]
        return [self._shelf(one) for one in spaces if any(map(self._takes, one.targets))]

    def _shelf(self, space: DeviceSpace) -> DeviceFill:
        free = space.free_bytes + space.reserved_bytes
        going = sum(size for (id, _), size in self._going.items() if id in space.targets)
        used = max(0, space.usable_bytes - free - going)
        stay = [id for id in space.targets if self._takes(id)]
        left = 0 if space.is_shut else space.left_bytes(self._policy.spread.repair_share)
        return DeviceFill(
            str(space.domain), tuple(stay), space.domain, used, space.usable_bytes, max(0, left)
        )

    def _takes(self, id: TargetId) -> bool:
        target = self._members.targets[id]
        return target.stays and not target.is_failing

    def _planned(self, rule: BalanceRule) -> list[ColumnMove]:
        shelves = self._shelves()
        least = min((shelf.share for shelf in shelves), default=0.0)
        givers = {
            id: shelf.device
            for shelf in shelves
            if shelf.share > rule.above and shelf.share - least >= TOLERANCE
            for id in shelf.targets
        }
        if not givers:
            return []
        return planned(shelves, self._movables(givers), rule, MOVES_MAX)

    def _movables(self, givers: dict[TargetId, str]) -> Iterator[Movable]:
        """Columns on these, by their device: those of the newest checkpoints, which stay longest
        under most rules."""
        left = dict.fromkeys(givers.values(), GIVEN_MAX)
        kept = [one for one in self._checkpoints.all() if one.state is RowState.COMMITTED]
        kept.sort(key=lambda one: (one.info.committed_at_s, one.id), reverse=True)
        looked = 0
        for checkpoint in kept:
            for rank, placed in (checkpoint.placement or {}).items():
                looked += 1
                if looked > LOOKED_MAX or not any(left.values()):
                    return
                for j, id in enumerate(placed.columns):
                    if id is None or not left.get(givers.get(id, ""), 0):
                        continue
                    one = self._movable(checkpoint, rank, ColumnNumber(j))
                    if one is not None:
                        left[givers[id]] -= 1
                        yield one

    def _is_well(self, column: ColumnId, holder: TargetId) -> bool:
        """It stays where it is, were it not for the balance."""
        target = self._members.targets[holder]
        return target.stays and column not in rotten_columns(target)

    def _movable(
        self, checkpoint: KeptCheckpoint, rank: Rank, column: ColumnNumber
    ) -> Movable | None:
        """None while its payload lacks anything, or something else is done with it."""
        assert checkpoint.placement is not None
        placed, payload = checkpoint.placement[rank], PayloadId(checkpoint.id, rank)
        holders = {j: id for j, id in enumerate(placed.columns) if id is not None}
        if len(self._checkpoints.columns_now(checkpoint, rank)) < checkpoint.code.n:
            return None
        if not all(self._is_well(ColumnId(payload, ColumnNumber(j)), holders[j]) for j in holders):
            return None
        layout = placed.layout
        return Movable(
            ColumnId(payload, column),
            holders[column],
            file_bytes(layout, manifest_bytes_bound(layout)),
            column < checkpoint.code.k,
            tuple(
                Holder(id, self._members.targets[id].domain)
                for j, id in holders.items()
                if j != column
            ),
        )
