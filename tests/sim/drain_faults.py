"""Faults aimed at a drain that is under way, and at an eviction: each strikes the very checkpoint.

A strike answers how to tell whether it really met the drain, or the eviction; None when there is
nothing to strike now. What it breaks stays broken until the world heals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    PayloadId,
    Rank,
    RunName,
    Step,
)
from ckpt.format.messages import Message
from ckpt.format.messages.drains import (
    BeginParts,
    EndDrain,
    LeaseDrain,
    OpenStore,
    RenewDrain,
    TakePart,
    TellStored,
)
from ckpt.format.messages.targets import DocumentStored, Dropped
from ckpt.objects import names
from ckpt.protocol.events import Send
from ckpt.protocol.target.core import column_name
from ckpt.testing.disk import Keep
from tests.sim.drain_node import DrainNode, Trouble
from tests.sim.drain_world import DrainWorld
from tests.sim.faults import Strike
from tests.sim.scenario import SETTLE_US
from tests.sim.target_node import TargetNode
from tests.sim.world import RANK_COUNT, TARGET_COUNT

PAGE_BYTES = 4096
SLOW = 10_000
DOWN_US = (2_000, 500_000, 4_000_000)
LATE_US = 20_000_000
"""Longer than a lease."""
SOON_US = 5_000_000
NEVER_US = 3_600_000_000
JUMPS_S = (-86_400, -3_600, 3_600, 86_400)
QUESTIONS: frozenset[type[Message]] = frozenset(
    {
        OpenStore, TellStored, LeaseDrain, BeginParts, TakePart, RenewDrain, EndDrain,
    }
)  # fmt: skip
"""What a worker says."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is struck."""

    world: DrainWorld
    id: CheckpointId
    """Under way to a store, or out of the tier."""
    worker: DrainNode | None = None
    """Who drains it."""
    evicts: bool = False
    """What is drained goes from the tier soon."""

    def unread(self) -> list[Rank]:
        """Payloads that the worker has not read yet."""
        reader = self.worker.under_way if self.worker is not None else None
        read = reader.payloads if reader is not None else {}
        return [Rank(rank) for rank in range(RANK_COUNT) if rank not in read]

    def columns(self) -> list[tuple[TargetNode, str]]:
        """Files of its columns that lie on targets that run; in a drain those alone that it will
        ask first, since they hold data and are not read yet.
        """
        placement = self.world.oracles.announced[self.id].placement
        code = self.world.coordinator.machine_policy.code
        asked = code.k if self.worker is not None else code.n
        found = [
            (self.world.targets[target], f"columns/{column_name(_column(self.id, rank, number))}")
            for rank in self.unread()
            for number, target in enumerate(placement[rank][:asked])
            if target is not None
        ]
        return [(t, file) for t, file in found if t.up and file in t.disk.files()]

    def holder(self) -> TargetNode | None:
        """A target that runs and has some of it."""
        holders = sorted({target.id for target, _ in self.columns()})
        return self.world.targets[self.world.clock.rng.choice(holders)] if holders else None


def _column(id: CheckpointId, rank: Rank, number: int) -> ColumnId:
    return ColumnId(PayloadId(id, rank), ColumnNumber(number))


def _payload_of(file: str) -> str:
    """Of a column's file."""
    return file.rpartition("-")[0]


def _at_once() -> bool:
    return True


def target_slow(scene: Scene) -> Strike | None:
    """F3: a target that has some of it takes seconds for what took it a moment, and is asked. One:
    nobody can read beside more than parity makes up for.
    """
    target, asked = scene.holder(), scene.world.tally.asked
    if target is None or any(each.disk_slow == SLOW for each in scene.world.targets.values()):
        return None
    target.disk_slow, before = SLOW, asked[target.id]
    return lambda: asked[target.id] > before


def pages_misplaced(scene: Scene) -> Strike | None:
    """F8: a page of one of its columns, or all of them, are those of another column. One
    column of a payload: nobody can read more than its parity makes up for.
    """
    rng, tally = scene.world.clock.rng, scene.world.tally
    columns = [(t, f) for t, f in scene.columns() if _payload_of(f) not in tally.misplaced]
    if not columns:
        return None
    target, file = rng.choice(columns)
    tally.misplaced.add(_payload_of(file))
    sources = [name for name in target.disk.files() if name.startswith("columns/")]
    source = rng.choice(sources)
    pages = min(target.disk.file_bytes(name) // PAGE_BYTES for name in (file, source))
    if file == source:
        target.disk.misplace(file, 1, file, 0)
    else:
        for page in range(rng.choice([0, 1]), pages):
            target.disk.misplace(file, page, source, page)
    before = tally.harmed
    return lambda: tally.harmed > before


def power_lost(scene: Scene) -> Strike | None:
    """F10: of a target, the coordinator, the worker, or all of them at once."""
    world, rng = scene.world, scene.world.clock.rng
    target = scene.holder()
    if target is None:
        return None
    everything = rng.random() < 0.25
    kind = rng.choice(["target", "coordinator", "worker"])
    for node in world.targets.values() if everything else [target] if kind == "target" else []:
        node.crash(Keep.NOTHING)
        world.clock.after(rng.choice(DOWN_US), node.start)
    if everything or kind == "coordinator":
        world.coordinator.crash()
        world.clock.after(rng.choice(DOWN_US), world.restart_coordinator)
    if everything or kind == "worker":
        for worker in [scene.worker] if scene.worker is not None else list(world.workers):
            worker.crash()
        world.clock.after(rng.choice(DOWN_US), world.restart_workers)
    return _at_once


def messages_come_again(scene: Scene) -> Strike | None:
    """F16: what workers said is said again, at once or when their leases are long over, in any
    order; and all frames stutter.
    """
    world, rng, network = scene.world, scene.world.clock.rng, scene.world.network
    network.remembered, network.weather.stutter = QUESTIONS, 0.1
    arrived: list[Send] = []

    def again(copy: Send) -> None:
        sessions = [w.session for w in world.workers if w.up and w.session is not None]
        if sessions and world.coordinator.up:
            arrived.append(copy)
            session, request = rng.choice(sessions), (1 << 60) + len(arrived)
            network.send(Send(session, request, copy.message, copy.bulk))

    def look() -> None:
        network.remembered = frozenset()
        network.weather.stutter = 0.0
        for copy in network.copies:
            world.clock.after(rng.choice([0, rng.randint(0, LATE_US)]), again, copy)

    world.clock.after(rng.choice([200_000, 2_000_000]), look)
    return lambda: len(arrived) > 10


def half_opened(scene: Scene) -> Strike | None:
    """F18: what the worker says to the coordinator or a target vanishes, for a while or until
    somebody mends it.
    """
    rng, network = scene.world.clock.rng, scene.world.network
    worker = scene.worker
    nodes = [worker, worker.under_way] if worker is not None else []
    node = rng.choice(nodes) if nodes else None
    sessions = network.dialed_by(node) if node is not None else []
    if not sessions:
        return None
    before = network.swallowed_frames
    network.half_open(rng.choice(sessions), rng.choice([500_000, 6_000_000, NEVER_US]))
    return lambda: network.swallowed_frames > before


def host_lost(scene: Scene) -> Strike | None:
    """F22: all targets of a host that has some of it."""
    world, target, tally = scene.world, scene.holder(), scene.world.tally
    if target is None or not all(node.up for node in world.targets.values()):
        return None
    before = tally.lost
    for node in world.targets.values():
        if node.domain.host == target.domain.host:
            node.crash(world.clock.rng.choice(list(Keep)))
    return lambda: tally.lost > before


def targets_change(scene: Scene) -> Strike | None:
    """F24: one comes, and one that has some of it goes for good."""
    world, target = scene.world, scene.holder()
    if target is None or len(world.targets) > TARGET_COUNT:
        return None
    node = TargetNode(world.clock, world.network, world.coordinator, TARGET_COUNT, world.seed)
    world.targets[node.id] = node
    node.start()
    target.crash(Keep.SOME)
    target.lost = True
    return _at_once


def clock_jumped(scene: Scene) -> Strike | None:
    """F26: the coordinator's wall clock is wrong from now on; if this is no drain, a checkpoint is
    evicted behind it.
    """
    world, evicted = scene.world, len(scene.world.evicted)
    if not world.coordinator.up:
        return None
    world.coordinator.wall_jump_s += world.clock.rng.choice(JUMPS_S)
    return lambda: not scene.evicts or len(world.evicted) > evicted


def rotted(scene: Scene) -> Strike | None:
    """F7: a bit of one of its columns, anywhere in the file; then the target may start again."""
    world, rng, columns = scene.world, scene.world.clock.rng, scene.columns()
    if not columns:
        return None
    target, file = rng.choice(columns)
    size = target.disk.file_bytes(file)
    target.disk.rot(file, rng.choice([rng.randrange(PAGE_BYTES), rng.randrange(size)]), 3)
    if rng.random() < 0.5:
        target.crash(Keep.ALL)
        world.clock.after(rng.choice(DOWN_US), target.start)
    return _at_once


def answers_lost(scene: Scene) -> Strike | None:
    """F15: targets do what they are told, and their next answers never come."""
    network, rng = scene.world.network, scene.world.clock.rng
    network.unheard = frozenset({Dropped, DocumentStored})
    network.unheard_left, before = rng.randint(1, 4), network.unheard_frames
    return lambda: network.unheard_frames > before


def store_answers_lost(scene: Scene) -> Strike | None:
    """F28: a store does what it is asked, and says nothing, or that it was there before. It strikes
    when what it confirmed so is evicted later.
    """
    world, markers = scene.world, names.COMMITTED
    world.trouble = world.clock.rng.choice(
        [Trouble(lost=0.7, of=markers), Trouble(conflict=0.7, of=markers), Trouble(lost=0.05)]
    )

    def struck() -> bool:
        lost = {key for worker in world.workers for key in worker.lost}
        prefixes = [names.generation_prefix(*key) for key in map(_key, world.evicted)]
        return any(prefix + markers in lost for prefix in prefixes)

    return struck


def _key(id: CheckpointId) -> tuple[RunName, Step, Generation]:
    return id.run, id.step, id.generation


@dataclass(frozen=True, slots=True)
class Cell:
    """A fault in a phase."""

    strike: Callable[[Scene], Strike | None]
    within_us: int = SETTLE_US
    """The drain is done beside the fault, so long behind the last save."""
    shared_hosts: bool = False
    at_drain: bool = False
    """It strikes the drain of what is evicted then."""


DRAIN: dict[str, Cell] = {
    "F3": Cell(target_slow, within_us=SOON_US),
    "F8": Cell(pages_misplaced),
    "F10": Cell(power_lost),
    "F16": Cell(messages_come_again),
    "F18": Cell(half_opened),
    "F22": Cell(host_lost, shared_hosts=True),
    "F24": Cell(targets_change),
    "F26": Cell(clock_jumped),
}
EVICT: dict[str, Cell] = {
    "F7": Cell(rotted),
    "F10": Cell(power_lost),
    "F15": Cell(answers_lost),
    "F24": Cell(targets_change),
    "F26": Cell(clock_jumped, at_drain=True),
    "F28": Cell(store_answers_lost, at_drain=True),
}
