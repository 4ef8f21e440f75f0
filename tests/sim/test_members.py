"""Histories in which targets are drained, taken out and removed while workers, targets and the
coordinator die: what they had is elsewhere then, whole and once, and who was removed stays away
(P1, P7, P13).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import TargetChanged
from ckpt.format.messages.hello import Failed
from ckpt.protocol.coordinator.catalog import TargetStanding
from ckpt.protocol.coordinator.cluster.claims import Claims
from ckpt.protocol.coordinator.cluster.membership import Target, TargetState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from ckpt.protocol.coordinator.keeping.standings import Standings
from tests.landing import PLANTED, at_turn, in_turn, turn_of
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.member_operator import MemberOperator
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
from tests.sim.world import World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 20
SEEDS_SOAK = 2_000
PLANTED_SEEDS = 60


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, what became of each wish); raises Violation when a promise breaks."""
    world = saved(seed)
    rng = world.clock.rng
    operator = MemberOperator(world.clock, world.network, world.coordinator)
    operator.look()
    workers = [worker(world, number) for number in range(rng.choice([1, 1, 2]))]
    disturbance = Disturbance(world, workers)
    removed: set[TargetId] = set()
    ends: list[str] = []
    for _ in range(rng.choice([2, 3, 4])):
        id = rng.choice(sorted(world.targets.keys() - removed))
        standing = rng.choice(["draining", "draining", "out"])
        span_us = rng.choice([1_000_000, 5_000_000, 20_000_000])
        disturbance.begin(span_us)
        world.clock.after(rng.randint(0, span_us), partial(operator.want, id, standing))
        world.clock.pass_time(span_us + 1)
        _heal(world, removed)
        revive(world, workers)
        if not isinstance(_answer(world, operator), TargetChanged):
            ends.append("refused")
            continue
        world.clock.run(lambda id=id: _is_left(world, id) == "", ROUND_US)
        if left := _is_left(world, id):
            raise Violation(f"P7: {id} is not empty after {ROUND_US // 1_000_000} s: {left}")
        ends.append(_end(world, operator, id, removed))
    for each in workers:
        each.crash()
    list_again(world)
    for id in sorted(removed):
        world.targets[id].start()
    world.clock.pass_time(8_000_000)
    _check_removed(world, removed)
    check_disks(world)
    read_all(world)
    return world.clock.steps, ends


def _heal(world: World, removed: set[TargetId]) -> None:
    world.heal()
    for id in sorted(removed):
        if world.clock.rng.random() < 0.5:
            world.targets[id].crash()


def _answer(world: World, operator: MemberOperator) -> object:
    world.clock.run(lambda: operator.answer is not None, SETTLE_US)
    if operator.answer is None:
        raise Violation("nobody answers who says how a target stands")
    return operator.answer


def _is_left(world: World, id: TargetId) -> str:
    """What it has that is nowhere else; empty when nothing is left."""
    if missing := lacks(world):
        return missing
    machine = world.coordinator.machine
    named = [
        checkpoint.id
        for checkpoint in machine.checkpoints.all()
        for placed in (checkpoint.placement or {}).values()
        if id in placed.columns
    ]
    columns = world.targets[id].disk.durable_names("columns")
    return f"named by {named}, has {columns}" if named or columns else ""


def _end(
    world: World, operator: MemberOperator, id: TargetId, removed: set[TargetId]
) -> str:  # fmt: skip
    """It is taken back, or removed, which may be refused only by how it stands."""
    if world.clock.rng.random() < 0.5:
        operator.want(id, "in")
        _answer(world, operator)
        return "taken back"
    operator.want(id, "removed")
    _keep_down(world, operator, id)
    answer = _answer(world, operator)
    if isinstance(answer, Failed) and "are away" in answer.message:
        return "not now"
    if not isinstance(answer, TargetChanged):
        raise Violation(f"{id} is empty, and is not removed: {answer}")
    removed.add(id)
    return "removed"


def _keep_down(world: World, operator: MemberOperator, id: TargetId) -> None:
    """A fault of before may start it again."""
    if operator.answer is None:
        world.targets[id].crash()
        world.clock.after(500_000, lambda: _keep_down(world, operator, id))


def _check_removed(world: World, removed: set[TargetId]) -> None:
    for id in sorted(removed):
        target = world.coordinator.machine.members.targets[id]
        if target.state is not TargetState.REMOVED:
            raise Violation(f"{id} was removed, and is {target.state.value}")


@at_turn(3, every=4)
def test_targets_go_and_nothing_of_what_they_had_is_lost() -> None:
    ends = ends_of(run_seed, SEEDS, turn_of(SEEDS, SEEDS_SOAK, every=4))
    assert ends.count("removed") >= SEEDS // 4
    assert ends.count("taken back") >= SEEDS // 4


def nobody_leaves(self: Checkpoints, *_: object) -> bool:
    """What is on a draining target is as good as anywhere."""
    return False


def nothing_follows(self: Standings, target: Target, standing: TargetStanding) -> None:
    """It never stands otherwise."""


def known_by_no_name(self: Claims, target: TargetId, standing: TargetStanding) -> object:
    """What is stored of a removed one is as it was."""
    return self._known[target]


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    in_turn(
        [
            (Checkpoints, "_goes", nobody_leaves),
            (Standings, "_stand", nothing_follows),
            (Claims, "stand", known_by_no_name),
        ],
        every=PLANTED,
    ),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        run_each(run_seed, PLANTED_SEEDS)


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
