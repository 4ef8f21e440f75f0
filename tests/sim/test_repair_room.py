"""Histories in which all disks are full as a target goes: a step that no store has is made again in
the room of drained ones, which go for it, oldest first, and of space that only stands (P1, P6, P7,
P9).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.base.limits import RESERVE_FRACTION
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.policy import Watermarks
from ckpt.protocol.coordinator.repairing.tasks import NO_ROOM_REST_US
from ckpt.protocol.coordinator.saving.space.standing import StandingSpace
from tests.landing import in_turn
from tests.sim.drain_world import DrainOracles, DrainWorld, small_items
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.repair_world import REBUILD_AFTER_US, revive, worker
from tests.sim.world import RUN

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 20
"""Of each half: a landing runs one."""
SEEDS_SOAK = 500
PLANTED_SEEDS = 20
PLANTED_BEGIN = 24
STANDING_SEEDS = range(3, 11)
"""The first one shows it."""
STORE = StorePolicy("mem://one")
DRAINED = (10, 20, 30)
NEWEST = 40
SERVES_US = 30_000_000
WHOLE_US = 3 * NO_ROOM_REST_US


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, what went for the newest step); raises Violation when a promise breaks."""
    return _repaired(_filled(seed))


def _repaired(world: DrainWorld) -> tuple[int, list[str]]:
    rng = world.clock.rng
    (id,) = [id for id in world.oracles.kept(RUN) if id.step == NEWEST]
    victim = world.targets[rng.choice(sorted(_holders(world, id)))]
    victim.crash()
    victim.ended = True
    world.clock.run(lambda: bool(_lacking(world, id)), SETTLE_US)
    workers = [worker(world, number) for number in range(rng.choice([1, 2]))]
    for _ in range(rng.choice([0, 1, 3])):
        strike = rng.choice([workers[0].crash, world.coordinator.crash])
        world.clock.after(rng.randint(0, 20_000_000), strike)
    end_us = world.clock.now_us + WHOLE_US
    while (lacking := _lacking(world, id)) and world.clock.now_us < end_us:
        revive(world, workers)
        if not world.coordinator.up:
            world.restart_coordinator()
        world.clock.pass_time(500_000)
    if lacking:
        raise Violation(f"P7: {id} after {WHOLE_US // 1_000_000} s: {lacking}")
    gone = [one for one in world.evicted if one.step == NEWEST]
    if gone:
        raise Violation(f"P9: {gone} went, and no store has it")
    ends = ["evicted"] * len(world.evicted)
    return world.clock.steps, ["whole", *ends]


def serve_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how it ends) of a coordinator that begins again while no disk has a free byte.

    Raises Violation.
    """
    world = _filled(seed, reserve=0.0)
    world.coordinator.crash()
    world.restart_coordinator()
    if not world.clock.run(lambda: world.coordinator.machine.vouching.serves, SERVES_US):
        raise Violation(f"it serves nobody after {SERVES_US // 1_000_000} s")
    return world.clock.steps, ["serves"]


def _filled(seed: int, reserve: float = RESERVE_FRACTION, *, drained: bool = True) -> DrainWorld:
    """Some steps are drained, the newest is not; no disk has room for one column more. `reserve`:
    the share of each that is free. `drained`: else there is no store.
    """
    world = DrainWorld.build(seed)
    assert isinstance(world, DrainWorld)
    assert isinstance(world.oracles, DrainOracles)
    world.oracles.world = world
    world.coordinator.machine_policy = replace(
        world.coordinator.machine_policy, watermarks=Watermarks(1.0, 1.0),
        rebuild_after_us=REBUILD_AFTER_US,
    )  # fmt: skip
    world.start()
    if drained:
        world.add_store(STORE, conditional=True)
    size = world.clock.rng.choice([200, 8192, 20_000])
    _save(world, DRAINED, size)
    if drained:
        world.start_worker(STORE)
        if not world.clock.run(world.is_idle, 2 * SETTLE_US):
            raise Violation(f"P9: never drained: {world.lacking()}")
        for one in world.workers:
            one.crash()
    _save(world, (NEWEST,), size)
    for target in world.targets.values():
        disk = target.disk
        used = disk.bytes_total - disk.space().bytes_free
        disk.bytes_total = int(used / (1 - reserve))
    world.clock.pass_time(2_000_000)
    return world


def _save(world: DrainWorld, steps: tuple[int, ...], size: int) -> None:
    nodes = world.launch(steps, 30_000, size)
    world.clock.run(lambda: all(node.done_saving for node in nodes), SETTLE_US)
    for node in nodes:
        node.crash()


def _holders(world: DrainWorld, id: CheckpointId) -> Iterator[str]:
    for columns in world.oracles.placement_of(id).values():
        yield from (target for target in columns if target is not None)


def _lacking(world: DrainWorld, id: CheckpointId) -> str:
    """Of what has a place: with as many targets as columns the lost one comes back with its own."""
    machine = world.coordinator.machine
    checkpoint = machine.checkpoints.get(id) if world.coordinator.up else None
    if checkpoint is None or not machine.vouching.serves:
        return "it is not known"
    missing = machine.checkpoints.redundancy(checkpoint).columns_missing
    return f"{missing} columns are missing" if missing else ""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6))
def test_what_no_store_has_is_made_again_in_the_room_of_what_one_has(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("whole") == SEEDS
    assert ends.count("evicted") >= SEEDS // 4


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
def test_a_coordinator_begins_again_though_no_disk_has_a_free_byte(begin: int) -> None:
    assert ends_of(serve_seed, SEEDS, begin).count("serves") == SEEDS


def test_without_eviction_some_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug is found."""
    monkeypatch.setattr(Evictor, "clear", lambda *_: None)
    with pytest.raises(AssertionError):
        run_each(run_seed, PLANTED_SEEDS, PLANTED_BEGIN)


def test_where_nothing_is_drained_what_stands_for_saves_gives_some_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for all: it may be too little."""

    def gets_room(seed: int) -> bool:
        """With what stands given, and not without."""
        if not _is_whole_on_full_disks(seed):
            return False
        with monkeypatch.context() as planted:
            planted.setattr(StandingSpace, "drop_on", lambda *_: None)
            return not _is_whole_on_full_disks(seed)

    assert any(map(gets_room, STANDING_SEEDS))


def _is_whole_on_full_disks(seed: int) -> bool:
    """The newest step was made again though nothing was drained."""
    try:
        _repaired(_filled(seed, reserve=0.0, drained=False))
    except Violation:
        return False
    return True


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
