"""Histories of jobs that load a step by its number while other launches save it again and again:
what one rank of a launch holds of a load that all its ranks do, all hold (decision 0017).

Ranks may load alone in between, all but one; then they meet before each common load, as collectives
make them. A coordinator cannot tell a load of one rank from a late part of one of all.
"""

from __future__ import annotations

import os

import pytest

from ckpt.base.ids import Step
from ckpt.protocol.coordinator.cluster.launch import Launch
from tests.landing import PLANTED, at_turn, in_turn
from tests.sim import faults
from tests.sim.histories import ENOUGH, check_share, ends_of
from tests.sim.last_checks import SETTLE_US
from tests.sim.load_nodes import LoadJob
from tests.sim.numbered_rank import Load, NumberedRank
from tests.sim.oracles import Violation
from tests.sim.planted import BY_NUMBER_PLANTS, Plant
from tests.sim.restarts import check_restart
from tests.sim.world import RANK_COUNT, RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "400")) // 20
"""Of each half: a landing runs one."""
STEP = Step(10)
COMMON_LOADS = 4
FAULTS = (
    faults.coordinator_crashed, faults.coordinator_crashed, faults.coordinator_crashed,
    faults.target_killed, faults.connections_cut, faults.connections_cut,
    faults.frames_stuttered, faults.half_opened,
)  # fmt: skip
ENDS = {"read", "lost", "unavailable", "crashed"}


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each rank's script ended); raises Violation when a promise breaks."""
    world = World.build(seed + seed // 3)  # Launches that save have keys: they overlap.
    rng = world.clock.rng
    world.start()
    _save(world)
    if not world.clock.run(lambda: len(world.oracles.announced) == 1, 5_000_000):
        raise Violation("a save without a fault does not commit")
    span_us = rng.choice([20_000, 100_000, 500_000])
    ranks = _launch(world, span_us)
    for _ in range(rng.choice([1, 3, 6])):
        world.clock.after(rng.randint(0, 3 * span_us), _save, world)
    for _ in range(rng.choice([0, 1, 2])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, 3 * span_us), lambda fault=fault: fault(world))
    world.clock.pass_time(3 * span_us)
    world.heal()
    if not world.clock.run(lambda: all(node.outcome for node in ranks), 4 * SETTLE_US):
        raise Violation(f"P4: loads have no end: {[(n.name, n.outcome) for n in ranks]}")
    ends = [str(node.outcome) for node in ranks]
    if not ENDS.issuperset(ends):
        raise Violation(f"P3: loads ended otherwise than {sorted(ENDS)}: {ends}")
    _check(ranks)
    check_restart(world)
    return world.clock.steps, ends


def _save(world: World) -> None:
    """Another launch saves the step, as the last act of its processes."""
    for node in world.launch((STEP,), 2_000, 100):
        world.clock.after(1_500_000, node.crash)


def _launch(world: World, span_us: int) -> list[NumberedRank]:
    rng = world.clock.rng
    loads_alone = rng.random() < 0.5
    meets = loads_alone or rng.random() < 0.5
    never_alone = rng.randrange(RANK_COUNT)
    ranks: list[NumberedRank] = []

    def may_begin(common: int) -> bool:
        return not meets or all(one.outcome or one.common_done >= common for one in ranks)

    for rank in range(RANK_COUNT):
        script = []
        by_number = rng.random() < 0.8
        for common in range(COMMON_LOADS):
            while loads_alone and rank != never_alone and rng.random() < 0.3:
                script.append(Load(None, True, rng.randint(0, span_us)))
            script.append(Load(common, by_number or common > 0, rng.randint(0, span_us)))
        ranks.append(
            NumberedRank(
                world.clock, world.network, world.oracles, world.coordinator,
                lambda id: world.targets[id], LoadJob(RUN, "readers", RANK_COUNT), rank,
                STEP, script, may_begin,
            )
        )  # fmt: skip
    for node in ranks:
        node.start()
    return ranks


def _check(ranks: list[NumberedRank]) -> None:
    for common in range(COMMON_LOADS):
        held = {one.name: str(one.held[common]) for one in ranks if common in one.held}
        if len(set(held.values())) > 1:
            raise Violation(f"P2: load {common} of one launch holds two generations: {held}")


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(17) == run_seed(17)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
@pytest.mark.timeout(1500)
def test_no_load_of_a_launch_ever_holds_two_generations(begin: int) -> None:
    check_share("by number", ends_of(run_seed, SEEDS, begin))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plant", in_turn(BY_NUMBER_PLANTS, every=PLANTED), ids=lambda plant: plant.name
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    def run_until_found() -> None:
        for seed in range(400):
            run_seed(seed)

    with plant.planted(), pytest.raises(Violation, match=r"P2|P10"):
        run_until_found()


@at_turn(2, every=PLANTED)
def test_loads_that_fail_more_often_than_they_must_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a launch has loaded is let go of while it lives: each failure alone is honest."""
    monkeypatch.setattr(Launch, "live", property(lambda launch: bool(launch.readers)))
    with pytest.raises(Violation, match="by number: only"):
        check_share("by number", ends_of(run_seed, ENOUGH // RANK_COUNT))
