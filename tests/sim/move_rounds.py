"""Moves in the main campaign (phase M of the fault matrix): targets come, are drained, taken out,
taken back and removed, and columns go from full devices to empty ones, while all lives that saves
and loads; and while a column is on its way its source, its destination, the worker and the
coordinator are struck, it rots where it is read, people think otherwise, and what is lost is made
again beside it.

What I draw comes from a generator of my own, as in rebuilds.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from ckpt.base.ids import ColumnId, TargetId
from ckpt.format.messages.asking import TargetChanged
from ckpt.format.messages.balancing import TargetsBalanced
from ckpt.format.messages.hello import Failed
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.cluster.membership import TargetState
from ckpt.protocol.coordinator.repairing.balancing import MOVES_MAX
from ckpt.protocol.target.core import column_name
from tests.sim.balance_operator import BalanceOperator
from tests.sim.member_operator import MemberOperator
from tests.sim.oracles import Violation
from tests.sim.rebuilds import POLL_US, Rebuilds
from tests.sim.struck import Strike, Struck
from tests.sim.target_node import DISK_BYTES
from tests.sim.whole_again import FILE_BYTES_MAX, Disks

if TYPE_CHECKING:
    from tests.sim.world import World

MOVE_FAULTS: Final = (
    "F1 source", "F1 destination", "F7 source", "F23 destination", "F24 back", "F24 joins",
)  # fmt: skip
"""What strikes in phase M alone."""
LEAVING: Final = ("draining", "out")
ADDED_MAX: Final = 2
SMALL_BYTES: Final = 3 << 18
"""Of disks that a few steps fill unevenly enough for a balance."""
HEARD_US: Final = 90_000_000
"""So long whoever asks may wait for an answer, once faults have ended."""
BALANCED_US: Final = 600_000_000
"""So long a balance may take."""
QUIET_US: Final = 15_000_000
KNOCKS_US: Final = 3_000_000


class MoveRounds(Rebuilds):
    """I say how targets are to stand, and strike while that is done."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rng = Random(f"moves in {world.seed}")
        self._operator = MemberOperator(world.clock, world.network, world.coordinator)
        self._balance = BalanceOperator(world.clock, world.network, world.coordinator)
        #: What was asked for and is not answered, as far as is known: which target, how it is to
        #: stand, and whether that is only a question.
        self._wish: tuple[TargetId, str, bool] | None = None
        #: As it was acknowledged, of those that do not stand as they began.
        self._stands: dict[TargetId, str] = {}
        self._added = 0
        #: When the last wish comes that nothing else brings about.
        self._last_wish_us = 0
        #: All has healed for good, and nothing strikes any more.
        self._is_calm = False
        self.ends: Counter[str] = Counter()
        """How wishes ended."""
        self.moved = 0
        """Columns that were named elsewhere."""
        world.oracles.on_moved = self._has_moved

    def begin(self) -> None:
        super().begin()
        clock, rng = self._world.clock, self._rng
        self._operator.look()
        self._balance.look()
        for _ in range(rng.choice([0, 1, 1, 2])):
            clock.after(rng.randint(0, 600_000), self._add)
        if rng.random() < 0.5:
            clock.after(rng.randint(0, 400_000), self._wish_anything)

    @property
    def is_moving(self) -> bool:
        coordinator = self._world.coordinator
        in_hand = [each.payload for each in self._workers if each.up and each.payload is not None]
        return coordinator.up and any(map(coordinator.machine.checkpoints.moving_now, in_hand))

    def beside_last_saves(self) -> None:
        self._is_calm = True
        if self._rng.random() < 0.6:
            delay_us = self._rng.randint(0, 300_000)
            self._last_wish_us = self._world.clock.now_us + delay_us
            self._world.clock.after(delay_us, self._wish_anything)

    def end(self) -> None:
        # One that came between what is judged and the removal of what is lost could take the place
        # that the removal needs: it would be refused, and rightly so.
        self._world.clock.pass_time(max(0, self._last_wish_us - self._world.clock.now_us))
        super().end()
        self._knock()

    # ----------------------------------------------------------------------- rounds

    def amid_faults(self) -> list[Struck]:
        struck = super().amid_faults()
        self._size(DISK_BYTES)
        return struck

    def _round(self) -> None:
        self._size(self._rng.choice([DISK_BYTES, SMALL_BYTES]))
        super()._round()

    def _lose(self, span_us: int, *, is_mild: bool) -> None:
        """People say something, once or more often; and something may be lost as well."""
        clock, rng = self._world.clock, self._rng
        for _ in range(rng.choice([1, 2, 3])):
            clock.after(rng.randint(0, span_us // 2), self._wish_anything)
        if rng.random() < 0.3:
            super()._lose(span_us, is_mild=is_mild)

    def _get_whole(self) -> None:
        self._world.heal()
        self._revive()
        self._hear_all()
        self._end_balance()
        super()._get_whole()
        # Somebody may have asked for something meanwhile.
        self._hear_all()
        self._end_balance()
        super()._get_whole()
        self._check_stands()

    def _remove_lost(self) -> None:
        super()._remove_lost()
        # What was acknowledged before that.
        self._take_answer()
        for id, target in self._world.coordinator.machine.members.targets.items():
            if self._world.targets[id].lost and target.state is TargetState.REMOVED:
                self._stands[id] = "removed"

    def _list_again(self) -> None:
        """And then nothing moves any more."""
        super()._list_again()
        self._get_whole()
        seen = self.moved, [worker.made for worker in self._workers]
        self._world.clock.pass_time(QUIET_US)
        if seen != (self.moved, [worker.made for worker in self._workers]):
            raise Violation(f"P12: all is whole, and {self.moved - seen[0]} columns move")

    def _disks(self) -> Disks:
        self._take_answer()
        return Disks(self._world, self._leaving())

    def _leaving(self) -> list[TargetId]:
        return [id for id, standing in self._stands.items() if standing in LEAVING]

    def _size(self, bytes_total: int) -> None:
        world = self._world
        world.disk_bytes = bytes_total
        for target in world.targets.values():
            target.disk.bytes_total = bytes_total
            target.measure()

    # ----------------------------------------------------------------------- wishes

    def _wish_anything(self) -> None:
        self._take_answer()
        if self._operator.is_waiting:
            return
        acts: list[Callable[[], bool]] = [
            *[partial(self._empty_one, "draining")] * 5,
            *[partial(self._empty_one, "out")] * 2,
            *[self._take_back, self._remove, self._ask_for_balance] * 2,
        ]
        self._rng.shuffle(acts)
        any(act() for act in acts)

    def _want(self, id: TargetId, standing: str, *, force: bool = False) -> None:
        dry_run = self._rng.random() < 0.1
        self._wish = id, standing, dry_run
        self._operator.want(id, standing, dry_run=dry_run, force=force)

    def _empty_one(self, standing: str) -> bool:
        """One without which saves have places enough."""
        leaving, floor = self._leaving(), self._world.coordinator.machine_policy.code.floor
        may = [
            id
            for id in sorted(self._world.targets.keys() - self._stands.keys())
            if Disks(self._world, {*leaving, id}).places() >= floor
        ]
        if may:
            self._want(self._rng.choice(may), standing, force=self._rng.random() < 0.3)
        return bool(may)

    def _take_back(self) -> bool:
        leaving = self._leaving()
        if leaving:
            self._want(self._rng.choice(leaving), "in")
        return bool(leaving)

    def _remove(self) -> bool:
        """It has ended for good; what it still has is lost, as far as that is allowed."""
        gone = [t for t in self._world.targets.values() if t.lost or t.wiped or t.ended]
        leaving = [id for id in self._leaving() if not self._world.targets[id].lost]
        if not leaving or gone or not self._may_lose_more():
            return False
        id = self._rng.choice(leaving)
        node = self._world.targets[id]
        node.crash()
        node.ended = True
        self._wish = id, "removed", False
        self._operator.want(id, "removed")
        return True

    def _may_lose_more(self) -> bool:
        disks = self._disks()
        is_harmed = any(target.wiped for target in self._world.targets.values())
        return disks.is_whole() and disks.survivable() > 0 and not is_harmed

    def _ask_for_balance(self) -> bool:
        if self._balance.is_waiting:
            return False
        self._balance.want(stop=self._rng.random() < 0.2)
        return True

    def _add(self) -> None:
        if self._added < ADDED_MAX:
            self._added += 1
            self._world.add_target()

    # ----------------------------------------------------------------------- answers

    def _take_answer(self) -> None:
        """To what was asked for last."""
        if self._wish is None or self._operator.is_waiting:
            return
        (id, standing, dry_run), self._wish = self._wish, None
        answer, node = self._operator.answer, self._world.targets[id]
        match answer:
            case TargetChanged() if dry_run:
                self.ends["dry run"] += 1
            case TargetChanged():
                self.ends[standing] += 1
                self._stands[id] = standing
                if standing == "in":
                    del self._stands[id]
                elif standing == "removed":
                    node.lost = True
            case Failed():
                self.ends["refused"] += 1
        if node.ended and not node.lost:
            node.ended = False
            node.start()

    def _hear_all(self) -> None:
        clock = self._world.clock
        operators = self._operator, self._balance
        clock.run(lambda: not any(each.is_waiting for each in operators), HEARD_US)
        self._take_answer()
        if any(each.is_waiting for each in operators):
            raise Violation(f"P10: nobody answers within {HEARD_US // 1_000_000} s: {self._wish}")
        if isinstance(self._balance.answer, TargetsBalanced):
            self.ends["balance"] += self._balance.answer.running

    def _end_balance(self) -> None:
        world = self._world
        if self._is_balancing() and self._rng.random() < 0.4:
            self._balance.want(stop=True)
        end_us = world.clock.now_us + BALANCED_US
        while self._is_balancing():
            self._check_bytes()
            if world.clock.now_us >= end_us:
                raise Violation(f"P7: a balance takes more than {BALANCED_US // 1_000_000} s")
            world.clock.pass_time(POLL_US)

    def _is_balancing(self) -> bool:
        coordinator = self._world.coordinator
        if not coordinator.up:
            return True
        balancer = coordinator.machine.repairs.balancer
        return balancer.is_asked or bool(balancer.planned())

    def _check_bytes(self) -> None:
        """No more than one plan above what there was to move."""
        if self._world.coordinator.up:
            balancer = self._world.coordinator.machine.repairs.balancer
            most = balancer._bytes_max + MOVES_MAX * FILE_BYTES_MAX
            if balancer._bytes_max and balancer.bytes_moved > most:
                raise Violation(f"P12: {balancer.bytes_moved} bytes have moved, of {most}")

    def _check_stands(self) -> None:
        """Whoever began since then knows what was acknowledged."""
        for id, target in self._world.coordinator.machine.members.targets.items():
            wanted = self._stands.get(id, "in")
            if target.standing.value != wanted:
                raise Violation(f"P10: {id} is {target.standing.value}, it was made {wanted}")

    def _has_moved(self, column: ColumnId, was: TargetId | None, to: TargetId) -> None:
        """Durably. While nothing strikes: only what leaves its target, or is not well there; and to
        one that keeps it.
        """
        self.moved += 1
        self._take_answer()
        if not self._is_calm or was is None:
            return
        if self._is_live(was):
            # When all that moved with it is named.
            self._world.clock.after(1_000, partial(self._check_spread, column, to))
        if to in self._leaving() and was not in self._leaving() and self._is_well(column, was):
            raise Violation(f"P7: {column} goes from {was} to {to}, which is to be emptied")
        # One that a fault kept away need not be back yet when nothing strikes any more.
        reason = was in self._leaving() or self._is_balancing() or self._wish is not None
        is_well = self._is_live(was) and self._is_well(column, was)
        if is_well and not reason and not self._is_crowded(column, was):
            raise Violation(f"P12: {column} goes from {was} to {to}, and nobody wanted that")

    def _is_live(self, id: TargetId) -> bool:
        """To the coordinator."""
        return self._world.coordinator.machine.members.targets[id].state is TargetState.LIVE

    def _check_spread(self, column: ColumnId, to: TargetId) -> None:
        """What has left a target that was well took no place that the rule forbids. It would be
        spread again; that is no reason to put it there.
        """
        rank = column.payload.rank
        holders = self._world.oracles.placement_of(column.payload.checkpoint)[rank]
        checkpoints = self._world.coordinator.machine.checkpoints
        checkpoint = checkpoints.get(column.payload.checkpoint)
        if checkpoint is None or checkpoint.placement is None:
            return
        is_whole = len(checkpoints.columns_now(checkpoint, rank)) == len(holders)
        if is_whole and holders[column.column] == to and self._is_crowded(column, to):
            raise Violation(f"P13: {column} has gone to {to}, beside too many others: {holders}")

    def _is_crowded(self, column: ColumnId, at: TargetId) -> bool:
        """With it there more columns of its payload lie in that domain than may."""
        spread, targets = self._world.oracles.spread, self._world.targets
        checkpoint, rank = column.payload.checkpoint, column.payload.rank
        holders = list(self._world.oracles.placement_of(checkpoint)[rank])
        holders[column.column] = at
        held = Counter(
            domain_key(id, targets[id].domain, spread.level) for id in holders if id is not None
        )
        return held[domain_key(at, targets[at].domain, spread.level)] > spread.max_per_domain

    def _is_well(self, column: ColumnId, id: TargetId) -> bool:
        target, file = self._world.targets[id], f"columns/{column_name(column)}"
        here = target.up and target.disk.durable(file) is not None
        return here and f"{id}/{file}" not in self._world.rotted

    def _knock(self) -> None:
        """Who was removed comes again, and stays out."""
        world = self._world
        removed = [world.targets[id] for id, stands in self._stands.items() if stands == "removed"]
        for node in removed:
            node.lost = node.ended = False
            node.start()
        world.clock.pass_time(KNOCKS_US if removed else 0)
        for node in removed:
            known = world.coordinator.machine.members.targets[node.id]
            if known.state is not TargetState.REMOVED or known.session is not None:
                raise Violation(f"P10: {node.id} was removed, and is {known.state.value}")
            node.crash()
            node.lost = True

    # ----------------------------------------------------------------------- strikes

    def _own_faults(self) -> dict[str, Callable[[World], Strike | None]]:
        return {
            **super()._own_faults(),
            "F1 source": lambda _: self._kill(self._sources().values()),
            "F1 destination": lambda _: self._kill(self._destinations()),
            "F7 source": lambda _: self._rot_source(),
            "F23 destination": lambda _: self._empty_destination(),
            "F24 back": lambda _: self._turn_back(),
            "F24 joins": lambda _: self._joins(),
        }

    def _in_hand(self) -> dict[ColumnId, TargetId]:
        working = (worker.in_hand for worker in self._workers if worker.up)
        return {column: to for in_hand in working for column, to in in_hand.items()}

    def _sources(self) -> dict[ColumnId, TargetId]:
        """Who is named for what is made, as far as that is here."""
        oracles = self._world.oracles
        found: dict[ColumnId, TargetId] = {}
        for column in self._in_hand():
            payload = column.payload
            if payload.checkpoint in oracles.decided:
                named = oracles.placement_of(payload.checkpoint)[payload.rank][column.column]
                if named is not None and self._is_well(column, named):
                    found[column] = named
        return found

    def _destinations(self) -> Collection[TargetId]:
        return [id for id in self._in_hand().values() if self._world.targets[id].up]

    def _kill(self, ids: Collection[TargetId]) -> Strike | None:
        named = sorted(ids)
        if not named:
            return None
        node = self._world.targets[self._rng.choice(named)]
        node.crash()
        self._world.clock.after(self._rng.choice([2_000, 300_000, 5_000_000]), node.start)
        return lambda: True

    def _rot_source(self) -> Strike | None:
        """A bit of what is to be moved."""
        world, sources = self._world, sorted(self._sources().items())
        harmed = world.rotted or any(t.lost or t.wiped for t in world.targets.values())
        if not sources or harmed or not self._may_lose_more():
            return None
        column, id = self._rng.choice(sources)
        file, disk = f"columns/{column_name(column)}", world.targets[id].disk
        if column.payload.checkpoint not in world.oracles.announced:
            return None
        disk.rot(file, self._rng.randrange(disk.file_bytes(file)), self._rng.randrange(8))
        world.rotted.append(f"{id}/{file}")
        return lambda: True

    def _empty_destination(self) -> Strike | None:
        destinations = sorted(self._destinations())
        harmed = any(t.lost or t.wiped for t in self._world.targets.values())
        if not destinations or harmed or self._world.rotted or not self._may_lose_more():
            return None
        victim = self._world.targets[self._rng.choice(destinations)]
        victim.crash()
        victim.wipe()
        self._world.clock.after(self._rng.choice([100_000, 4_000_000]), victim.start)
        return lambda: True

    def _turn_back(self) -> Strike | None:
        """Who wanted it thinks otherwise."""
        self._take_answer()
        leaving = self._leaving()
        if self._operator.is_waiting or not leaving:
            return None
        self._want(self._rng.choice(leaving), "in")
        return lambda: True

    def _joins(self) -> Strike | None:
        if self._added >= ADDED_MAX:
            return None
        self._add()
        return lambda: True
