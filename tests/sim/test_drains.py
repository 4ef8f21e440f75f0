"""Histories of drains: workers that share stores, are killed, hang and fail; retention and eviction
beside them. Each checkpoint is in a store once and whole or not at all, and nothing goes from the
tier that some store needs (P9).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from ckpt.base.ids import CheckpointId, Generation, Step
from ckpt.base.units import US_PER_S
from ckpt.format.messages.drains import EndDrain
from ckpt.objects.documents import StoredObject
from ckpt.objects.writer import WriteJob
from ckpt.objects.zarr_layout import shard_key
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.policy import Watermarks
from tests.landing import PLANTED, at_turn, in_turn
from tests.sim import faults
from tests.sim.drain_node import QUIET_S, DrainNode, Trouble
from tests.sim.drain_world import DrainOracles, DrainWorld, small_items
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.restarts import check_restart

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 20
"""Of each half: a landing runs one."""
SEEDS_SOAK = 500
PLANTED_SEEDS = 30
STEPS = (10, 20, 30, 40)
FAULTS = (
    faults.coordinator_crashed, faults.coordinator_crashed, faults.target_killed,
    faults.target_stopped, faults.connections_cut, faults.half_opened,
)  # fmt: skip
SCRUBBED_SEEDS = 5
SCRUB_US = US_PER_S
LONG_US = 20 * US_PER_S
"""Longer than a lease."""


def run_seed(seed: int, scrub_us: int | None = None) -> tuple[int, list[str]]:
    """(clock steps, what happened); raises Violation when a promise breaks. `scrub_us`: so often
    all targets read all that they keep.
    """
    world = DrainWorld.build(seed)
    assert isinstance(world, DrainWorld)
    assert isinstance(world.oracles, DrainOracles)
    world.oracles.world = world
    rng = world.clock.rng
    policy = world.coordinator.machine_policy
    world.coordinator.machine_policy = replace(
        policy,
        keep=rng.choice([None, 2]),
        watermarks=rng.choice([Watermarks(), Watermarks(low=0.0, high=0.0)]),
    )
    if scrub_us is not None:
        for target in world.targets.values():
            target.scrub_each(scrub_us)
    world.start()
    stores = [
        StorePolicy("mem://one", keep=rng.choice([None, 2])),
        StorePolicy("mem://two", every=rng.choice([1, 2])),
    ]
    for number, store in enumerate(stores):
        world.add_store(store, conditional=number == 0 or rng.random() < 0.5)
        for _ in range(2):
            world.clock.after(rng.randint(0, 400_000), world.start_worker, store)
    trainers = world.launch(STEPS, 300_000, rng.choice([3_000, 20_000]))
    world.trouble = rng.choice(
        [Trouble(), Trouble(yields=0.1), Trouble(fail=0.02, yields=0.05), Trouble(0.01, 0.01, 0.05)]
    )
    for _ in range(rng.choice([1, 2, 3])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, 3_000_000), fault, world)
    for _ in range(rng.choice([0, 1, 2])):
        world.clock.after(rng.randint(500_000, 3_000_000), _strike_worker, world)
    world.clock.after(4_000_000, world.restart_workers)
    world.clock.pass_time(6_000_000)
    for node in trainers:
        node.crash()
    world.trouble = Trouble()
    world.heal()
    world.restart_workers()
    world.clock.run(world.is_idle, 2 * SETTLE_US)
    world.pass_until_tidy(int(QUIET_S * US_PER_S))
    world.check_stores()
    check_restart(world)
    if alarms := [alarm for target in world.targets.values() for alarm in target.alarms]:
        raise Violation(f"P3: nothing has rotted, and targets have found damage: {alarms[:3]}")
    kinds = ["drained"] * sum(len(world.held(url)) for url in world.buckets)
    return world.clock.steps, kinds + ["evicted"] * len(world.evicted)


def _strike_worker(world: DrainWorld) -> None:
    """Killed, or stopped for a moment or for longer than its lease."""
    up = [node for node in world.workers if node.up]
    if not up:
        return
    node = world.clock.rng.choice(up)
    if world.clock.rng.random() < 0.5:
        node.crash()
        return
    node.stop()
    world.clock.after(world.clock.rng.choice([500_000, LONG_US]), node.go_on)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6))
@pytest.mark.timeout(1500)
def test_no_drain_breaks_a_promise(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("drained") > 4 * SEEDS, ends
    assert "evicted" in ends


@at_turn(1, every=4)
@pytest.mark.timeout(600)
def test_a_scrub_beside_drains_and_evictions_alarms_nobody() -> None:
    ends = ends_of(partial(run_seed, scrub_us=SCRUB_US), SCRUBBED_SEEDS)
    assert {"drained", "evicted"} <= set(ends)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_more_drains_break_no_promise() -> None:
    ends_of(run_seed, SEEDS_SOAK)


# ----------------------------------------------------------------------- bugs that must be found


def _retention_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store still needs may go from the tier."""
    nothing: set[tuple[Step, Generation]] = set()
    monkeypatch.setattr(DrainQueue, "needed", lambda _queue, _run: nothing)


def _what_is_begun_counts_as_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker tells of the end before the marker is there."""
    real = DrainNode._take_all

    def take_all(self: DrainNode, id: CheckpointId) -> None:
        self._ask(EndDrain(self.policy.url, self.name, id), lambda _: real(self, id))

    monkeypatch.setattr(DrainNode, "_take_all", take_all)


def _the_marker_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that was begun counts as written."""
    real = WriteJob._write_shard

    def write_shard(self: WriteJob, array: int, shard: int) -> StoredObject:
        stored = real(self, array, shard)
        if array == 1:
            self._sink.put(self._prefix + shard_key(self.plan.arrays[array], shard), b"torn")
        return stored

    monkeypatch.setattr(WriteJob, "_write_shard", write_shard)


@pytest.mark.parametrize(
    ("plant", "begin"),
    in_turn(
        [
            (_retention_waits_for_nobody, 4),
            (_what_is_begun_counts_as_drained, 0),
            (_the_marker_waits_for_nothing, 0),
        ],
        every=PLANTED,
        first=2,
    ),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], begin: int
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match="P9"):
        run_each(run_seed, PLANTED_SEEDS, begin)
