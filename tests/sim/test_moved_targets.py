"""Histories in which targets move to other hosts with all that they hold, while workers, targets
and the coordinator die: no host has more columns of a payload than it may have in the end, wherever
others have places, and nothing is lost meanwhile (P1, P7, P13).
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

import pytest

from ckpt.base.ids import CheckpointId, Domain, TargetId
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.repairing.crowding import Crowding
from tests.landing import PLANTED, at_turn, in_turn
from tests.sim.histories import ends_of, run_each
from tests.sim.oracles import Violation
from tests.sim.repair_world import (
    ROUND_US,
    Disturbance,
    check_disks,
    lacks,
    list_again,
    read_all,
    revive,
    saved,
    worker,
)
from tests.sim.world import RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 10
"""Of each half: a landing runs one."""
SEEDS_SOAK = 2_000
PLANTED_SEEDS = 60


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `spread` or `apart`: whether any payload had to be spread again); raises
    Violation when a promise breaks.
    """
    # Hosts are the failure domains of such worlds.
    world = saved(3 * seed)
    rng = world.clock.rng
    workers = [worker(world, number) for number in range(rng.choice([1, 1, 2]))]
    disturbance = Disturbance(world, workers)
    for _ in range(rng.choice([1, 2])):
        span_us = rng.choice([1_000_000, 5_000_000, 20_000_000])
        disturbance.begin(span_us)
        for id in rng.sample(sorted(world.targets), rng.choice([1, 2])):
            world.clock.after(rng.randint(0, span_us), partial(_move, world, id))
        world.clock.pass_time(span_us + 1)
        world.heal()
        revive(world, workers)
    end = "spread" if _crowded(world) else "apart"
    world.clock.run(lambda: _is_left(world) == "", 2 * ROUND_US)
    if left := _is_left(world):
        raise Violation(f"P13: {2 * ROUND_US // 1_000_000} s later {left}")
    for each in workers:
        each.crash()
    list_again(world)
    check_disks(world)
    read_all(world)
    return world.clock.steps, [end]


def _move(world: World, id: TargetId) -> None:
    """Somebody puts its disk into another machine."""
    node = world.targets[id]
    others = sorted({t.domain.host for t in world.targets.values()} - {node.domain.host})
    node.crash()
    domain = node.domain
    node.domain = Domain(domain.power, domain.rack, world.clock.rng.choice(others), domain.device)
    world.clock.after(world.clock.rng.choice([100_000, 4_000_000]), node.start)


def _is_left(world: World) -> str:
    """Why it is not as it shall be; empty when it is."""
    return lacks(world) or _crowded(world)


def _crowded(world: World) -> str:
    """A payload of which a host has too many columns, while another has a place."""
    spread = world.oracles.spread
    host_of = {
        target.id: domain_key(target.id, target.domain, spread.level)
        for target in world.targets.values()
    }
    places = sum(min(n, spread.max_per_domain) for n in Counter(host_of.values()).values())
    for id in world.oracles.kept(RUN):
        for rank, columns in _placement(world, id).items():
            held = Counter(host_of[t] for t in columns if t is not None)
            over = sum(max(0, count - spread.max_per_domain) for count in held.values())
            if over > max(0, len(columns) - places):
                return f"rank {rank} of {id} lies on {dict(held)}"
    return ""


def _placement(world: World, id: CheckpointId) -> dict[int, tuple[TargetId | None, ...]]:
    checkpoint = world.coordinator.machine.checkpoints.get(id) if world.coordinator.up else None
    placement = {} if checkpoint is None else checkpoint.placement or {}
    return {rank: placed.columns for rank, placed in placement.items()}


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
def test_targets_move_to_other_hosts_and_their_payloads_are_spread_again(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("spread") >= SEEDS // 4


def nobody_looks(self: Crowding) -> None:
    """What lies together stays together."""


@at_turn(0, every=PLANTED)
def test_a_coordinator_that_does_not_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crowding, "tick", nobody_looks)
    with pytest.raises(Violation, match="P13"):
        run_each(run_seed, PLANTED_SEEDS)


@pytest.mark.slow
def test_many_histories_of_targets_that_move() -> None:
    ends_of(run_seed, SEEDS_SOAK)
