"""F20: everybody reads the same checkpoint at once. Nobody waits for ever, no target holds more
than its pool, and one bad target is made up for.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.landing import in_turn
from tests.sim.harms import kill, nothing, slow_down, stop
from tests.sim.reader_node import ReaderNode
from tests.sim.repair_world import ROUND_US, empty, lacks, saved, worker
from tests.sim.target_node import TargetNode
from tests.sim.world import World

READERS = 64
PAYLOAD_BYTES = 60_000
READ_US = 60_000_000
CLOSED_US = 200_000
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("harm", in_turn([nothing, kill, stop, slow_down], every=2))
def test_a_crowd_of_readers_is_served_from_bounded_memory(
    harm: Callable[[TargetNode], None], seed: int
) -> None:
    """What a target has read and not sent is held against its pool at each read (memory.py), what
    each reader was given against what was saved, as it comes.
    """
    world = World.build(seed)
    world.start()
    nodes = world.launch((10,), 0, PAYLOAD_BYTES)
    assert world.clock.run(lambda: all(node.outcomes for node in nodes), READ_US)
    readers = crowd_of_readers(world)
    world.clock.run(lambda: any(reader.reading for reader in readers), READ_US)
    harm(next(iter(world.targets.values())))
    assert world.clock.run(lambda: all(r.outcome is not None for r in readers), READ_US)
    assert {reader.outcome for reader in readers} == {"read"}
    world.heal()
    check_nothing_is_held(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crowd_of_readers_is_served_while_columns_are_made_again_and_these_are(seed: int) -> None:
    world = saved(seed)
    begun: list[bool] = []
    worker(world, 0, lambda: begun.append(True))
    empty(world, next(iter(world.targets.values())))
    while not begun:
        world.clock.pass_time(CLOSED_US)
    readers = crowd_of_readers(world)
    assert world.clock.run(lambda: all(r.outcome is not None for r in readers), READ_US)
    assert {reader.outcome for reader in readers} == {"read"}
    world.clock.run(lambda: lacks(world) == "", ROUND_US)
    assert lacks(world) == ""
    check_nothing_is_held(world)


def crowd_of_readers(world: World) -> list[ReaderNode]:
    readers = [world.read() for _ in range(READERS)]
    # A question for parts may pass its bytes by the rest of a cell, and the window here is one.
    for reader in readers:
        reader.reads_parts = False
    return readers


def check_nothing_is_held(world: World) -> None:
    world.clock.pass_time(CLOSED_US)
    assert not any(target.memory.held_bytes for target in world.targets.values() if target.up)
    assert not any(checkpoint.pins for checkpoint in world.coordinator.machine.checkpoints.all())
