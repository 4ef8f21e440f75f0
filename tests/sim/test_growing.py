"""F24: targets join in the middle of bursts and loads, and others leave for good. All saves commit
and hold what they say, later ones use who is there, and every load gets what was saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from ckpt.base.ids import TargetId
from ckpt.erasure.code import Code
from ckpt.protocol.stager.events import SaveCommitted
from ckpt.testing.disk import Keep
from tests.landing import in_turn
from tests.sim.target_node import TargetNode
from tests.sim.world import World
from tests.sim.worst_losses import check_worst_losses

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 10
"""Of each half: a landing runs one."""
STEPS = tuple(range(10, 130, 10))
PATIENCE_US = 240_000_000
COMES = 3
LEAVES = 2
"""As many as a checkpoint of before survives."""


def comes(world: World, number: int) -> None:
    """A new target on a new device."""
    node = TargetNode(world.clock, world.network, world.coordinator, number, world.seed)
    world.targets[node.id] = node
    node.start()


def leaves(world: World, id: TargetId) -> None:
    """Switched off, and never seen again."""
    world.targets[id].crash(Keep.SOME)
    world.targets[id].lost = True


PAYLOAD_BYTES = 60_000
READERS = 12
READ_US = 60_000_000


def history(seed: int) -> World:
    """Bursts of saves while the cluster changes."""
    world = World.build(seed, 7, Code(4, 2))
    world.start()
    rng = world.clock.rng
    for number in range(7, 7 + COMES):
        world.clock.after(rng.randint(0, 4_000_000), comes, world, number)
    for id in rng.sample(sorted(world.targets), LEAVES):
        world.clock.after(rng.randint(0, 4_000_000), leaves, world, id)
    nodes = world.launch(STEPS, rng.choice([2_000, 300_000]), rng.choice([100, 20_000]))
    done = world.clock.run(lambda: all(len(n.outcomes) == len(STEPS) for n in nodes), PATIENCE_US)
    assert done, f"seed {seed}: saves do not end"
    ends = [end for node in nodes for end in node.outcomes.values()]
    assert all(isinstance(end, SaveCommitted) for end in ends), f"seed {seed}: {ends}"
    world.clock.pass_time(5_000_000)
    return world


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
def test_a_cluster_that_grows_and_shrinks_keeps_its_promises(begin: int) -> None:
    used = 0
    for seed in range(begin, begin + SEEDS):
        world = history(seed)
        check_worst_losses(world)
        joined = [world.targets[TargetId(f"t{number}")] for number in range(7, 7 + COMES)]
        used += any(target.machine.counters["columns_sealed"] for target in joined)
    assert used > SEEDS // 4, "who joins is used"


def loads(seed: int) -> tuple[int, set[str | None]]:
    """(how many targets came or left while somebody read, how the loads ended)."""
    world = World.build(seed, 7, Code(4, 2))
    world.start()
    rng = world.clock.rng
    nodes = world.launch((10,), 0, PAYLOAD_BYTES)
    assert world.clock.run(lambda: all(node.outcomes for node in nodes), PATIENCE_US)
    struck = 0

    def strike(change: Callable[[], None]) -> None:
        nonlocal struck
        struck += any(reader.reading for reader in world.readers)
        change()

    for number in range(7, 7 + COMES):
        world.clock.after(rng.randint(0, 60_000), strike, partial(comes, world, number))
    for id in rng.sample(sorted(world.targets), LEAVES):
        world.clock.after(rng.randint(0, 60_000), strike, partial(leaves, world, id))
    for _ in range(READERS):
        world.clock.after(rng.randint(0, 60_000), _read, world)
    world.clock.pass_time(60_000)
    assert world.clock.run(lambda: all(r.outcome is not None for r in world.readers), READ_US)
    return struck, {reader.outcome for reader in world.readers}


def _read(world: World) -> None:
    # A question for parts may pass its bytes by the rest of a cell, and the window here is one.
    world.read().reads_parts = False


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
def test_loads_get_what_was_saved_while_targets_come_and_leave(begin: int) -> None:
    """Their bytes are compared as they come (P3)."""
    struck = 0
    for seed in range(begin, begin + SEEDS):
        changes, ends = loads(seed)
        assert ends == {"read"}, f"seed {seed}"
        struck += changes
    assert struck > SEEDS * COMES, "most of them in the middle of a load"
