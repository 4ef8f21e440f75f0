"""Histories in which steps expire that later ones refer to, and disks are emptied one after the
other, more than any code survives at once: what a deleted step holds for others is made again like
all that is kept (P1, P7).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from tests.landing import PLANTED, at_turn, in_turn
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.reference_nodes import built
from tests.sim.repair_world import (
    REBUILD_AFTER_US,
    ROUND_US,
    Disturbance,
    empty,
    lacks,
    read_all,
    revive,
    worker,
)
from tests.sim.world import RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 20
"""Of each half: a landing runs one."""
SEEDS_SOAK = 1_000
PLANTED_SEEDS = 40
STEPS = (10, 20, 30, 40)


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `home` or `kept` for each generation that is needed at the end); raises
    Violation when a promise breaks.
    """
    world = built(seed)
    rng = world.clock.rng
    policy = world.coordinator.machine_policy
    world.coordinator.machine_policy = replace(
        policy, keep=rng.choice([1, 2]), rebuild_after_us=REBUILD_AFTER_US
    )
    world.start()
    nodes = world.launch(STEPS, 30_000, rng.choice([200, 8192, 20_000]))
    world.clock.run(lambda: all(node.done_saving for node in nodes), SETTLE_US)
    world.clock.pass_time(3_000_000)
    for node in nodes:
        node.crash()
    workers = [worker(world, 0)]
    disturbance = Disturbance(world, workers)
    for _ in range(rng.choice([2, 3])):
        for id in rng.sample(sorted(world.targets), 1):
            world.clock.after(
                rng.randint(0, 900_000), lambda id=id: empty(world, world.targets[id])
            )
        span_us = rng.choice([1_000_000, 5_000_000])
        disturbance.begin(span_us)
        world.clock.pass_time(span_us + 1)
        world.heal()
        revive(world, workers)
        world.clock.run(lambda: lacks(world) == "", ROUND_US)
        if left := lacks(world):
            raise Violation(f"P7: not whole again after {ROUND_US // 1_000_000} s: {left}")
    for each in workers:
        each.crash()
    world.clock.pass_time(8_000_000)
    read_all(world)
    return world.clock.steps, _needed(world)


def _needed(world: World) -> list[str]:
    """What is there at the end."""
    known = world.coordinator.machine.checkpoints.of_run(RUN, *RowState)
    return ["home" if one.state is RowState.TOMBSTONED else "kept" for one in known]


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
def test_what_a_deleted_step_holds_for_others_is_made_again(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("home") >= SEEDS // 4


@at_turn(2, every=PLANTED)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what can be read is made again."""
    monkeypatch.setattr(
        KeptCheckpoint, "is_needed", property(lambda self: self.state is RowState.COMMITTED)
    )
    with pytest.raises(AssertionError, match=r"P7|P1"):
        run_each(run_seed, PLANTED_SEEDS)


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
