"""F13: the old coordinator is alive. Somebody took it for dead, made a catalog elsewhere of the
targets, of a backup or by copying its files, and started a coordinator there. Clients, targets and
drain workers follow it, stay, or come later; the old one goes on, or is paused and wakes.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from ckpt.base.ids import PayloadId, TargetId
from ckpt.base.units import US_PER_S
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.policy import Watermarks
from ckpt.protocol.stager.events import SaveCommitted
from ckpt.testing.catalog_entries import apply_all
from ckptd.catalog.rebuild import rebuild
from tests.landing import at_turn
from tests.sim.catalog_sources import AwaySource, DiskSource
from tests.sim.coordinator_node import CLUSTER, CoordinatorNode
from tests.sim.drain_node import Trouble
from tests.sim.drain_world import small_items
from tests.sim.last_checks import check_readable
from tests.sim.member_operator import MemberOperator
from tests.sim.oracles import Violation
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import CRASHED
from tests.sim.repair_world import lacks, list_again
from tests.sim.scenario import PHASES, SETTLE_US
from tests.sim.target_node import TargetNode
from tests.sim.two_world import TwoWorld

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 2
STEPS = (10, 20, 30, 40)
STORE = StorePolicy("mem://one")
PHASE_US = 8 * US_PER_S
REBUILD_AFTER_US = 2 * US_PER_S
WHOLE_US = 90 * US_PER_S
REBUILDING_SEEDS = 12
MOVING_SEEDS = 12
READ_US = 1_000_000
"""Between two questions for the newest step,"""
QUESTIONS = 9
"""so often, at each of the two."""


def _draining(world: TwoWorld) -> bool:
    return any(worker._job is not None for worker in world.workers)


def _evicting(world: TwoWorld) -> bool:
    known = world.coordinator.machine.checkpoints.all()
    return any(c.state is RowState.TOMBSTONED and "evicted" in c.reason for c in known)


def _rebuilding(world: TwoWorld) -> bool:
    return any(worker.has_work for worker in world.repairers)


WHEN = {phase: PHASES[phase] for phase in "RSLCAX"} | {"D": _draining, "E": _evicting}
NAMES = tuple(WHEN)
WHEN["B"] = WHEN["M"] = _rebuilding  # In histories of their own.
HOWS = ("copied", "rebuilt", "restored")


@dataclass(slots=True)
class History:
    """What one seed was, and did."""

    phase: str
    how: str
    struck: bool = False
    ends: list[str] = field(default_factory=list)


# ----------------------------------------------------------------------- the second one rises


def _catalog(
    world: TwoWorld, how: str, new: CoordinatorNode, copy: tuple[list[CatalogEntry], int],
    reached: list[TargetNode],
) -> None:  # fmt: skip
    """What lies on its disk when it starts for the first time."""
    if how == "copied":
        new.put_back(*copy)
        return
    backup = apply_all(CatalogImage(copy[1]), copy[0]) if how == "restored" else None
    sources = [
        DiskSource(target) if target in reached else AwaySource(target.name)
        for target in world.targets.values()
    ]
    new.begin_from(rebuild(CLUSTER, sources, backup).image)


def _followers(world: TwoWorld) -> list[TargetNode]:
    """Targets that go over at once: all, as many as may be missed, a majority, or too few."""
    rng, targets = world.clock.rng, list(world.targets.values())
    m = world.coordinator.machine.policy.code.m
    count = len(targets)
    most = rng.choice([count, count - m, count - m, count // 2 + 1, m])
    return rng.sample(targets, most)


def _rise(world: TwoWorld, how: str, copy: tuple[list[CatalogEntry], int]) -> None:
    rng, old = world.clock.rng, world.old
    assert old is not None
    follow = _followers(world)
    fate = rng.choice(["paused", "paused", "alive", "deaf", "restarted"])
    pause_us = rng.choice([300_000, 2_000_000, 8_000_000])
    deaf_us = rng.choice([1_000_000, 9_000_000]) if fate == "deaf" else 0
    enough = len(world.targets) - world.coordinator.machine.policy.code.m
    some = follow if len(follow) >= enough else list(world.targets.values())
    if how == "copied" and rng.random() < 0.7:
        copy = old.copy()
    new = world.prepare()
    _catalog(world, how, new, copy, rng.choice([some, list(world.targets.values())]))
    if fate == "restarted":  # And takes the same term as one that begins from a copy.
        old.crash()
        old.start()
    new.start()
    if fate == "paused":
        old.stopped = True
        world.clock.after(pause_us, world.wake, old, pause_us)
    for target in follow:
        world.clock.after(rng.choice([0, 0, 700_000]), world.send_over, target, new, deaf_us)
    world.send_over(follow[0], new, deaf_us)
    late_us = rng.choice([1_500_000, 4_000_000, 8_000_000])
    for node in (*world.targets.values(), *world.ranks, *world.workers, *world.repairers):
        if rng.random() < 0.4 and not isinstance(node, TargetNode):
            world.clock.after(rng.randint(0, 300_000), world.send_over, node, new, deaf_us)
        world.clock.after(late_us + rng.randint(0, 500_000), world.send_over, node, new)
    if rng.random() < 0.3:
        astray = follow if rng.random() < 0.5 else [rng.choice(follow)]
        at_us = rng.randint(1_000_000, 4_000_000)
        for target in astray:
            world.clock.after(at_us, world.send_over, target, old)
            world.clock.after(at_us + 3_000_000, world.send_over, target, new)


# ----------------------------------------------------------------------- what goes on meanwhile


def _busy(world: TwoWorld) -> None:
    """Another start of the job, readers and somebody who deletes, at either of them."""
    rng, old, new = world.clock.rng, world.old, world.coordinator
    assert old is not None
    both = (old, new)
    world.clock.after(rng.randint(0, 3_000_000), _launch_at, world, rng.choice(both))
    for number in range(QUESTIONS):
        for one in both:
            at_us = number * READ_US + rng.randint(0, READ_US)
            world.clock.after(at_us, world.read_from, one)
    for _ in range(rng.choice([0, 1, 2])):
        step = rng.choice([10, 20])
        world.clock.after(rng.randint(0, 6_000_000), world.delete_at, rng.choice(both), step)


def _launch_at(world: TwoWorld, one: CoordinatorNode) -> None:
    rng, new = world.clock.rng, world.coordinator
    world.coordinator = one
    nodes = world.launch((30, 40, 50), rng.choice([2_000, 300_000]), 4096)
    world.coordinator = new
    for node in nodes:
        world.clock.after(9_000_000, world.send_over, node, new)


# ----------------------------------------------------------------------- the end


def _operator_mends(world: TwoWorld) -> None:
    """Everything is stopped and read, as the error says."""
    new, old = world.coordinator, world.old
    assert old is not None
    old.crash()
    new.crash()
    for target in world.targets.values():
        target.crash()
    backup = None
    found = rebuild(CLUSTER, [DiskSource(t) for t in world.targets.values()], backup)
    new.begin_from(found.image)


def _end(world: TwoWorld, history: History) -> None:
    new, old = world.coordinator, world.old
    assert old is not None
    world.wake(old, 0)
    world.heal()
    for node in (*world.targets.values(), *world.ranks, *world.workers, *world.repairers):
        world.send_over(node, new)
    world.trouble = Trouble()
    world.clock.run(lambda: world.is_old or world.live_targets == len(world.targets), SETTLE_US)
    history.ends.append("old" if world.is_old else "serves")
    if world.is_old:
        _operator_mends(world)
        for reader in world.readers:
            world.send_over(reader, new)
        world.heal()
    elif world.clock.rng.random() < 0.5:
        world.read_from(old)  # Deposed, and nobody has told its reader.
    for node in world.ranks:
        node.crash()
    world.clock.run(lambda: world.live_targets == len(world.targets), SETTLE_US)
    _check_next_launch(world)
    if world.repairers:
        _check_all_is_whole(world)
    _check_all_is_there(world)


def _check_next_launch(world: TwoWorld) -> None:
    last = world.launch((60,), 2_000, 4096)
    world.clock.run(lambda: all(node.outcomes for node in last), SETTLE_US)
    told = [node.outcomes.get(60) for node in last]
    if not all(isinstance(end, SaveCommitted) for end in told):
        raise Violation(f"the launch behind it cannot save: {told}")
    reader = world.read_from(world.coordinator)
    world.clock.run(lambda: all(r.outcome is not None for r in world.readers), SETTLE_US)
    if reader.outcome != "read":
        raise Violation(f"P1: after healing, a load ends with {reader.outcome}")
    for each in world.readers:
        if each.outcome not in ("read", "unavailable", "not_found", "corrupt", CRASHED):
            raise Violation(f"P3: {each.name} ended with {each.outcome}")


def _check_all_is_whole(world: TwoWorld) -> None:
    """Whatever the old one had named, or was about to; and nothing lies twice."""
    world.clock.run(lambda: lacks(world) == "", WHOLE_US)
    if left := lacks(world):
        raise Violation(f"P7: not whole again after {WHOLE_US // US_PER_S} s: {left}")
    for worker in world.repairers:
        worker.crash()
    list_again(world)
    world.follow_places()
    held = Counter(n for t in world.targets.values() for n in t.disk.durable_names("columns"))
    files = world.oracles.announced_columns() - deleted_columns(world)
    if twice := [file for file in files if held[file.removeprefix("columns/")] > 1]:
        raise Violation(f"P7: {sorted(twice)[:3]} are there twice")


def deleted_columns(world: TwoWorld) -> set[str]:
    oracles = world.oracles
    gone = oracles.deleted & oracles.announced.keys()
    payloads = (PayloadId(id, r) for id in gone for r in oracles.announced[id].placement)
    return set().union(*map(oracles.files_of, payloads))


def _check_all_is_there(world: TwoWorld) -> None:
    """What either acknowledged is there, bit by bit."""
    for id, announced in sorted(world.oracles.announced.items()):
        if id not in world.oracles.deleted:
            check_readable(world, id, announced)


# ----------------------------------------------------------------------- one seed


def run_seed(seed: int, steps: Counter[str] | None = None, phase: str = "") -> History:
    """Raises Violation when a promise breaks. `phase`: by the seed, when it is not said."""
    world = TwoWorld.made(seed)
    assert world.old is not None
    rng = world.clock.rng
    phase, how = phase or NAMES[seed % len(NAMES)], rng.choice(HOWS)
    if phase in "DE":
        world.old.machine_policy = replace(
            world.old.machine_policy, watermarks=Watermarks(low=0.0, high=0.0)
        )
    if phase in "BM":
        world.old.machine_policy = replace(
            world.old.machine_policy, rebuild_after_us=REBUILD_AFTER_US
        )
    world.start()
    copy = world.old.copy()
    if phase in "DE":
        world.add_store(STORE, conditional=rng.random() < 0.5)
        for _ in range(2):
            world.clock.after(rng.randint(0, 400_000), world.start_worker, STORE)
        world.trouble = Trouble(yields=0.05)
    nodes = world.launch(STEPS, rng.choice([2_000, 300_000]), rng.choice([3_000, 9_000]))
    world.clock.pass_time(rng.randint(1_000, 900_000))
    if rng.random() < 0.5:
        copy = world.old.copy()
    history = History(phase, how)
    if phase == "B":
        _lose_one(world, nodes)
    if phase == "M":
        _drain_some(world, nodes)
    history.struck = _wait_for(world, phase)
    _rise(world, how, copy)
    _busy(world)
    world.clock.pass_time(11 * US_PER_S)
    _kill_some(world, nodes)
    _end(world, history)
    if steps is not None:
        steps["steps"] += world.clock.steps
    return history


def _lose_one(world: TwoWorld, nodes: list[RankNode]) -> None:
    """All is saved; a target goes, and comes back when some of what it has is elsewhere, or all."""
    world.clock.run(lambda: all(node.done_saving for node in nodes), PHASE_US)
    world.start_repairers(2)
    target = world.clock.rng.choice(list(world.targets.values()))
    target.crash()
    world.clock.after(world.clock.rng.choice([4, 8, 20]) * US_PER_S, target.start)


def _drain_some(world: TwoWorld, nodes: list[RankNode]) -> None:
    """All is saved; who is to leave is said to the old one, which somebody may go on saying it to
    when the other has risen."""
    world.clock.run(lambda: all(node.done_saving for node in nodes), PHASE_US)
    world.start_repairers(2)
    rng = world.clock.rng
    assert world.old is not None
    people = MemberOperator(world.clock, world.network, world.old)
    people.look()
    first, second = rng.sample(sorted(world.targets), 2)
    people.want(TargetId(first), rng.choice(["draining", "out"]))
    then = rng.choice([(first, "in"), (second, "draining"), (second, "out")])
    at_us = rng.choice([1, 5, 12]) * US_PER_S
    world.clock.after(at_us, people.want, TargetId(then[0]), then[1])


def _wait_for(world: TwoWorld, phase: str) -> bool:
    """The phase, and that somebody may be in the middle of it."""
    rng = world.clock.rng
    if phase in "AX":
        world.clock.run(lambda: PHASES["A"](world), PHASE_US)
    if phase == "X":
        assert world.old is not None
        world.read_from(world.old)
    for _ in range(rng.choice([1, 1, 2, 3])):
        world.clock.run(lambda: WHEN[phase](world), PHASE_US)
        if phase != "X":
            world.clock.pass_time(rng.choice([1, 1, 400, 3_000]))
    return WHEN[phase](world) or world.clock.run(lambda: WHEN[phase](world), PHASE_US)


def _kill_some(world: TwoWorld, nodes: list[RankNode]) -> None:
    for node in nodes:
        if world.clock.rng.random() < 0.5:
            node.crash()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


def histories(first: int, count: int) -> list[History]:
    """Fails naming the seeds that broke a promise."""
    found: list[History] = []
    failures: list[tuple[int, str]] = []
    for seed in range(first, first + count):
        try:
            found.append(run_seed(seed))
        except AssertionError as error:
            failures.append((seed, str(error)))
    assert not failures, failures[:5]
    return found


@at_turn(0, every=4)
@pytest.mark.timeout(1800)
def test_whoever_of_two_coordinators_acknowledged_it_it_is_there_once() -> None:
    found = histories(0, SEEDS)
    struck = Counter(one.phase for one in found if one.struck)
    assert all(struck[phase] for phase in NAMES), struck
    ends = Counter((one.how, end) for one in found for end in one.ends)
    assert all(ends[how, "serves"] for how in HOWS), ends
    assert ends["copied", "old"]


@at_turn(1, every=4)
@pytest.mark.timeout(600)
def test_columns_that_either_of_two_coordinators_has_made_again_are_there_once() -> None:
    """The old one goes on handing payloads to its workers."""
    found = [run_seed(seed, phase="B") for seed in range(REBUILDING_SEEDS)]
    assert sum(one.struck for one in found) > REBUILDING_SEEDS // 2


@at_turn(3, every=4)
@pytest.mark.timeout(600)
def test_columns_that_move_while_two_coordinators_live_are_there_once() -> None:
    """The old one goes on hearing who is to leave, and moves what they have."""
    found = [run_seed(seed, phase="M") for seed in range(MOVING_SEEDS)]
    assert sum(one.struck for one in found) > MOVING_SEEDS // 2
