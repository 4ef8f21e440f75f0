"""Histories in which the coordinator's disk gives back another catalog than it had: none, an older
one, one that lacks its newest entries (F12). Nobody is told less than was said before; the catalog
that is made from the targets then knows all that was announced, and gives no generation twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from ckpt.base.ids import CheckpointId
from ckpt.format.messages import Message
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import Resolved
from ckpt.format.messages.saving import AttemptAborted, AttemptCommitted, Certified, PayloadPlanned
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.cluster.vouching import Vouching
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.stager.events import SaveCommitted
from ckptd.catalog.rebuild import rebuild
from tests.landing import in_turn
from tests.sim import faults
from tests.sim.catalog_sources import DiskSource
from tests.sim.coordinator_node import CLUSTER
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Oracles, Violation
from tests.sim.rank_node import RankNode
from tests.sim.restarts import check_restart
from tests.sim.world import RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 8
"""Of each half: a landing runs one."""
FAULTS = (
    faults.target_killed, faults.target_power_lost, faults.target_torn, faults.target_stopped,
    faults.connections_cut, faults.half_opened, faults.coordinator_crashed,
)  # fmt: skip
SERVES = (
    LaunchJoined, PayloadPlanned, Certified, AttemptCommitted, AttemptAborted, Resolved,
)  # fmt: skip
"""What is said only by one who knows the newest catalog."""
STEPS = (10, 20, 30)


class _Oracles(Oracles):
    """The catalog may have gone back: then nothing may be said under it."""

    missing: CheckpointId | None = None
    """Something that was announced and that the catalog in force does not know."""

    def coordinator_started(self, image: CatalogImage) -> None:
        known = {
            id
            for id, row in image.rows.items()
            if row.state not in (RowState.OPEN, RowState.ABORTED)
        }
        self.missing = next((id for id in sorted(self.announced) if id not in known), None)

    def coordinator_says(self, message: Message) -> None:
        if self.missing is not None and isinstance(message, SERVES):
            raise Violation(f"P1: {type(message).__name__} from one that lacks {self.missing}")
        super().coordinator_says(message)


class _World(World):
    oracles_type = _Oracles


def _go_back(world: World, copy: tuple[list[CatalogEntry], int]) -> str:
    """The coordinator starts from another catalog. Answers from which."""
    coordinator, rng = world.coordinator, world.clock.rng
    coordinator.crash()
    how = rng.choice(["lost", "older", "older", "torn"])
    match how:
        case "lost":
            coordinator.put_back([], 0)
        case "older":
            coordinator.put_back(*copy)
        case _:
            kept = rng.randint(0, len(coordinator.durable))
            coordinator.put_back(coordinator.durable[:kept], coordinator.term)
    world.clock.pass_time(rng.choice([1_000, 2_000_000]))
    world.restart_coordinator()
    return how


def _is_old(world: World) -> bool:
    coordinator = world.coordinator
    return coordinator.up and bool(coordinator.machine.vouching.reason)


def _rebuild(world: World, nodes: list[RankNode]) -> None:
    """What a person does who reads the error: everything is stopped, and read. A rank may have
    died meanwhile: the one that comes in its place may be the first to join.
    """
    coordinator = world.coordinator
    coordinator.crash()
    for target in world.targets.values():
        target.crash()
    found = rebuild(CLUSTER, [DiskSource(t) for t in world.targets.values() if not t.lost])
    if nodes[0].job.key is not None and world.clock.rng.random() < 0.5:
        node = world.clock.rng.choice(nodes)
        nodes[nodes.index(node)] = world.start_again(node)
    coordinator.begin_from(found.image)
    world.heal()


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, what happened to the catalog and what came of it)."""
    world = _World.build(seed)
    rng = world.clock.rng
    world.start()
    copy = ([], 0) if rng.random() < 0.2 else world.coordinator.copy()
    nodes = world.launch(STEPS, rng.choice([2_000, 400_000]), 4096)
    world.clock.pass_time(rng.randint(1_000, 700_000))
    if rng.random() < 0.5:
        copy = world.coordinator.copy()
    for _ in range(rng.choice([0, 1, 2])):
        world.clock.pass_time(rng.randint(1_000, 700_000))
        rng.choice(FAULTS)(world)
    world.clock.pass_time(rng.choice([1_000, 500_000, 3_000_000]))
    world.restart_coordinator()
    how = _go_back(world, copy)
    world.read()
    if rng.random() < 0.3:
        rng.choice(FAULTS)(world)
    world.clock.run(lambda: _is_old(world), rng.choice([1_000_000, 10_000_000]))
    world.heal()
    world.clock.run(lambda: _is_old(world) or world.coordinator.machine.vouching.serves, 30_000_000)
    ends = [f"{how} {'old' if _is_old(world) else 'served'}"]
    if _is_old(world):
        _rebuild(world, nodes)
        _start_one_again(world, nodes)
    for node in nodes:
        node.crash()
    _check_next_launch(world)
    check_restart(world)
    return world.clock.steps, ends


def _start_one_again(world: World, nodes: list[RankNode]) -> None:
    """A rank whose stager is new says its launch's key alone, and is of the launch that its peers
    come back to: a catalog that was made from the targets hears of it from them.
    """
    if nodes[0].job.key is None:
        return
    if world.clock.run(lambda: any(_is_back(node) for node in nodes), SETTLE_US):
        node = world.clock.rng.choice(nodes)
        node.job = replace(node.job, steps=(60,))
        again = nodes[nodes.index(node)] = world.start_again(node)
        world.clock.run(lambda: _is_back(again), SETTLE_US)
        numbers = {node.launch_number for node in nodes if _is_back(node)}
        if len(numbers) != 1:
            raise Violation(f"P10: one start of the run became several launches: {numbers}")


def _is_back(node: RankNode) -> bool:
    """It has joined under the coordinator that it is connected to."""
    run = node.machine.runs.get(RUN)
    return node.up and run is not None and run.joined_on == node.machine.session is not None


def _check_next_launch(world: World) -> None:
    """It saves; the newest step loads, and all that was announced is there."""
    world.clock.run(lambda: world.live_targets >= len(world.targets), SETTLE_US)
    last = world.launch((40,), 2_000, 4096)
    world.clock.run(lambda: all(node.outcomes for node in last), SETTLE_US)
    told = [node.outcomes.get(40) for node in last]
    if not all(isinstance(end, SaveCommitted) for end in told):
        raise Violation(f"the launch behind it cannot save: {told}")
    reader = world.read()
    world.clock.run(lambda: reader.outcome is not None, SETTLE_US)
    if reader.outcome != "read" or reader.checkpoint is None:
        raise Violation(f"P1: after healing, a load ends with {reader.outcome}")
    for id in world.oracles.announced:
        checkpoint = world.coordinator.machine.checkpoints.get(id)
        if checkpoint is None or not world.coordinator.machine.checkpoints.readable(checkpoint):
            raise Violation(f"P1: {id} was announced, now it cannot be read")


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=4))
@pytest.mark.timeout(600)
def test_an_old_catalog_is_never_served_and_all_comes_back_from_the_targets(begin: int) -> None:
    ends = ends_of(run_seed, SEEDS, begin)
    assert {"lost old", "older old", "torn old"} <= set(ends)


def _blind(_self: Vouching, _said: object) -> str:
    return ""


@pytest.mark.parametrize(("plant", "begin"), [
    ({"_objection_of_holdings": _blind, "objection": _blind}, 0),
    ({"_is_enough": lambda _self, _ids, patient: True}, 59),
], ids=["believes-its-catalog", "asks-nobody"])  # fmt: skip
def test_the_history_finds_a_coordinator_that(
    monkeypatch: pytest.MonkeyPatch, plant: dict[str, Callable[..., object]], begin: int
) -> None:
    for name, planted in plant.items():
        monkeypatch.setattr(Vouching, name, planted)
    with pytest.raises(AssertionError):
        run_each(run_seed, 400, begin)
