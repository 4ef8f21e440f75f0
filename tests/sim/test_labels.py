"""Histories in which people name, pin and delete steps of two runs beside saves and retention: what
was said is there, on targets too, and keeps its step, whatever falls meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.landing import in_turn
from tests.sim import faults
from tests.sim.aimed import OF_TARGETS, STRIKES, catalog_windows, kill_coordinator
from tests.sim.histories import ends_of
from tests.sim.label_nodes import RUNS, LabelWorld, built
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.rank_node import RankNode
from tests.sim.restarts import check_restart
from tests.sim.scenario import settle
from tests.sim.windows import Aim, Window

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 24
"""Of each half: a landing runs one."""
CHANGES = 10
CHANGES_AFTER = 3
"""When all has healed."""
STEPS, LAST_STEPS = (10, 20, 30), (40, 50)

FAULTS = (
    faults.disks_filled, faults.coordinator_crashed, faults.coordinator_crashed, faults.target_killed,
    faults.target_power_lost, faults.target_torn, faults.target_stopped, faults.target_slowed,
    faults.write_failed, faults.sync_failed, faults.disk_filled, faults.connections_cut,
    faults.half_opened, faults.parted_one_way, faults.target_lost,
)  # fmt: skip
OF_CATALOG = tuple(catalog_windows("LabelsSent", "CheckpointLabeled", "CheckpointTombstoned"))
OF_DOCUMENTS = tuple(w._replace(of="labels") for w in OF_TARGETS if w.of == "record")
PASSES_MAX = 6
LOOKS = 4


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each change ended)."""
    world = built(seed)
    rng = world.clock.rng
    keep = rng.choice([None, 1, 1, 2])
    world.coordinator.machine_policy = replace(world.coordinator.machine_policy, keep=keep)
    world.start()
    world.gap_us = gap_us = rng.choice([30_000, 300_000])
    nodes = _launch(world, STEPS)
    world.label(CHANGES)
    _befall(world)
    world.clock.pass_time(6 * gap_us)
    for node in nodes:
        node.crash()
    if seed % 2:
        _rebuild(world, rng.randint(0, world.coordinator.machine_policy.code.m))
    world.clock.pass_time(rng.choice([0, 0, 2_000_000]))
    _heal(world)
    nodes = _launch(world, LAST_STEPS)
    world.label_on(CHANGES_AFTER)
    settle(world, nodes)
    if not world.clock.run(lambda: not any(admin.waits for admin in world.admins), SETTLE_US):
        waiting = [(admin.name, admin.changes) for admin in world.admins if admin.waits]
        raise Violation(f"P4: nobody answers {waiting}")
    world.clock.pass_time(5_000_000)
    world.check_labels()
    world.look()
    check_restart(world)
    return world.clock.steps, [end for admin in world.admins for end in admin.ends]


def _launch(world: LabelWorld, steps: tuple[int, ...]) -> list[RankNode]:
    return [node for run in RUNS for node in world.launch(steps, world.gap_us, 200, run)]


def _befall(world: LabelWorld) -> None:
    """Faults at any time, one that is aimed, and looks at what a rebuild would find."""
    rng, within_us = world.clock.rng, 6 * world.gap_us
    for _ in range(rng.choice([0, 1, 2, 3])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, within_us), lambda fault=fault: fault(world))
    if rng.random() < 0.75:
        _aim(world, rng.choice(rng.choice([OF_CATALOG, OF_DOCUMENTS])))
    for _ in range(LOOKS):
        world.clock.after(rng.randint(0, within_us), world.look)


def _aim(world: LabelWorld, window: Window) -> None:
    rng = world.clock.rng
    who = rng.choice(["coordinator", "coordinator", "killed", "power", "all"])
    strike = kill_coordinator if window in OF_CATALOG else STRIKES[who]
    world.windows.aim(Aim(window, rng.randint(1, PASSES_MAX), lambda node: strike(world, node)))


def _rebuild(world: LabelWorld, away: int) -> None:
    """The catalog is lost, and so many targets do not answer whoever makes it again."""
    world.coordinator.crash()
    for target in world.targets.values():
        target.crash()
    found = world.rebuilt(away, at_once=False)
    world.coordinator.begin_from(found.image)
    for target in world.targets.values():
        if target.name not in {text.partition(":")[0] for text in found.unreachable}:
            target.start()
    world.restart_coordinator()


def _heal(world: LabelWorld) -> None:
    """A target that was away may know more than was found without it: then it is made again."""

    def is_old() -> bool:
        return world.coordinator.up and bool(world.coordinator.machine.vouching.reason)

    def all_live() -> bool:
        return world.live_targets >= sum(not target.lost for target in world.targets.values())

    world.heal()
    world.clock.run(lambda: is_old() or all_live(), SETTLE_US)
    if is_old():
        _rebuild(world, 0)
        world.heal()
        world.clock.run(all_live, SETTLE_US)


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
@pytest.mark.timeout(600)
def test_what_people_say_of_a_step_holds(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert {"done", "deleted", "refused", "not_found", "lost"} <= set(ends)
