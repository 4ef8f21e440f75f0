"""What a history of repairs needs: a world with committed steps, workers that die and come again,
and how everything is to be at the end (P1, P7).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId
from ckpt.protocol.target.core import column_name
from tests.sim import faults
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.repair_node import RepairNode
from tests.sim.target_node import TargetNode
from tests.sim.world import RUN, World

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


def saved(seed: int) -> World:
    """Its steps are committed, and nobody of the training is left."""
    world = World.build(seed, TARGETS, shared_hosts=seed % 3 == 0)
    policy = world.coordinator.machine_policy
    world.coordinator.machine_policy = replace(policy, rebuild_after_us=REBUILD_AFTER_US)
    world.start()
    nodes = world.launch(STEPS, 30_000, world.clock.rng.choice([200, 8192, 20_000]))
    world.clock.run(lambda: all(node.done_saving for node in nodes), SETTLE_US)
    world.clock.pass_time(3_000_000)
    for node in nodes:
        node.crash()
    return world


def disturb(world: World, workers: list[RepairNode], within_us: int) -> None:
    """Faults that no disk is emptied by; workers are killed."""
    rng = world.clock.rng
    for _ in range(rng.choice([0, 1, 2, 3])):
        fault = rng.choice(FAULTS)
        world.clock.after(rng.randint(0, within_us), lambda fault=fault: fault(world))
    for _ in range(rng.choice([0, 0, 1, 2])):
        world.clock.after(rng.randint(0, within_us), lambda: _kill_one(world, workers))


def worker(world: World, number: int) -> RepairNode:
    node = RepairNode(
        world.clock, world.network, world.oracles, world.coordinator,
        lambda id: world.targets[id], number,
    )  # fmt: skip
    node.start()
    return node


def empty(world: World, target: TargetNode) -> None:
    """Its disk is replaced. It is not harmed for the oracles: what it held is made again."""
    target.crash()
    target.wipe()
    target.wiped = False
    world.clock.after(world.clock.rng.choice([100_000, 4_000_000]), target.start)


def _kill_one(world: World, workers: list[RepairNode]) -> None:
    number = world.clock.rng.randrange(len(workers))
    workers[number].crash()
    workers[number] = worker(world, number)


def revive(world: World, workers: list[RepairNode]) -> None:
    for number, each in enumerate(workers):
        if not each.up:
            workers[number] = worker(world, number)


def lacks(world: World) -> str:
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


def check_disks(world: World) -> None:
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


def read_all(world: World) -> None:
    for id in world.oracles.kept(RUN):
        reader = world.read(id.step)
        world.clock.run(lambda reader=reader: reader.outcome is not None, SETTLE_US)
        if reader.outcome != "read":
            raise Violation(f"P1: a load of {id} ends with {reader.outcome}")
