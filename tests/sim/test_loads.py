"""Histories of launches that load: two steps are saved, the newer one perhaps rots past repair
while ranks load, processes die; no launch ever holds two steps (decision 0006).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank, RunName, Step
from ckpt.base.limits import PAGE_BYTES
from ckpt.erasure.code import Code
from ckpt.format.documents.file import document_name
from ckpt.protocol.coordinator.cluster.launch import Launch
from ckpt.protocol.coordinator.reading.launch_round import Round
from ckpt.protocol.coordinator.reading.rounds import LaunchRounds
from ckpt.protocol.target.core import column_name
from ckpt.testing.disk import FakeDisk
from tests.landing import PLANTED, in_turn
from tests.sim import faults
from tests.sim.histories import check_share, ends_of
from tests.sim.last_checks import SETTLE_US
from tests.sim.load_nodes import LoadingRank, LoadJob
from tests.sim.oracles import Violation
from tests.sim.restarts import check_restart
from tests.sim.world import RANK_COUNT, RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "400")) // 20
"""Of each half: a landing runs one."""
STEPS = (10, 20)
FAULTS = (
    faults.coordinator_crashed, faults.coordinator_crashed, faults.coordinator_crashed,
    faults.target_killed, faults.target_power_lost, faults.target_stopped,
    faults.connections_cut, faults.frames_stuttered, faults.half_opened,
)  # fmt: skip
"""What a round survives is mostly the coordinator's restart."""


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each rank's load ended); raises Violation when a promise breaks."""
    world = World.build(seed)
    rng = world.clock.rng
    world.start()
    trainers = world.launch(STEPS, 2_000, rng.choice([100, 20_000]))
    if not world.clock.run(lambda: len(world.oracles.announced) == len(STEPS), 5_000_000):
        raise Violation("two saves without a fault do not commit")
    for node in trainers:
        node.crash()
    apart_us = rng.choice([500, 20_000, 400_000])
    starts_us = [rng.randint(0, apart_us) for _ in range(RANK_COUNT)]
    first = _launch(world, "first", starts_us)
    damaged = rng.random() < 0.7
    if damaged:
        latest = starts_us.index(max(starts_us))
        victim = Rank(rng.choice([latest, rng.randrange(RANK_COUNT)]))
        harm = rng.choice([_damage, _damage, _lose_columns, _lose_index])
        world.clock.after(rng.randint(0, 2 * apart_us), harm, world, victim)
    for _ in range(rng.choice([0, 1, 2])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, 2 * apart_us), lambda fault=fault: fault(world))
    if rng.random() < 0.3:
        world.clock.after(rng.randint(0, 2 * apart_us), rng.choice(first).crash)
    world.clock.pass_time(2_000_000)
    world.heal()
    _settle(world, first)
    late = {"lost"} if damaged else set()
    _check(first, {"read", "crashed", "unavailable"} | late)
    world.clock.run(lambda: world.live_targets == len(world.targets), SETTLE_US)
    again = _launch(world, "second", [0] * RANK_COUNT)
    _settle(world, again)
    _check(again, {"read"} | late)
    if any(node.outcome == "lost" for node in again):  # Proved behind the first rank that read.
        again = _launch(world, "third", [0] * RANK_COUNT)
        _settle(world, again)
    _check(again, {"read"})
    newest = min(STEPS) if damaged else max(STEPS)
    if {node.loaded.step for node in again if node.loaded is not None} != {newest}:
        raise Violation(f"P2: after healing a launch loads {again[0].loaded}, not step {newest}")
    check_restart(world)
    return world.clock.steps, [str(node.outcome) for node in first]


def _launch(world: World, key: str, starts_us: list[int]) -> list[LoadingRank]:
    job = LoadJob(RUN, key, RANK_COUNT)
    nodes = [
        LoadingRank(
            world.clock, world.network, world.oracles, world.coordinator,
            lambda id: world.targets[id], job, rank,
        )
        for rank in range(RANK_COUNT)
    ]  # fmt: skip
    for node, start_us in zip(nodes, starts_us, strict=True):
        world.clock.after(start_us, node.start)
    return nodes


def _damage(world: World, rank: Rank) -> None:
    """Its payload of the newest step rots at one place in more columns than parity mends."""
    newest = max(world.oracles.announced)
    placement = world.oracles.announced[newest].placement
    code: Code = world.coordinator.machine.policy.code
    holders = [(j, t) for j, t in enumerate(placement[rank]) if t is not None]
    for j, target in holders[: len(holders) - code.k + 1]:
        column = ColumnId(PayloadId(newest, rank), ColumnNumber(j))
        world.targets[target].disk.rot(f"columns/{column_name(column)}", PAGE_BYTES + 7)


def _lose_columns(world: World, rank: Rank) -> None:
    """As many of its column files vanish under running targets as parity does not mend."""
    newest = max(world.oracles.announced)
    placement = world.oracles.announced[newest].placement
    code: Code = world.coordinator.machine.policy.code
    holders = [(j, t) for j, t in enumerate(placement[rank]) if t is not None]
    for j, target in holders[: len(holders) - code.k + 1]:
        column = ColumnId(PayloadId(newest, rank), ColumnNumber(j))
        _vanish(world.targets[target].disk, f"columns/{column_name(column)}")


def _lose_index(world: World, rank: Rank) -> None:
    """Every copy of the newest step's index vanishes, or rots in both of its places."""
    rng = world.clock.rng
    newest = max(world.oracles.announced)
    name = f"documents/{document_name('index', newest)}"
    for target in world.targets.values():
        if name not in target.disk.files():
            continue
        if rng.random() < 0.5:
            _vanish(target.disk, name)
            continue
        for page in range(PAGE_BYTES, target.disk.file_bytes(name) - PAGE_BYTES, PAGE_BYTES):
            target.disk.rot(name, page + 5)


def _vanish(disk: FakeDisk, file: str) -> None:
    """Somebody removes it by hand, for good."""
    disk.remove_file(file)
    disk.sync_directory(file.partition("/")[0])


def _settle(world: World, nodes: list[LoadingRank]) -> None:
    if not world.clock.run(lambda: all(node.outcome for node in nodes), SETTLE_US):
        raise Violation(f"P4: loads have no end: {[(n.name, n.outcome) for n in nodes]}")


def _check(nodes: list[LoadingRank], allowed: set[str]) -> None:
    outcomes = {node.name: node.outcome for node in nodes}
    if not allowed.issuperset(map(str, outcomes.values())):
        raise Violation(f"P3: loads ended otherwise than {sorted(allowed)}: {outcomes}")
    held = {node.name: str(node.loaded) for node in nodes if node.outcome == "read"}
    if len(set(held.values())) > 1:
        raise Violation(f"P2: one launch holds two steps: {held}")


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(17) == run_seed(17)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6))
@pytest.mark.timeout(1500)
def test_no_launch_ever_holds_two_steps(begin: int) -> None:
    check_share("loads", ends_of(run_seed, SEEDS, begin))


def _late_ranks_walk_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes late takes what is left, whatever the others hold."""
    real = LaunchRounds.get

    def get(
        self: LaunchRounds, run: RunName, launch: Launch, step: Step | None, turn: int
    ) -> Round | None:
        one = real(self, run, launch, step, turn)
        return one if one is not None and one.is_readable else None

    monkeypatch.setattr(LaunchRounds, "get", get)


def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has loaded may go, and what it holds is written down by nobody."""

    def settle(self: LaunchRounds, one: Round) -> None:
        self._confirm_all(one)

    monkeypatch.setattr(LaunchRounds, "_settle", settle)


def _forgotten_at_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new coordinator begins with a clean sheet."""
    monkeypatch.setattr(LaunchRounds, "recover", lambda *_: None)


@pytest.mark.parametrize(
    "plant",
    in_turn([_late_ranks_walk_back, _nobody_waits, _forgotten_at_restart], every=PLANTED, first=2),
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_until_found() -> None:
        for seed in range(400):
            run_seed(seed)

    plant(monkeypatch)
    with pytest.raises(Violation, match=r"P2|P10"):
        run_until_found()
