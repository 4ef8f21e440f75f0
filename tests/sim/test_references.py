"""Histories of saves that refer to earlier ones, while those are deleted, expire and lose columns:
whatever is listed can be read whole, and what nobody needs goes (P1, P2, P3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.homes import Homes
from tests.landing import PLANTED, in_turn
from tests.sim import faults
from tests.sim.histories import check_share, ends_of, run_each
from tests.sim.last_checks import SETTLE_US, check_nothing_is_left, read_everything
from tests.sim.reference_nodes import built
from tests.sim.restarts import check_restart
from tests.sim.scenario import settle

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 20
"""Of each half: a landing runs one."""
SEEDS_SOAK = 400
PLANTED_SEEDS = 50
STEPS = (10, 20, 30, 40, 50)
RESTARTS = 4
"""Enough that every target has a tombstone of some of them."""
FAULTS = (
    faults.coordinator_crashed, faults.coordinator_crashed, faults.coordinator_crashed_at_write,
    faults.target_killed, faults.target_power_lost, faults.target_stopped, faults.write_failed,
    faults.connections_cut, faults.frames_stuttered, faults.half_opened, faults.target_lost,
    faults.trainer_killed, faults.stager_killed,
)  # fmt: skip


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `whole` or `referring` for each committed payload); raises Violation when a
    promise breaks.
    """
    world = built(seed)
    rng = world.clock.rng
    policy = world.coordinator.machine_policy
    world.coordinator.machine_policy = replace(policy, keep=rng.choice([None, 1, 2]))
    world.start()
    gap_us = rng.choice([30_000, 300_000])
    nodes = world.launch(STEPS, gap_us, rng.choice([200, 8192, 20_000]))
    for _ in range(rng.choice([0, 1, 2])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, 6 * gap_us), lambda fault=fault: fault(world))
    for _ in range(rng.choice([0, 1, 2])):
        world.clock.after(rng.randint(0, 6 * gap_us), world.delete_one)
        world.clock.after(rng.randint(0, 6 * gap_us), world.read)
    world.clock.pass_time(7 * gap_us)
    for node in nodes:
        node.crash()
    world.heal()
    for _ in range(rng.choice([0, 0, RESTARTS])):
        world.clock.run(lambda: world.live_targets >= 6, SETTLE_US)
        world.clock.pass_time(1_000_000)
        world.coordinator.crash()
        world.restart_coordinator()
    world.clock.run(lambda: world.live_targets >= 6 and not world.attempts, SETTLE_US)
    last = world.launch((60, 70), 50_000, 8192)
    settle(world, last)
    for node in last:
        node.crash()
    read_everything(world)
    check_nothing_is_left(world)
    check_restart(world)
    committed = [id for id in world.oracles.announced if id not in world.oracles.deleted]
    refer = [bool(world.oracles.announced[id].info.homes) for id in committed]
    return world.clock.steps, ["referring" if one else "whole" for one in refer]


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
@pytest.mark.timeout(1500)
def test_what_refers_to_other_checkpoints_can_always_be_read(begin: int) -> None:
    check_share("references", ends_of(run_seed, SEEDS, begin))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_more_of_them() -> None:
    ends_of(run_seed, SEEDS_SOAK)


# ----------------------------------------------------------------------- bugs that must be found


def _nobody_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is referred to goes when it is deleted."""
    monkeypatch.setattr(Homes, "hold", lambda *_: None)


def _a_restart_forgets_who_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only attempts hold; a new coordinator does not look at what is committed."""
    monkeypatch.setattr(KeptCheckpoint, "homes", ())


def _nobody_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home stays for what is gone."""

    def keep_only(self: Homes, user: CheckpointId, homes: Iterable[CheckpointId]) -> None:
        """Nothing goes."""

    monkeypatch.setattr(Homes, "keep_only", keep_only)


@pytest.mark.parametrize(
    "plant",
    in_turn(
        [
            _nobody_is_held,
            _a_restart_forgets_who_is_held,
            _nobody_lets_go,
        ],
        every=PLANTED,
        first=1,
    ),
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"P1|P3|P5"):
        run_each(run_seed, PLANTED_SEEDS)
