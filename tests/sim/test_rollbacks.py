"""Histories in which two runs are rolled back, and what was set aside is brought back, beside saves
of the same steps again, rules of retention and faults: nobody gets as the newest what is aside, and
nothing of it expires.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ckpt.format.messages.keeping import Retention
from ckpt.protocol.coordinator.keeping.retaining import LOOK_US
from tests.landing import in_turn
from tests.sim.aimed import catalog_windows, kill_coordinator
from tests.sim.histories import ends_of
from tests.sim.label_nodes import RUNS
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.rank_node import RankNode
from tests.sim.restarts import check_restart
from tests.sim.roll_nodes import RollWorld, built
from tests.sim.scenario import settle
from tests.sim.test_labels import FAULTS
from tests.sim.windows import Aim

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 24
"""Of each half: a landing runs one."""
STEPS, AGAIN, LAST_STEPS = (10, 20, 30, 40), (30, 40, 50), (40, 60)
"""Some are saved again."""
WINDOWS = tuple(catalog_windows("LabelsSent", "CheckpointLabeled", "CheckpointTombstoned"))
PASSES_MAX = 6
LOOKS = 4


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each change and each load ended, and `expired` for each step that did)."""
    world = built(seed)
    rng = world.clock.rng
    keep = rng.choice([None, 1, 2])
    world.coordinator.machine_policy = replace(world.coordinator.machine_policy, keep=keep)
    world.rules.clusters = Retention(last=keep)
    world.start()
    world.gap_us = gap_us = rng.choice([30_000, 300_000])
    nodes = _launch(world, STEPS)
    world.say(rng.choice([0, 2]))
    world.roll(10)
    _befall(world)
    world.clock.pass_time(6 * gap_us)
    nodes = _instead(world, nodes, AGAIN)
    world.clock.pass_time(4 * gap_us)
    for node in nodes:
        node.crash()
    if seed % 2:
        world.lose_catalog()
    world.clock.pass_time(rng.choice([0, 0, 2_000_000]))
    world.heal()
    nodes = _launch(world, LAST_STEPS)
    world.roll(4)
    settle(world, nodes)
    askers = [*world.rollers, *world.keepers]
    if not world.clock.run(lambda: not any(one.waits for one in askers), SETTLE_US):
        raise Violation(f"P4: nobody answers {[one.name for one in askers if one.waits]}")
    world.clock.pass_time(LOOK_US + 5_000_000)
    world.check_left()
    world.look()
    check_restart(world)
    ends = [end for roller in world.rollers for end in roller.ends]
    return world.clock.steps, ends + ["expired"] * world.rules.expired


def _launch(world: RollWorld, steps: tuple[int, ...]) -> list[RankNode]:
    return [node for run in RUNS for node in world.launch(steps, world.gap_us, 200, run)]


def _instead(world: RollWorld, nodes: list[RankNode], steps: tuple[int, ...]) -> list[RankNode]:
    """The job is started again."""
    for node in nodes:
        node.crash()
    return _launch(world, steps)


def _befall(world: RollWorld) -> None:
    rng, within_us = world.clock.rng, 8 * world.gap_us
    for _ in range(rng.choice([0, 1, 2])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, within_us), lambda fault=fault: fault(world))
    if rng.random() < 0.75:
        window, passes = rng.choice(WINDOWS), rng.randint(1, PASSES_MAX)
        world.windows.aim(Aim(window, passes, lambda node: kill_coordinator(world, node)))
    for _ in range(LOOKS):
        world.clock.after(rng.randint(0, within_us), world.look)


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
@pytest.mark.timeout(600)
def test_what_is_aside_is_never_the_newest_and_never_expires(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert {"rolled back", "brought back", "loaded", "lost", "expired"} <= set(ends)
