"""A device that refuses every write: a few columns are moved, then no plan names it; it comes back
by its own probe. A full one is not taken for it.
"""

from __future__ import annotations

import pytest

from ckpt.base.ids import TargetId
from ckpt.base.limits import DEVICE_FAILURES_MAX, DEVICE_PROBE_US
from ckpt.erasure.code import Code
from ckpt.protocol.stager.events import SaveCommitted, SaveFailed
from ckpt.testing.disk import Fault
from tests.landing import in_turn
from tests.sim.target_node import TargetNode
from tests.sim.world import RANK_COUNT, World

STEPS = tuple(range(10, 210, 10))
EVER = 1 << 30
PAYLOAD_BYTES = 60_000
GAP_US = 50_000
PATIENCE_US = 120_000_000


def outcomes(world: World, steps: tuple[int, ...]) -> list[SaveCommitted | SaveFailed]:
    """What each rank was told of each save."""
    nodes = world.launch(steps, GAP_US, PAYLOAD_BYTES)
    done = world.clock.run(
        lambda: all(len(node.outcomes) == len(steps) for node in nodes), PATIENCE_US
    )
    assert done
    return [outcome for node in nodes for outcome in node.outcomes.values()]


def saved(world: World, steps: tuple[int, ...]) -> list[SaveCommitted]:
    """The same, where all of them committed."""
    ends = outcomes(world, steps)
    committed = [end for end in ends if isinstance(end, SaveCommitted)]
    assert len(committed) == len(ends), ends
    return committed


def begun(seed: int, target_count: int = 7) -> tuple[World, TargetNode]:
    world = World.build(seed, target_count, Code(2, 1))
    world.start()
    bad = world.targets[TargetId("t0")]
    assert world.clock.run(lambda: bad.machine.registered, 1_000_000)
    return world, bad


@pytest.mark.parametrize("operation", ["write", "sync", "preallocate", "rename"])
@pytest.mark.parametrize("seed", in_turn(range(3), every=3))
def test_only_a_few_columns_are_moved_from_a_device_that_refuses_everything(
    operation: str, seed: int
) -> None:
    world, bad = begun(seed)
    bad.disk.faults.append(Fault(operation, count=EVER))
    committed = saved(world, STEPS)
    assert all(outcome.info.targets_survivable >= 1 for outcome in committed)
    assert world.coordinator.machine.members.targets[bad.id].is_failing
    moved = bad.machine.counters["columns_refused"]
    assert moved <= DEVICE_FAILURES_MAX + 2 * RANK_COUNT, "and what was under way"


@pytest.mark.parametrize("seed", in_turn(range(3), every=3))
def test_it_is_back_in_plans_once_its_probe_succeeds(seed: int) -> None:
    world, bad = begun(seed)
    fault = Fault("write", count=EVER)
    bad.disk.faults.append(fault)
    saved(world, STEPS)
    bad.disk.faults.remove(fault)
    members = world.coordinator.machine.members
    assert world.clock.run(lambda: not members.targets[bad.id].is_failing, 4 * DEVICE_PROBE_US)
    sealed = bad.machine.counters["columns_sealed"]
    saved(world, tuple(step + 1000 for step in STEPS))
    assert bad.machine.counters["columns_sealed"] > sealed


@pytest.mark.parametrize("seed", in_turn(range(3), every=3))
def test_a_save_that_needs_it_still_asks_it(seed: int) -> None:
    """Three targets for 2+1: without the failing one there are too few."""
    world, bad = begun(seed, target_count=3)
    bad.disk.faults.append(Fault("write", file="staging/probe", count=EVER))
    bad.disk.faults.append(Fault("write", count=DEVICE_FAILURES_MAX))
    ends = outcomes(world, STEPS[:6])
    first = [end for end in ends if not isinstance(end, SaveCommitted)]
    assert len(first) <= RANK_COUNT, "the save that was struck, and no later one"
    assert world.coordinator.machine.members.targets[bad.id].is_failing


def test_a_full_device_is_no_failing_one() -> None:
    world, bad = begun(1)
    bad.disk.faults.append(Fault("preallocate", "ENOSPC", count=EVER))
    saved(world, STEPS[:5])
    assert bad.machine.device.errors["space"] > DEVICE_FAILURES_MAX
    assert not world.coordinator.machine.members.targets[bad.id].is_failing
