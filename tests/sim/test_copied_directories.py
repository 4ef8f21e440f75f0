"""Processes on copies of targets' directories knock all through bursts, while connections break and
the coordinator restarts: they never hold a seat, and every save commits whole.
"""

from __future__ import annotations

import copy
import os

import pytest

from ckpt.erasure.code import Code
from ckpt.protocol.stager.events import SaveCommitted
from tests.landing import in_turn
from tests.sim.target_node import TargetNode
from tests.sim.world import World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 10
"""Of each half: a landing runs one."""
STEPS = tuple(range(10, 90, 10))
PATIENCE_US = 240_000_000
COPIES = 2


def impostor_of(world: World, original: TargetNode, number: int) -> TargetNode:
    """A process on a copy of its directory as it is now, somewhere else."""
    made = TargetNode(
        world.clock, world.network, world.coordinator, int(original.id[1:]), world.seed,
        first_boot=500 + number,
    )  # fmt: skip
    made.name = f"{original.name} copy {number}"
    made.place = made.name
    made.domain = original.domain
    made.disk = copy.deepcopy(original.disk)
    made.start()
    return made


def strike(world: World) -> None:
    """A target's connection breaks, or the coordinator's process ends and comes back."""
    rng = world.clock.rng
    if rng.random() < 0.3:
        world.coordinator.crash()
        world.clock.after(rng.randint(10_000, 2_000_000), world.restart_coordinator)
        return
    target = rng.choice(list(world.targets.values()))
    for session in world.network.sessions_of(target):
        world.network.cut(session)


def history(seed: int) -> int:
    """How often an impostor was refused."""
    world = World.build(seed, 7, Code(4, 2))
    world.start()
    rng = world.clock.rng
    originals = rng.sample(list(world.targets.values()), COPIES)
    impostors: list[TargetNode] = []
    for number, original in enumerate(originals):
        world.clock.after(
            rng.randint(0, 1_000_000),
            lambda o=original, n=number: impostors.append(impostor_of(world, o, n)),
        )
    for _ in range(rng.randint(1, 5)):
        world.clock.after(rng.randint(100_000, 6_000_000), strike, world)
    nodes = world.launch(STEPS, 400_000, 20_000)
    members = world.coordinator.machine.members
    boots = {id: target.boot for id, target in members.targets.items()}
    refused = 0

    def is_done() -> bool:
        nonlocal refused
        if world.coordinator.up:
            members = world.coordinator.machine.members
            refused += bool(members.claims())
            for id, target in members.targets.items():
                assert target.boot in (0, boots[id]), f"seed {seed}: an impostor is target {id}"
        return all(len(node.outcomes) == len(STEPS) for node in nodes)

    assert world.clock.run(is_done, PATIENCE_US), f"seed {seed}: saves do not end"
    ends = [end for node in nodes for end in node.outcomes.values()]
    assert any(isinstance(end, SaveCommitted) for end in ends)
    for impostor in impostors:
        impostor.crash()
    return refused


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6))
def test_no_copy_ever_takes_a_seat_that_a_living_process_has(begin: int) -> None:
    assert sum(history(seed) > 0 for seed in range(begin, begin + SEEDS)) > SEEDS // 2
