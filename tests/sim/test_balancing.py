"""Histories in which columns go from full targets to empty ones while workers, targets and the
coordinator die and steps are deleted: it ends, nothing is lost, no payload survives less, and no
more is moved than there was to move (P1, P3, P7, P13).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from ckpt.base.ids import CheckpointId, Domain, TargetId
from ckpt.format.messages.balancing import TargetsBalanced
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.desk import nothing
from ckpt.protocol.coordinator.facts import CheckpointPlaced
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.repairing import balancing as balancing_module
from ckpt.protocol.coordinator.repairing.balancing import Balancer
from tests.landing import PLANTED, at_turn, in_turn
from tests.sim.balance_operator import BalanceOperator
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.repair_world import (
    ROUND_US,
    Disturbance,
    check_disks,
    lacks,
    list_again,
    read_all,
    revive,
    worker,
)
from tests.sim.target_node import TargetNode
from tests.sim.world import RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 10
"""Of each half: a landing runs one."""
SEEDS_SOAK = 2_000
PLANTED_SEEDS = 60
TARGETS = 7
COME = 3
"""Targets that join when all is saved: they are empty."""
STEPS = (10, 20, 30, 40)
DISK_BYTES = 3 << 18
PAYLOAD_BYTES = 30_000
FULL = 0.3
"""What sheds columns by itself, where nobody asks."""
END_US = 10 * ROUND_US
STEPS_MAX = 50_000
"""Three times what the longest history takes: a balance that goes on for ever is found sooner."""


def saved(seed: int) -> World:
    """Steps are committed on the first targets; then others have joined, and nobody trains."""
    world = World.build(seed, TARGETS, shared_hosts=seed % 3 == 0)
    world.clock.steps_max = STEPS_MAX
    world.disk_bytes = DISK_BYTES
    for target in world.targets.values():
        target.disk.bytes_total = DISK_BYTES
    policy = replace(world.coordinator.machine_policy, rebuild_after_us=2_000_000)
    if seed % 4 == 1:
        policy = replace(policy, balance_above=FULL)
    world.coordinator.machine_policy = policy
    world.start()
    nodes = world.launch(STEPS, 30_000, PAYLOAD_BYTES)
    world.clock.run(lambda: all(node.done_saving for node in nodes), SETTLE_US)
    world.clock.pass_time(3_000_000)
    for node in nodes:
        node.crash()
    for number in range(TARGETS, TARGETS + COME):
        comes(world, number)
    world.clock.pass_time(4_000_000)
    return world


def comes(world: World, number: int) -> None:
    node = TargetNode(world.clock, world.network, world.coordinator, number, world.seed)
    if world.seed % 3 == 0:
        node.domain = Domain("power", "rack", f"host{number // 2}", f"dev{number}")
    node.disk.bytes_total = DISK_BYTES
    node.windows = world.coordinator.windows
    world.targets[node.id] = node
    node.start()


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `balanced` or `stopped`, and each fault that struck while a payload was made);
    raises Violation when a promise breaks.
    """
    world = saved(seed)
    rng = world.clock.rng
    before = {id: _spread(world, id) for id in world.oracles.kept(RUN)}
    operator = BalanceOperator(world.clock, world.network, world.coordinator)
    operator.look()
    workers = [worker(world, number) for number in range(rng.choice([1, 1, 2]))]
    disturbance = Disturbance(world, workers)
    for _ in range(rng.choice([1, 2])):
        span_us = rng.choice([2_000_000, 20_000_000, 60_000_000])
        disturbance.begin(span_us)
        if seed % 4 != 1:
            world.clock.after(rng.randint(0, span_us // 2), operator.want)
        if rng.random() < 0.3:
            world.clock.after(rng.randint(0, span_us), world.delete_one)
        world.clock.pass_time(span_us + 1)
        disturbance.end()
        world.heal()
        revive(world, workers)
        _check_bytes(world)
    end = _end(world, operator)
    for each in workers:
        each.crash()
    list_again(world)
    check_disks(world)
    for id in world.oracles.kept(RUN):
        _check_spread(world, id, before[id])
    read_all(world)
    return world.clock.steps, [end, *sorted(disturbance.hits)]


def _end(world: World, operator: BalanceOperator) -> str:
    """Whoever was asked, it ends, and all is whole."""
    rng = world.clock.rng
    if world.seed % 4 != 1:
        operator.want(stop=rng.random() < 0.2)
        world.clock.run(lambda: operator.answer is not None, SETTLE_US)
    world.clock.run(lambda: _is_going(world) == "", END_US)
    if going := _is_going(world):
        raise Violation(f"P7: a balance does not end within {END_US // 1_000_000} s: {going}")
    _check_bytes(world)
    answer = operator.answer
    return "balanced" if isinstance(answer, TargetsBalanced) and answer.running else "otherwise"


def _is_going(world: World) -> str:
    """Why it has not ended; empty when it has, and all is as it shall be."""
    if not world.coordinator.up or not world.coordinator.machine.vouching.serves:
        return "nobody leads"
    machine = world.coordinator.machine
    balancer = machine.repairs.balancer
    if balancer.is_asked or balancer.planned():
        return f"{len(balancer.planned())} columns are to move, {balancer.columns_moved} have"
    surplus = [one.id for one in machine.checkpoints.all() if one.surplus]
    return f"{surplus} has copies too many" if surplus else lacks(world)


def _check_bytes(world: World) -> None:
    """Of what somebody has asked this coordinator for: no more than one plan above its bound."""
    balancer = world.coordinator.machine.repairs.balancer
    most = balancer._bytes_max + balancing_module.MOVES_MAX * PAYLOAD_BYTES
    if balancer._bytes_max and balancer.bytes_moved > most:
        raise Violation(f"P12: {balancer.bytes_moved} bytes have moved, {most} at most may")


def _spread(world: World, id: CheckpointId) -> dict[int, int]:
    """The most columns of each rank in one domain of the rule."""
    checkpoint = world.coordinator.machine.checkpoints.get(id)
    assert checkpoint is not None
    found: dict[int, int] = {}
    for rank, placed in (checkpoint.placement or {}).items():
        level = world.oracles.spread.level
        named = [holder for holder in placed.columns if holder is not None]
        keys = Counter(domain_key(t, world.targets[t].domain, level) for t in named)
        found[rank] = max(keys.values(), default=0)
    return found


def _check_spread(world: World, id: CheckpointId, before: dict[int, int]) -> None:
    most = world.oracles.spread.max_per_domain
    for rank, count in _spread(world, id).items():
        if count > max(most, before[rank]):
            raise Violation(f"P13: {count} columns of rank {rank} of {id} are in one domain")


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
def test_an_empty_target_gets_its_share_and_nothing_is_lost_meanwhile(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert ends.count("balanced") >= SEEDS // 4
    struck = {"F1 killed", "F10 power", "F12 coordinator"} & set(ends)
    assert len(struck) >= 2, "while columns are moved"


# ----------------------------------------------------------------------- planted bugs


def dropped_before_it_is_durable(
    self: Adopter, checkpoint: KeptCheckpoint, moves: dict[tuple[int, int], TargetId]
) -> None:
    """The old copy goes at once, and a restart knows the old place alone."""
    self._checkpoints.move(checkpoint, moves)  # type: ignore[arg-type]
    checkpoint.surplus.clear()
    self.placed(CheckpointPlaced(checkpoint.id))
    self._drop_surplus(checkpoint)


def anywhere(*_: object) -> bool:
    """Whatever else of the payload is there."""
    return True


_plan = Balancer._plan


def begun_again(self: Balancer) -> None:
    """A balance has no end: what was moved goes on to the next one."""
    was_asked = self.is_asked
    _plan(self)
    if was_asked and not self.is_asked:
        self._begin(nothing)


_movable = Balancer._movable


def to_and_fro(self: Balancer) -> None:
    """Columns are moved wherever they are not."""
    live = [target.id for target in self._members.live()]
    for checkpoint in self._checkpoints.all():
        for rank, placed in (checkpoint.placement or {}).items():
            one = _movable(self, checkpoint, rank, 0)  # type: ignore[arg-type]
            free = [id for id in live if id not in placed.columns]
            if one is not None and free and self.is_asked and not len(self._moving):
                move = balancing_module.ColumnMove(one.column, one.source, free[0], one.file_bytes)
                self._moving.add(move)


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    in_turn(
        [
            (Adopter, "_adopt", dropped_before_it_is_durable),
            (Balancer, "_plan", begun_again),
            (Balancer, "_plan", to_and_fro),
        ],
        every=PLANTED,
        first=1,
    ),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        run_each(run_seed, PLANTED_SEEDS)


@at_turn(0, every=PLANTED)
def test_a_plan_that_breaks_domains_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.plan.balancing.is_safe", anywhere)
    monkeypatch.setattr(balancing_module, "is_safe", anywhere)
    with pytest.raises(AssertionError):
        run_each(run_seed, PLANTED_SEEDS, begin=2)


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
