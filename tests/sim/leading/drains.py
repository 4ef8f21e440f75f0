"""Drains and evictions beside takeovers: a leader is struck while a checkpoint waits for its drain,
is leased, is being written down as stored, is to be evicted, and while its columns go. Each is in
its stores once and whole, and nothing goes from the tier that some store needs (P9), whoever leads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.base.units import US_PER_S
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.policy import CoordinatorPolicy, Watermarks
from tests.sim import faults
from tests.sim.drain_node import QUIET_S, Trouble
from tests.sim.drain_world import DrainOracles, DrainWorld, small_items
from tests.sim.label_nodes import LabelOracles
from tests.sim.last_checks import SETTLE_US, check_readable
from tests.sim.leading.effects import simulated
from tests.sim.leading.history import check_copies, wait_until_stored, wait_until_well
from tests.sim.leading.strikes import STRIKES, TAKES_OVER, aim
from tests.sim.leading.world import LeadingWorld
from tests.sim.oracles import Violation
from tests.sim.restarts import check_restart

STEPS = (10, 20, 30, 40, 50)
GAP_US = 300_000
STORES = 2
WORKERS = 2
"""Of each store."""
LONG_US = 20 * US_PER_S
"""Longer than a lease."""
PHASE_US = 8_000_000
SPAN_US = 6_000_000
"""In which more befalls somebody."""
AFTERWARDS_US = 3_000_000
BESIDE: tuple[Callable[..., object], ...] = (
    faults.target_killed, faults.target_stopped, faults.connections_cut, faults.half_opened,
)  # fmt: skip


class LeadingDrainOracles(DrainOracles, LabelOracles):
    """Of both worlds."""


@dataclass(slots=True)
class LeadingDrainWorld(LeadingWorld, DrainWorld):
    """Checkpoints are drained under several coordinators."""

    oracles_type = LeadingDrainOracles

    @classmethod
    def policy_of(cls, seed: int) -> CoordinatorPolicy:
        is_lazy = seed % 3 == 1 and NAMES[seed % len(NAMES)] != EVICTED
        marks = Watermarks() if is_lazy else Watermarks(low=0.0, high=0.0)
        policy = LeadingWorld.policy_of(seed)
        return replace(policy, watermarks=marks, keep=2 if seed % 11 == 2 else None)


@dataclass(slots=True)
class DrainHistory:
    """What one seed was, and did."""

    seed: int
    phase: str
    struck: bool = False
    """In its phase."""
    strikes: list[str] = field(default_factory=list)
    terms: int = 0
    drained: int = 0
    evicted: int = 0


def _waits(world: LeadingDrainWorld) -> bool:
    """A store lacks a checkpoint, and no worker has it."""
    if not world.several.up:
        return False
    queue = world.several.machine.drains
    return any(queue.waiting(store) and not store.jobs for store in queue.stores.values())


def _is_leased(world: LeadingDrainWorld) -> bool:
    """Some parts of one are written, others not."""
    return any(node.under_way is not None for node in world.workers)


PHASES: dict[str, Callable[[LeadingDrainWorld], bool]] = {
    "waits": _waits,
    "is leased": _is_leased,
}
EVICTED = "is evicted"
"""Its tombstone is durable, and its columns lie there."""
AIMED: dict[str, str] = {
    "is written down": "CheckpointDrained",
    "a store is told of": "StoreHolds",
    "is buried": "CheckpointTombstoned",
    "is gone": "CheckpointDeleted",
}
"""Around whose transaction somebody is struck."""
NAMES = (*PHASES, EVICTED, *AIMED)


def run_seed(seed: int) -> DrainHistory:
    """Raises Violation, or a machine's AssertionError, when a promise breaks."""
    with simulated(), pytest.MonkeyPatch.context() as patch:
        small_items(patch)
        world = LeadingDrainWorld.made(seed)
        assert isinstance(world.oracles, LeadingDrainOracles)
        world.oracles.world = world
        try:
            return _run(world)
        finally:
            world.end()


def _run(world: LeadingDrainWorld) -> DrainHistory:
    rng, after = world.clock.rng, world.clock.after
    history = DrainHistory(world.seed, NAMES[world.seed % len(NAMES)])
    world.start()
    _open_stores(world)
    trainers = world.launch(STEPS, GAP_US, rng.choice([3_000, 20_000]))
    world.trouble = rng.choice([Trouble(), Trouble(yields=0.1), Trouble(fail=0.02, yields=0.05)])
    _strike_in_phase(world, history)
    for _ in range(rng.choice([0, 1, 2])):
        after(rng.randint(0, SPAN_US), _strike, world, history, tuple(STRIKES))
    for _ in range(rng.choice([0, 0, 1, 2])):
        after(rng.randint(0, SPAN_US), _strike_worker, world)
    if rng.random() < 0.3:
        after(rng.randint(0, SPAN_US), rng.choice(BESIDE), world)
    after(SPAN_US // 2, world.restart_workers)
    world.clock.pass_time(world.times.longest_us + AFTERWARDS_US)
    for node in trainers:
        node.crash()
    world.trouble = Trouble()
    world.heal()
    _end(world)
    history.terms = len(world.book.terms)
    history.drained = sum(len(world.held(url)) for url in world.buckets)
    history.evicted = len(world.evicted)
    return history


def _open_stores(world: LeadingDrainWorld) -> None:
    rng = world.clock.rng
    stores = (
        StorePolicy("mem://one", keep=rng.choice([None, 1, 2])),
        StorePolicy("mem://two", every=rng.choice([1, 2])),
    )
    for store in stores[: rng.choice([1, STORES])]:
        world.add_store(store, conditional=rng.random() < 0.7)
        for _ in range(WORKERS):
            world.clock.after(rng.randint(0, 400_000), world.start_worker, store)


def _strike_in_phase(world: LeadingDrainWorld, history: DrainHistory) -> None:
    """Somebody, at a moment of a drain or of an eviction."""
    clock, phase = world.clock, history.phase
    if phase in AIMED:
        clock.pass_time(clock.rng.choice([0, 300_000, 1_200_000]))
        aim(world, AIMED[phase])
        history.struck = True
        return
    if phase == EVICTED:
        _strike_at_eviction(world, history)
        return
    for _ in range(clock.rng.choice([1, 1, 2, 3])):
        clock.run(lambda: PHASES[phase](world), PHASE_US)
        clock.pass_time(clock.rng.choice([1, 400, 3_000, 30_000]))
    history.struck = clock.run(lambda: PHASES[phase](world), PHASE_US)
    _strike(world, history, TAKES_OVER)


def _strike_at_eviction(world: LeadingDrainWorld, history: DrainHistory) -> None:
    """The first one, or a later one."""
    left = world.clock.rng.choice([1, 2])

    def evicted(_id: CheckpointId) -> None:
        nonlocal left
        left -= 1
        if not left:
            history.struck = True
            delay_us = world.clock.rng.choice([1, 400, 3_000])
            world.clock.after(delay_us, _strike, world, history, TAKES_OVER)

    world.on_evict = evicted


def _strike(world: LeadingDrainWorld, history: DrainHistory, names: tuple[str, ...]) -> None:
    name = world.clock.rng.choice(names)
    if not world.is_healed and STRIKES[name](world):
        history.strikes.append(name)


def _strike_worker(world: LeadingDrainWorld) -> None:
    """Killed, or stopped for a moment or for longer than its lease."""
    up = [node for node in world.workers if node.up]
    if not up or world.is_healed:
        return
    node = world.clock.rng.choice(up)
    if world.clock.rng.random() < 0.5:
        node.crash()
        return
    node.stop()
    world.clock.after(world.clock.rng.choice([500_000, LONG_US]), node.go_on)


def _end(world: LeadingDrainWorld) -> None:
    wait_until_well(world)
    world.restart_workers()
    if not world.clock.run(world.is_idle, 2 * SETTLE_US):
        raise Violation(f"P9: after healing the stores lack {world.lacking()}")
    world.pass_until_tidy(int(QUIET_S * US_PER_S))
    wait_until_well(world)
    world.check_stores()
    for id, announced in sorted(world.oracles.announced.items()):
        if id not in world.oracles.deleted:
            check_readable(world, id, announced)
    wait_until_stored(world)
    check_restart(world)
    world.book.check_keys()
    check_copies(world)
