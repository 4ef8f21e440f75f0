"""As many targets as columns: what loses its place gets none but the same one again.

With a target lost for good or full nothing more can be saved there; but each save ends and says so.
"""

from __future__ import annotations

import os

import pytest

from ckpt.erasure.code import Code
from ckpt.protocol.stager.records import SaveState
from tests.landing import in_turn
from tests.sim.oracles import Violation
from tests.sim.scenario import run_history
from tests.sim.world import World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 4
"""Of each of four tests."""
PATIENCE_US = 60_000_000
"""Whatever a save waits for, it waits no longer."""


@pytest.mark.parametrize("first", in_turn(range(540, 540 + 4 * SEEDS, SEEDS), every=4))
def test_every_save_ends_where_no_target_is_spare(first: int) -> None:
    ended = 0
    for seed in range(first, first + SEEDS):
        world = World.build(seed, 3, Code(2, 1))
        try:
            run_history(world)
        except (Violation, ValueError) as error:
            if "P4" in str(error):
                raise Violation(f"seed {seed}: {error}") from error
        else:
            ended += 1
        _check_ended(world, seed)
    assert ended > SEEDS // 2


def _check_ended(world: World, seed: int) -> None:
    """No stager that lives keeps a save for ever."""
    world.clock.pass_time(PATIENCE_US)
    for node in world.ranks:
        saves = node.machine.saves if node.up else {}
        waiting = [n for n, save in saves.items() if save.state is not SaveState.ENDED]
        if waiting:
            raise Violation(f"P4: seed {seed}: {node.name} keeps saves {waiting} without an end")
