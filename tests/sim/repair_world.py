"""What a history of repairs needs: a world with committed steps, workers that die and come again,
and how everything is to be at the end (P1, P7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId
from ckpt.protocol.coordinator.repairing.tasks import NO_ROOM_REST_US
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
ROUND_US = NO_ROOM_REST_US + 30_000_000
"""So long everything may take to be whole again once faults have ended. What found no place, as on
a disk that was full, is tried again after a rest.
"""
APART = {
    "F7 rot", "F7 document", "F8 misplaced", "F14 trainer", "F14 stager", "F14 reader", "F21 lost",
    "F21 wiped",
}  # fmt: skip
"""Nobody trains here, disks are emptied by the history itself, and what rots has rotted before."""
FAULTS = [name for name in faults.FAULTS if name not in APART]
SOON_US = 3_000
"""Within so long after a payload was begun an aimed fault strikes."""
NOTICED_US = 100_000
"""So long before the end of a round the last disk is emptied: then somebody has seen it."""


def saved(
    seed: int, kind: type[World] = World, *, target_count: int = TARGETS,
    scrub_us: int | None = None,
) -> World:  # fmt: skip
    """Its steps are committed, and nobody of the training is left. `scrub_us`: each target reads
    what it has so often."""
    world = kind.build(seed, target_count, shared_hosts=target_count == TARGETS and seed % 3 == 0)
    for target in world.targets.values() if scrub_us is not None else ():
        target.scrub_each(scrub_us)
    policy = world.coordinator.machine_policy
    world.coordinator.machine_policy = replace(policy, rebuild_after_us=REBUILD_AFTER_US)
    world.start()
    nodes = world.launch(STEPS, 30_000, world.clock.rng.choice([200, 8192, 20_000]))
    world.clock.run(lambda: all(node.done_saving for node in nodes), SETTLE_US)
    world.clock.pass_time(3_000_000)
    for node in nodes:
        node.crash()
    return world


class Disturbance:
    """Faults that no disk is emptied by; workers are killed. I know which of them struck while a
    payload was made again.
    """

    def __init__(self, world: World, workers: list[RepairNode]) -> None:
        self._world, self._workers = world, workers
        self._struck: list[tuple[str, faults.Strike]] = []
        #: What strikes when a payload is begun.
        self._aimed: list[Callable[[], None]] = []
        self.hits: set[str] = set()
        for each in workers:
            each.on_work = self._begun

    def begin(self, within_us: int) -> None:
        """Of a round. Each history tries another fault on what is made again."""
        rng, clock = self._world.clock.rng, self._world.clock
        self._aimed.append(partial(self._strike, FAULTS[self._world.seed % len(FAULTS)]))
        for _ in range(rng.choice([0, 1, 2, 3])):
            name = rng.choice(FAULTS)
            if rng.random() < 0.5:
                clock.after(rng.randint(0, within_us), partial(self._strike, name))
            else:
                self._aimed.append(partial(self._strike, name))
        for _ in range(rng.choice([0, 0, 1, 2])):
            kill = partial(_kill_one, self._world, self._workers)
            clock.after(rng.randint(0, within_us), kill)

    def aim(self, name: str, act: Callable[[], None], within_us: int) -> None:
        """It is done while a payload is made again; at the end of the span, if none is."""
        done = False

        def strike() -> None:
            nonlocal done
            if not done:
                done = True
                self.hits |= {name} if self._is_making else set()
                act()

        self._aimed.append(strike)
        self._world.clock.after(within_us - NOTICED_US, strike)

    def end(self) -> None:
        """Of a round, before all is healed."""
        self.hits |= {name for name, landed in self._struck if landed()}
        self._struck.clear()
        self._aimed.clear()

    def _begun(self) -> None:
        """A payload is in hand."""
        clock = self._world.clock
        aimed, self._aimed = self._aimed, []
        for strike in aimed:
            clock.after(clock.rng.randint(0, SOON_US), strike)

    def _strike(self, name: str) -> None:
        is_making = self._is_making
        strike = faults.FAULTS[name](self._world)
        if strike is not None and is_making:
            self._struck.append((name, strike))

    @property
    def _is_making(self) -> bool:
        return any(worker.up and worker.has_work for worker in self._workers)


def worker(world: World, number: int, on_work: Callable[[], None] | None = None) -> RepairNode:
    """`on_work` is called whenever it begins a payload."""
    node = RepairNode(
        world.clock, world.network, world.oracles, world.coordinator,
        lambda id: world.targets[id], number,
    )  # fmt: skip
    node.on_work = on_work
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
    workers[number] = worker(world, number, workers[number].on_work)


def revive(world: World, workers: list[RepairNode]) -> None:
    for number, each in enumerate(workers):
        if not each.up:
            workers[number] = worker(world, number, each.on_work)


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


def list_again(world: World) -> None:
    """All targets: a copy that was sealed late, by a worker whose time was over, is not known until
    then.
    """
    world.clock.pass_time(8_000_000)
    world.coordinator.crash()
    world.restart_coordinator()
    world.clock.pass_time(8_000_000)


def check_disks(world: World) -> None:
    """Each column is durable where it is named, and nowhere else: what was too much is gone."""
    held: Counter[str] = Counter()
    for target in world.targets.values():
        names = target.disk.durable_names("columns")
        held.update(n for n in names if f"{target.id}/columns/{n}" not in world.rotted)
    for id in world.oracles.kept(RUN):
        for rank, columns in world.oracles.announced[id].placement.items():
            if len(set(columns)) < len(columns):
                raise Violation(f"P13: two columns of rank {rank} of {id} are on one target")
            for number, target_id in enumerate(columns):
                name = column_name(ColumnId(PayloadId(id, rank), ColumnNumber(number)))
                if target_id is None:
                    raise Violation(f"P7: {name} is named nowhere")
                if name not in world.targets[target_id].disk.durable_names("columns"):
                    raise Violation(f"P1: {name} is not on {target_id}, where it is named")
                if held[name] > 1:
                    raise Violation(f"P7: {name} is there {held[name]} times")


def read_all(world: World) -> None:
    for id in world.oracles.kept(RUN):
        reader = world.read(id.step)
        world.clock.run(lambda reader=reader: reader.outcome is not None, SETTLE_US)
        if reader.outcome != "read":
            raise Violation(f"P1: a load of {id} ends with {reader.outcome}")
