"""Repairs in the main campaign (phase B of the fault matrix): workers live beside all that saves
and loads; disks are emptied, lost, away for long; and while a payload is made again its sources,
its destinations, the coordinator and the worker itself are struck, somebody loads or deletes it,
and another disk goes.

What I draw comes from a generator of my own, so that histories without me stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final

from ckpt.format.messages.asking import TargetChanged
from ckpt.format.messages.hello import Failed
from ckpt.testing.disk import Keep
from tests.sim import aimed, faults
from tests.sim.member_operator import MemberOperator
from tests.sim.oracles import Violation
from tests.sim.repair_node import RepairNode
from tests.sim.struck import Strike, Struck
from tests.sim.target_node import TargetNode
from tests.sim.whole_again import Disks
from tests.sim.windows import Aim

if TYPE_CHECKING:
    from tests.sim.world import World

REBUILD_AFTER_US: Final = 2_000_000
WHOLE_US: Final = 90_000_000
"""So long everything may take to be whole again once faults have ended (P7). What found no place,
as on a disk that was full, is tried again after a minute."""
POLL_US: Final = 250_000
SOON_US: Final = 3_000
"""Within so long after a payload was begun an aimed fault strikes."""
SPANS_US: Final = (1_000_000, 4_000_000, 12_000_000)
"""Of a round: shorter and longer than a lease."""
LISTED_US: Final = 8_000_000
"""A copy that was sealed late, by a worker whose time was over, is not known until its target has
listed what it has. So long that takes after a restart."""
WORKER_FAULTS: Final = ("F1 worker", "F2 worker")
OWN_FAULTS: Final = (*WORKER_FAULTS, "F23 second")
"""What strikes in phase B alone, besides the faults of all phases."""
RARE: Final = ("F7 rot", "F8 misplaced", "F14 reader", "F21 lost", "F21 wiped", "F22 host")
"""Most of these strike only beside a target that is away and loses nothing."""


class Rebuilds:
    """I keep the workers of one world, and strike while they work."""

    deletes: ClassVar[bool] = True
    """Steps are deleted while they are made again."""

    def __init__(self, world: World) -> None:
        """Said before the coordinator begins."""
        coordinator = world.coordinator
        coordinator.machine_policy = replace(
            coordinator.machine_policy, rebuild_after_us=REBUILD_AFTER_US
        )
        self._world = world
        self._rng = Random(f"rebuilds of {world.seed}")
        self._workers: list[RepairNode] = []
        #: What strikes when a payload is begun.
        self._aimed: list[Callable[[], None]] = []
        self._struck: list[Struck] = []
        #: When the round that goes on ends.
        self._ends_us = 0
        self.aims: list[tuple[str, Aim]] = []
        """Who was to be struck in which window."""

    def begin(self) -> None:
        self._workers = [self._worker(number) for number in range(self._rng.choice([1, 1, 2]))]

    @property
    def is_making(self) -> bool:
        """A payload is in a worker's hands."""
        return any(worker.up and worker.has_work for worker in self._workers)

    @property
    def is_moving(self) -> bool:
        """And what is made of it is there, on a target that it is to leave."""
        return False

    def beside_last_saves(self) -> None:
        """All has healed, and the last launch saves."""

    def amid_faults(self) -> list[Struck]:
        """Some rounds, each from a healed and whole world on; what struck in them."""
        for _ in range(self._rng.choice([1, 2, 3])):
            self._get_whole()
            self._round()
        return self._struck

    def end(self) -> None:
        """The last saves have ended: all is made again, once, and nobody works any more."""
        self._get_whole()
        self._remove_lost()
        self._list_again()
        self._get_whole()
        for each in self._workers:
            each.crash()
        self._world.clock.pass_time(POLL_US)
        self._disks().check()

    # ----------------------------------------------------------------------- rounds

    @property
    def has_places(self) -> bool:
        """Whether a save finds one for each of its columns."""
        return self._disks().has_places()

    def _disks(self) -> Disks:
        return Disks(self._world)

    def _get_whole(self) -> None:
        """P7: within bounded time, wherever targets allow it. Then nothing counts as harmed."""
        world = self._world
        world.heal()
        self._revive()
        end_us = world.clock.now_us + WHOLE_US
        while (lacking := self._disks().lacking()) and world.clock.now_us < end_us:
            world.clock.pass_time(POLL_US)
        if lacking:
            raise Violation(f"P7: not whole again after {WHOLE_US // 1_000_000} s: {lacking}")
        if not world.attempts:
            self._forgive()

    def _forgive(self) -> None:
        """All that can be made again is there: what was lost before is no part of what any answer
        allows to be lost from now on.
        """
        world = self._world
        if not self._disks().is_whole():
            return
        for target in world.targets.values():
            target.wiped = False
        there = {f"{id}/{file}" for id, t in world.targets.items() for file in t.disk.files()}
        world.rotted = [each for each in world.rotted if each in there]
        lost = {target.id for target in world.targets.values() if target.lost}
        for id in world.oracles.decided:
            world.oracles.harmed_before[id] = set(lost)

    def _round(self) -> None:
        world, rng = self._world, self._rng
        span_us = rng.choice(SPANS_US)
        names = [*faults.FAULTS, *self._own_faults()]
        drawn = rng.choices(names, k=rng.choice([1, 2, 3, 4]))
        if is_mild := rng.random() < 0.3:
            drawn.append(rng.choice(RARE))
        self._aimed += [partial(self._strike, name) for name in drawn]
        self._aimed += [self._kill_reader] * drawn.count("F14 reader")
        if rng.random() < 0.4:
            self._aimed.append(self._aim_at_window)
        if self.deletes and rng.random() < 0.3:
            self._aimed.append(world.delete_one)
        if rng.random() < 0.4:
            self._aimed.append(lambda: world.read())
        for worker in self._workers:
            worker.on_work = self._begun
        self._ends_us = world.clock.now_us + span_us
        self._lose(span_us, is_mild=is_mild)
        world.clock.pass_time(span_us)
        self._aimed.clear()

    def _begun(self) -> None:
        """A payload is in hand: one of those that wait strikes, if it is in hand still by then."""
        if self._aimed:
            strike = self._aimed.pop(self._rng.randrange(len(self._aimed)))
            self._world.clock.after(self._rng.randint(0, SOON_US), self._strike_amid, strike)

    def _strike_amid(self, strike: Callable[[], None]) -> None:
        if self._world.clock.now_us >= self._ends_us:
            return  # All has healed since.
        if self.is_making:
            strike()
        else:
            self._aimed.append(strike)

    def _lose(self, span_us: int, *, is_mild: bool) -> None:
        """As much as every checkpoint survives, in one of three ways; when mild, for a while."""
        world, rng = self._world, self._rng
        disks = self._disks()
        is_harmed = any(target.wiped for target in world.targets.values())
        allowed = disks.survivable() if disks.is_whole() and not is_harmed else 0
        up = sorted(id for id, target in world.targets.items() if target.up)
        victims = [world.targets[id] for id in rng.sample(up, max(0, min(allowed, 2)))]
        for number, victim in enumerate(victims):
            if number:
                self._aimed.append(partial(self._empty, victim, "F23 second"))
                continue
            ways = [self._empty, self._empty, self._lose_for_good, self._come_back_late]
            way = self._come_back_late if is_mild else rng.choice(ways)
            world.clock.after(rng.randint(0, span_us // 4), way, victim)

    def _empty(self, victim: TargetNode, name: str = "F21 emptied") -> None:
        # Something else may have been struck since it was chosen.
        if victim.lost or victim.wiped or self._disks().survivable() <= 0:
            return
        self._note(name)
        victim.crash(self._rng.choice(list(Keep)))
        victim.wipe()
        prefix = f"{victim.id}/"
        self._world.rotted = [r for r in self._world.rotted if not r.startswith(prefix)]
        self._world.clock.after(self._rng.choice([100_000, 4_000_000]), victim.start)

    def _lose_for_good(self, victim: TargetNode) -> None:
        if any(target.lost or target.wiped for target in self._world.targets.values()):
            return
        self._note("F21 gone")
        victim.crash(Keep.SOME)
        victim.lost = True

    def _come_back_late(self, victim: TargetNode) -> None:
        """Its columns are made again meanwhile, some of them or all, and then it has them too."""
        self._note("F1 back late")
        victim.crash(self._rng.choice(list(Keep)))
        self._world.clock.after(3 * REBUILD_AFTER_US, victim.start)

    # ----------------------------------------------------------------------- strikes

    def _note(self, name: str, strike: Strike = lambda: True) -> None:
        self._struck.append(Struck(name, self._phase, strike))

    def _strike(self, name: str) -> None:
        phase = self._phase
        strike = {**faults.FAULTS, **self._own_faults()}[name](self._world)
        if strike is not None:
            self._struck.append(Struck(name, phase, strike))

    @property
    def _phase(self) -> str:
        if self.is_moving:
            return "M"
        return "B" if self.is_making else "-"

    def _own_faults(self) -> dict[str, Callable[[World], Strike | None]]:
        """What strikes in these phases alone."""
        return {"F1 worker": self._kill_worker, "F2 worker": self._stop_worker}

    def _kill_reader(self) -> None:
        """In the middle of the load that it begins now."""
        self._world.read()
        self._world.clock.after(self._rng.randint(0, SOON_US), self._strike, "F14 reader")

    def _kill_worker(self, world: World) -> Strike | None:
        """Another one takes its place."""
        worker = self._working()
        if worker is None:
            return None
        worker.crash()
        world.clock.after(self._rng.choice([1_000, 3_000_000]), self._revive)
        return lambda: True

    def _stop_worker(self, world: World) -> Strike | None:
        """For longer than its lease or not; then it goes on."""
        worker = self._working()
        if worker is None:
            return None
        worker.stopped = True

        def go_on() -> None:
            worker.stopped = False

        world.clock.after(self._rng.choice([300_000, 5_000_000, 12_000_000]), go_on)
        return lambda: True

    def _working(self) -> RepairNode | None:
        working = [worker for worker in self._workers if worker.up and worker.has_work]
        return self._rng.choice(working) if working else None

    def _aim_at_window(self) -> None:
        """Somebody is struck between two durable steps of a column that is made again, of a drop,
        or of the move.
        """
        rng = self._rng
        window = rng.choice(aimed.OF_REPAIRS)
        who = rng.choice(list(aimed.strikes_at(window)))
        aim = Aim(window, rng.choice([1, 1, 2, 5]), partial(aimed.STRIKES[who], self._world))
        self._world.windows.aim(aim)
        self.aims.append((who, aim))
        if window.of == aimed.MOVES and who == "coordinator":
            self._struck.append(Struck("F12 at write", self._phase, lambda: aim.struck))

    # ----------------------------------------------------------------------- workers

    def _worker(self, number: int) -> RepairNode:
        world = self._world
        node = RepairNode(
            world.clock, world.network, world.oracles, world.coordinator,
            lambda id: world.targets[id], number,
        )  # fmt: skip
        node.start()
        return node

    def _revive(self) -> None:
        for number, each in enumerate(self._workers):
            each.stopped = False
            if not each.up:
                self._workers[number] = self._worker(number)
                self._workers[number].on_work = each.on_work

    def _remove_lost(self) -> None:
        """What never comes back is said to be gone, as soon as nothing needs it any more."""
        world = self._world
        lost = [target.id for target in world.targets.values() if target.lost]
        disks = self._disks()
        if not (lost and disks.is_whole() and disks.has_places()):
            return
        operator = MemberOperator(world.clock, world.network, world.coordinator)
        operator.look()
        for id in lost:
            operator.want(id, "removed")
            world.clock.run(lambda: operator.answer is not None, WHOLE_US)
            match operator.answer:
                case TargetChanged() | Failed("not_found"):  # Or lost before anybody knew of it.
                    continue
            raise Violation(f"{id} is lost, all is whole, and it stays: {operator.answer}")

    def _list_again(self) -> None:
        """All targets, to another coordinator."""
        world = self._world
        world.clock.pass_time(LISTED_US)
        world.coordinator.crash()
        world.restart_coordinator()
        world.clock.pass_time(LISTED_US)
