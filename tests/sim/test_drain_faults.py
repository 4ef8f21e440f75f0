"""Each fault of the matrix that can strike a drain or an eviction strikes it, one in a history: the
stores get what they need, once and whole, beside the fault where that is possible, and what was
evicted is gone (P9).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.base.units import US_PER_S
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.policy import Watermarks
from tests.landing import in_turn
from tests.sim.drain_faults import DRAIN, EVICT, Cell, Scene
from tests.sim.drain_node import QUIET_S, Trouble
from tests.sim.drain_world import DrainOracles, DrainWorld, small_items
from tests.sim.faults import Strike
from tests.sim.oracles import Violation
from tests.sim.scenario import SETTLE_US
from tests.sim.world import RANK_COUNT

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 20
SEEDS_SOAK = 300
STEPS = (10, 20, 30, 40, 50)
SAVES_US = 6_000_000
SOON_US = (500, 5_000)
ALWAYS = Watermarks(low=0.0, high=0.0)


class History:
    """One seed of one cell."""

    def __init__(self, seed: int, cell: Cell, *, evicts: bool) -> None:
        world = DrainWorld.build(seed, shared_hosts=cell.shared_hosts)
        assert isinstance(world, DrainWorld)
        assert isinstance(world.oracles, DrainOracles)
        world.oracles.world = world
        self.world, self.cell, self.rng = world, cell, world.clock.rng
        self.evicts = evicts
        self.strikes_left = self.rng.choice([1, 2, 3])
        self.struck: list[Strike] = []
        policy = world.coordinator.machine_policy
        marks = ALWAYS if evicts else Watermarks()
        world.coordinator.machine_policy = replace(policy, watermarks=marks)
        if evicts and not cell.at_drain:
            world.on_evict = self._evicts
        else:
            world.clock.after(self.rng.randint(0, 1_500_000), self._aim)

    def run(self) -> bool:
        """Whether the fault struck; raises Violation when a promise breaks."""
        world, rng = self.world, self.rng
        world.start()
        for number, every in enumerate([1, rng.choice([1, 2])]):
            keep = rng.choice([None, 2]) if number and not self.evicts else None
            store = StorePolicy(f"mem://{number}", every=every, keep=keep)
            world.add_store(store, conditional=number == 0 or rng.random() < 0.5)
            for _ in range(2):
                world.clock.after(rng.randint(0, 400_000), world.start_worker, store)
        trainers = world.launch(STEPS, 300_000, rng.choice([3_000, 20_000]))
        world.trouble = rng.choice([Trouble(), Trouble(yields=0.1)])
        world.clock.pass_time(SAVES_US)
        for node in trainers:
            node.crash()
        if not world.clock.run(lambda: not world.lacking(), self.cell.within_us):
            raise Violation(f"P9: beside the fault, never drained: {world.lacking()}")
        world.trouble = Trouble()
        struck = any(each() for each in self.struck)
        world.heal()
        world.restart_workers()
        world.clock.run(world.is_idle, 2 * SETTLE_US)
        world.pass_until_tidy(int(QUIET_S * US_PER_S))
        world.check_stores()
        if self.evicts and len(world.committed) > 1:
            raise Violation(f"P9: drained, and never evicted: {sorted(world.committed)}")
        return struck

    def _aim(self) -> None:
        """At a worker that has read a part of what it drains."""
        world = self.world
        under_way = [
            (worker, worker.under_way)
            for worker in world.workers
            if worker.up and worker.under_way is not None
            and len(worker.under_way.payloads) < RANK_COUNT
        ]  # fmt: skip
        if under_way:
            worker, reader = self.rng.choice(under_way)
            self._strike(Scene(world, reader.id, worker, self.evicts))
        if self.strikes_left:
            world.clock.after(self.rng.randint(*SOON_US), self._aim)

    def _evicts(self, id: CheckpointId) -> None:
        """Before or while its tombstone goes to targets, and its columns away."""
        self.world.clock.after(self.rng.randint(0, 5_000), self._strike, Scene(self.world, id))

    def _strike(self, scene: Scene) -> None:
        told = self.cell.strike(scene) if self.strikes_left else None
        if told is not None:
            self.strikes_left -= 1
            self.struck.append(told)


def strikes(cell: Cell, seeds: int, *, evicts: bool) -> int:
    """In how many histories the fault struck; fails naming the seeds that broke a promise."""
    struck, failures = 0, []
    for seed in range(seeds):
        try:
            struck += History(seed, cell, evicts=evicts).run()
        except AssertionError as error:
            failures.append((seed, str(error)))
    assert not failures, failures[:5]
    return struck


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


@pytest.mark.parametrize("fault", in_turn(list(DRAIN), every=4))
def test_a_fault_in_the_middle_of_a_drain_breaks_no_promise(fault: str) -> None:
    assert strikes(DRAIN[fault], SEEDS, evicts=False) >= SEEDS // 3


@pytest.mark.parametrize("fault", in_turn(list(EVICT), every=4))
def test_a_fault_in_the_middle_of_an_eviction_breaks_no_promise(fault: str) -> None:
    assert strikes(EVICT[fault], SEEDS, evicts=True) >= SEEDS // 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("cells", "evicts"), [(DRAIN, False), (EVICT, True)])
def test_in_many_more_histories_neither(cells: dict[str, Cell], *, evicts: bool) -> None:
    for cell in cells.values():
        strikes(cell, SEEDS_SOAK, evicts=evicts)
