"""Histories in which a rank dies and comes again in the same launch behind its peers' saves, while
the coordinator may crash: nobody waits for ever, and the next launch commits.
"""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from ckpt.format.messages.launches import JoinLaunch
from ckpt.protocol.coordinator.saving import abandoned
from ckpt.protocol.stager import requests
from ckpt.protocol.stager.events import Outcome, SaveCommitted, SaveFailed
from ckpt.protocol.stager.records import Launched
from ckpt.protocol.stager.requests import SaverIdentity
from tests.landing import at_turn
from tests.sim import faults
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Oracles, Violation
from tests.sim.rank_node import RankNode
from tests.sim.restarts import check_restart
from tests.sim.world import World

SEEDS = max(40, int(os.environ.get("CKPT_SIM_SEEDS", "400")) // 20)
"""One save of a late rank in a dozen commits: fewer seeds may have none."""
FAULTS = (faults.target_killed, faults.target_stopped, faults.connections_cut, faults.half_opened)
STEPS = (10, 20)


class _Oracles(Oracles):
    """A step is saved several times in one launch here: that one of them failed says nothing of the
    others. What is told of a commit is still held against what is announced.
    """

    def trainer_told(self, node: RankNode, step: int, outcome: Outcome) -> None:
        if isinstance(outcome, SaveCommitted):
            Oracles.trainer_told(self, node, step, outcome)


class _World(World):
    oracles_type = _Oracles


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each of the late rank's saves ended)."""
    seed = 4 * seed + seed % 3  # With a key: without one it would be another launch.
    world = _World.build(seed)
    rng = world.clock.rng
    world.start()
    nodes = world.launch(STEPS, rng.choice([2_000, 400_000]), 4096)
    world.clock.pass_time(rng.randint(1_000, 500_000))
    if rng.random() < 0.5:
        rng.choice(FAULTS)(world)
    dead = rng.choice(nodes)
    dead.crash()
    world.clock.pass_time(rng.choice([100_000, 5_000_000, 20_000_000, 40_000_000]))
    world.heal()
    late = world.start_again(dead)
    nodes[nodes.index(dead)] = late
    if rng.random() < 0.5:
        world.clock.after(
            rng.choice([0, 500_000, 70_000_000]), lambda: faults.coordinator_crashed(world)
        )
    if not world.clock.run(lambda: all(_ended(node) for node in nodes), SETTLE_US):
        open_now = [(str(a.checkpoint), a.missing_ranks) for a in world.attempts]
        raise Violation(f"P4: {late.name} waits without an end: {open_now}")
    world.clock.pass_time(1_000_000)
    _check_next_launch(world)
    check_restart(world)
    return world.clock.steps, [_name(late.outcomes[step]) for step in STEPS]


def _ended(node: RankNode) -> bool:
    return len(node.outcomes) == len(STEPS)


def _name(outcome: object) -> str:
    if isinstance(outcome, SaveFailed):
        assert outcome.code == "aborted", outcome
    return type(outcome).__name__


def _check_next_launch(world: World) -> None:
    last = world.launch((30,), 2_000, 4096)
    world.clock.run(lambda: all(node.outcomes for node in last), SETTLE_US)
    ends = [node.outcomes.get(30) for node in last]
    if not all(isinstance(end, SaveCommitted) for end in ends):
        raise Violation(f"the launch behind it cannot save: {ends}")


@at_turn(0, every=4)
@pytest.mark.timeout(600)
def test_a_rank_that_comes_late_is_never_left_waiting() -> None:
    ends = ends_of(run_seed, SEEDS)
    assert "SaveFailed" in ends
    assert "SaveCommitted" in ends


def test_the_history_finds_a_coordinator_that_lets_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned, "PEERS_WAIT_US", 1 << 60)
    with pytest.raises(AssertionError, match="waits without an end"):
        run_each(run_seed, 20)


def test_the_history_finds_a_coordinator_that_forgets_who_had_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = requests.join

    def forgetful(who: SaverIdentity, run: Launched, now_us: int) -> JoinLaunch:
        return replace(join(who, run, now_us), saved_step=None)

    monkeypatch.setattr(requests, "join", forgetful)
    with pytest.raises(AssertionError, match="waits without an end"):
        run_each(run_seed, 100, begin=15)
