"""Histories in which one disk after the other is emptied, more than any code survives at once, and
workers, targets and the coordinator die: what is lost is made again, and all of it stays whole (P1,
P3, P7, P13).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.repairing.lacking import Lacking
from ckpt.protocol.coordinator.repairing.respreading import Respreader
from ckpt.protocol.coordinator.repairing.tasks import Repairs, RepairTask
from ckpt.protocol.target.core import column_name
from tests.sim import faults
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.repair_node import RepairNode
from tests.sim.target_node import TargetNode
from tests.sim.world import RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 5
SEEDS_SOAK = 2_000
PLANTED_SEEDS = 60
TARGETS = 9
STEPS = (10, 20)
REBUILD_AFTER_US = 2_000_000
ROUND_US = 60_000_000
"""So long everything may take to be whole again once faults have ended."""
FAULTS = (
    faults.coordinator_crashed, faults.coordinator_crashed, faults.coordinator_crashed_at_write,
    faults.target_killed, faults.target_power_lost, faults.target_stopped, faults.write_failed,
    faults.connections_cut, faults.frames_stuttered, faults.half_opened,
)  # fmt: skip


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, `whole` for each round); raises Violation when a promise breaks."""
    world = World.build(seed, TARGETS, shared_hosts=seed % 3 == 0)
    rng = world.clock.rng
    policy = world.coordinator.machine_policy
    world.coordinator.machine_policy = replace(policy, rebuild_after_us=REBUILD_AFTER_US)
    world.start()
    nodes = world.launch(STEPS, 30_000, rng.choice([200, 8192, 20_000]))
    world.clock.run(lambda: all(node.done_saving for node in nodes), SETTLE_US)
    world.clock.pass_time(3_000_000)
    for node in nodes:
        node.crash()
    workers = [_worker(world, number) for number in range(rng.choice([1, 1, 2]))]
    rounds = rng.choice([2, 3, 4])
    for _ in range(rounds):
        span_us = rng.choice([1_000_000, 5_000_000, 20_000_000])
        _strike(world, workers, span_us)
        world.clock.pass_time(span_us + 1)
        world.heal()
        _revive(world, workers)
        world.clock.run(lambda: _lacks(world) == "", ROUND_US)
        if _lacks(world):
            raise Violation(f"P7: not whole again after {ROUND_US // 1_000_000} s: {_lacks(world)}")
    for worker in workers:
        worker.crash()
    world.clock.pass_time(8_000_000)
    _check_disks(world)
    _read_all(world)
    return world.clock.steps, ["whole"] * rounds


def _worker(world: World, number: int) -> RepairNode:
    node = RepairNode(
        world.clock, world.network, world.oracles, world.coordinator,
        lambda id: world.targets[id], number,
    )  # fmt: skip
    node.start()
    return node


def _strike(world: World, workers: list[RepairNode], within_us: int) -> None:
    """As many disks are emptied as the weakest checkpoint survives now; other faults beside."""
    rng = world.clock.rng
    kept = [world.coordinator.machine.checkpoints.get(id) for id in world.oracles.kept(RUN)]
    now = [world.coordinator.machine.checkpoints.redundancy(one) for one in kept if one]
    count = min((one.targets for one in now), default=0)
    if any(one is None for one in kept):
        count = 0
    victims = rng.sample(sorted(world.targets), min(count, rng.choice([1, 1, 2])))
    for id in victims:
        world.clock.after(rng.randint(0, 900_000), lambda id=id: _empty(world, world.targets[id]))
    for _ in range(rng.choice([0, 1, 2, 3])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, within_us), lambda fault=fault: fault(world))
    for _ in range(rng.choice([0, 0, 1, 2])):
        world.clock.after(rng.randint(0, within_us), lambda: _kill_one(world, workers))


def _empty(world: World, target: TargetNode) -> None:
    """Its disk is replaced. It is not harmed for the oracles: what it held is made again."""
    target.crash()
    target.wipe()
    target.wiped = False
    world.clock.after(world.clock.rng.choice([100_000, 4_000_000]), target.start)


def _kill_one(world: World, workers: list[RepairNode]) -> None:
    number = world.clock.rng.randrange(len(workers))
    workers[number].crash()
    workers[number] = _worker(world, number)


def _revive(world: World, workers: list[RepairNode]) -> None:
    for number, worker in enumerate(workers):
        if not worker.up:
            workers[number] = _worker(world, number)


def _lacks(world: World) -> str:
    """What the coordinator says is missing of what is kept; empty when nothing is."""
    for id in world.oracles.kept(RUN):
        machine = world.coordinator.machine
        checkpoint = machine.checkpoints.get(id) if world.coordinator.up else None
        if checkpoint is None or not machine.vouching.serves:
            return f"{id} is not known"
        now = machine.checkpoints.redundancy(checkpoint)
        documents = machine.checkpoints.documents_missing(
            checkpoint, machine.checkpoints.document_counts()
        )
        if now.targets < 0 or now.columns_missing or documents:
            return f"{id} lacks {now.columns_missing} columns, {documents} documents"
    return ""


def _check_disks(world: World) -> None:
    """Each column is durable where it is named, and nowhere else: what was too much is gone."""
    held: Counter[str] = Counter()
    for target in world.targets.values():
        held.update(target.disk.durable_names("columns"))
    for id in world.oracles.kept(RUN):
        for rank, columns in world.oracles.announced[id].placement.items():
            for number, target_id in enumerate(columns):
                name = column_name(ColumnId(PayloadId(id, rank), ColumnNumber(number)))
                if target_id is None:
                    raise Violation(f"P7: {name} is named nowhere")
                if name not in world.targets[target_id].disk.durable_names("columns"):
                    raise Violation(f"P1: {name} is not on {target_id}, where it is named")
                if held[name] != 1:
                    raise Violation(f"P7: {name} is there {held[name]} times")


def _read_all(world: World) -> None:
    for id in world.oracles.kept(RUN):
        reader = world.read(id.step)
        world.clock.run(lambda reader=reader: reader.outcome is not None, SETTLE_US)
        if reader.outcome != "read":
            raise Violation(f"P1: a load of {id} ends with {reader.outcome}")


def test_what_is_lost_is_made_again_and_nothing_is_lost_meanwhile() -> None:
    ends = ends_of(run_seed, SEEDS)
    assert ends.count("whole") >= 2 * SEEDS


def taken_for_done(self: Repairs, task: RepairTask, why: str, then: Callable[[int], None]) -> None:
    """What a worker had in hand when it left is there."""
    checkpoint = self._checkpoints.get(task.payload.checkpoint)
    assert checkpoint is not None
    assert checkpoint.placement is not None
    digest = checkpoint.placement[task.payload.rank].manifest_digest
    said = [
        ColumnProof(ColumnId(task.payload, j), at.target, at.boot, "", 0, 0, digest, b"")
        for j, at in task.allotment.columns.items()
    ]
    self._close(task, said, why)
    then(len(said))


def kept_for_ever(self: Adopter, checkpoint: KeptCheckpoint) -> None:
    """What is too much stays."""


def dropped_at_once(self: Adopter, checkpoint: KeptCheckpoint) -> None:
    """What nobody has named goes, whoever lacks it."""
    for column, holders in sorted(checkpoint.surplus.items()):
        for id in sorted(holders):
            self._deleter.drop_column(self._members.targets[id], column)
    checkpoint.surplus.clear()


def nobody_asked(self: Repairs, task: RepairTask, why: str, then: Callable[[int], None]) -> None:
    """The word of a worker counts: its targets are not asked."""
    self._close(task, [], why)
    then(len(task.lost))


def silence_is_no_end(self: Repairs) -> None:
    """A worker that nobody hears keeps what it has in hand."""
    self.documents.tick()


def copies_are_forgotten(self: Respreader) -> None:
    """Nobody makes documents again."""


def whole_while_here(self: Lacking, *_: object) -> bool:
    """Nothing is due of a target that is here, or comes back."""
    return False


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (Repairs, "_end", taken_for_done),
        (Adopter, "_drop_surplus", kept_for_ever),
        (Adopter, "_settle", dropped_at_once),
        (Repairs, "_end", nobody_asked),
        (Repairs, "tick", silence_is_no_end),
        (Respreader, "tick", copies_are_forgotten),
        (Lacking, "_is_due", whole_while_here),
    ],
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
