"""The history of one seed: a job saves, and in a phase of a save its leader is struck; others
follow. Then all heals, and everything that anybody was told is looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ckpt.protocol.stager.events import SaveCommitted
from tests.sim import faults
from tests.sim.books import check_books
from tests.sim.last_checks import SETTLE_US, check_no_leak, check_readable, let_orphans_go
from tests.sim.leading.cluster import EtcdWeather
from tests.sim.leading.effects import simulated
from tests.sim.leading.people import People
from tests.sim.leading.process import CoordinatorProcess
from tests.sim.leading.strikes import HEARD, ONCE, STRIKES, TAKES_OVER
from tests.sim.leading.world import LeadingWorld
from tests.sim.load_nodes import LoadingRank, LoadJob
from tests.sim.oracles import Violation
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import CRASHED
from tests.sim.restarts import check_restart
from tests.sim.scenario import PHASES, settle
from tests.sim.world import RANK_COUNT, RUN

NAMES = tuple("JRSLCAX")
JOBS = (
    ((10, 20, 30, 40), 2_000), ((10, 15, 20, 25, 30, 40), 300_000), ((10, 20, 25, 30, 40), 1_200_000)
)  # fmt: skip
"""Steps, and how long the trainer works between two of them."""
PHASE_US = 8_000_000
COPY_US = 60_000_000
"""A page whose answer was lost is asked for again after two seconds, or ten."""
AFTERWARDS_US = 3_000_000
"""Of a history, beside the longest that anybody is away."""
BESIDE: tuple[Callable[..., object], ...] = (
    faults.target_killed, faults.target_power_lost, faults.target_stopped, faults.target_slowed,
    faults.connections_cut, faults.frames_stuttered, faults.half_opened, faults.trainer_killed,
)  # fmt: skip
"""What befalls others, in some histories."""


@dataclass(slots=True)
class History:
    """What one seed was, and did."""

    seed: int
    phase: str
    only_coordinators: bool
    """Nothing befalls anybody else: then a job sees no error."""
    struck: bool = False
    """In its phase."""
    strikes: list[str] = field(default_factory=list)
    aims: dict[str, int] = field(default_factory=dict)
    terms: int = 0
    warm: int = 0
    """Terms that began from the copy of who stood by."""
    committed: int = 0
    loaded: int = 0
    """Ranks whose job loads."""
    labeled: int = 0
    """Changes of names and pins that people were told of."""
    stood: int = 0
    """Somebody said how a target stands."""
    done_late: int = 0
    lost: int = 0
    given_up: int = 0


def run_seed(seed: int, *, rests: bool = False) -> History:
    """Raises Violation, or a machine's AssertionError, when a promise breaks. `rests`: see
    `simulated`.
    """
    with simulated(rests=rests):
        world = LeadingWorld.made(seed)
        try:
            return _run(world)
        finally:
            world.end()


def _run(world: LeadingWorld) -> History:
    rng = world.clock.rng
    phase, alone = NAMES[world.seed % len(NAMES)], rng.random() < 0.5
    history = History(world.seed, phase, only_coordinators=alone)
    if rng.random() < 0.25:
        world.etcd.faults.weather = EtcdWeather(late=0.05, lost=0.05, broken=0.05)
    world.start()
    first = world.launch(*rng.choice(JOBS), rng.choice([3_000, 9_000]))
    history.struck = _wait_for(world, history.phase)
    _strike(world, history, TAKES_OVER)
    for _ in range(rng.choice([0, 1, 2, 3, 4])):
        world.clock.after(rng.randint(0, 6_000_000), _strike, world, history, tuple(STRIKES))
    _busy(world, history)
    people = People(world)
    people.begin()
    world.clock.pass_time(world.times.longest_us + AFTERWARDS_US)
    world.heal()
    people.end()
    history.labeled, history.stood = people.labeled, people.stood
    if history.only_coordinators:
        _check_job_saw_nothing(world, first)
    _end(world, first)
    return _told(world, history)


def _wait_for(world: LeadingWorld, phase: str) -> bool:
    """The phase, and that somebody may be in the middle of it."""
    rng = world.clock.rng
    if phase in "AX":
        world.clock.run(lambda: PHASES["A"](world), PHASE_US)
    if phase == "X":
        world.read()
    for _ in range(1 if phase == "J" else rng.choice([1, 1, 2, 4])):
        world.clock.run(lambda: PHASES[phase](world), PHASE_US)
        if phase not in "JX":
            world.clock.pass_time(rng.choice([1, 1, 400, 3_000]))
    return PHASES[phase](world) or world.clock.run(lambda: PHASES[phase](world), PHASE_US)


def _strike(world: LeadingWorld, history: History, names: tuple[str, ...]) -> None:
    unfit = HEARD | (ONCE & set(history.strikes)) if history.only_coordinators else frozenset()
    fitting = [each for each in names if each not in unfit]
    name = world.clock.rng.choice(fitting)
    if not world.is_healed and STRIKES[name](world):
        history.strikes.append(name)


def _busy(world: LeadingWorld, history: History) -> None:
    """Readers, somebody who deletes, another start of the job, and faults of others."""
    rng, after = world.clock.rng, world.clock.after
    for number in range(8):
        after(number * 1_000_000 + rng.randint(0, 1_000_000), world.read)
    if rng.random() < 0.5:
        _load(world)
    if rng.random() < 0.4:
        after(rng.randint(0, 6_000_000), world.delete_one)
    if history.only_coordinators:
        return
    if rng.random() < 0.7:
        after(rng.randint(0, 5_000_000), world.launch, (50, 60), 2_000, 4096)
    for _ in range(rng.choice([0, 1, 2])):
        after(rng.randint(0, 5_000_000), rng.choice(BESIDE), world)


def _load(world: LeadingWorld) -> None:
    """A job that loads the newest step, all its ranks the same."""
    rng = world.clock.rng
    job, at_us = LoadJob(RUN, "loads", RANK_COUNT), rng.randint(0, 6_000_000)
    for rank in range(RANK_COUNT):
        node = LoadingRank(
            world.clock, world.network, world.oracles, world.coordinator,
            lambda id: world.targets[id], job, rank,
        )  # fmt: skip
        world.loaders.append(node)
        world.clock.after(at_us + rng.randint(0, rng.choice([5_000, 900_000])), node.start)


# --------------------------------------------------------------------------- the end


def _check_job_saw_nothing(world: LeadingWorld, job: list[RankNode]) -> None:
    """Whatever befell its coordinators, all its saves are committed."""
    world.clock.run(lambda: all(len(r.outcomes) == len(r.job.steps) for r in job), SETTLE_US)
    for rank in job:
        ends = [type(rank.outcomes.get(step)).__name__ for step in rank.job.steps]
        if set(ends) != {SaveCommitted.__name__}:
            raise Violation(f"P4: {rank.name} saw an error or none at all: {rank.outcomes}")


def _end(world: LeadingWorld, first: list[RankNode]) -> None:
    for node in (*first, *world.ranks):
        if world.clock.rng.random() < 0.5:
            node.crash()
    wait_until_well(world)
    for node in world.ranks:
        node.crash()
    last = world.launch((70,), 2_000, 4096)
    settle(world, last)
    said = [node.outcomes.get(70) for node in last]
    if not all(isinstance(end, SaveCommitted) for end in said):
        raise Violation(f"P4: after healing a job cannot save: {said}")
    _check_readers(world)
    for id, announced in sorted(world.oracles.announced.items()):
        if id not in world.oracles.deleted:
            check_readable(world, id, announced)
    let_orphans_go(world)
    check_no_leak(world)
    check_books(world)
    wait_until_stored(world)
    check_restart(world)
    world.book.check_keys()
    check_copies(world)


def wait_until_well(world: LeadingWorld) -> None:
    """One leads, and has all targets."""

    def well() -> bool:
        led = len(_leaders(world)) == 1 and world.several.machine._desk.full is None
        return led and world.live_targets == len(world.targets)

    if not world.clock.run(well, SETTLE_US):
        states = [(one.name, one.up and one.contender.state.value) for one in world.several.all]
        raise Violation(f"P4: after healing {world.live_targets} targets, {states}")


def _leaders(world: LeadingWorld) -> list[str]:
    return [one.name for one in world.several.all if one.leads]


def wait_until_stored(world: LeadingWorld) -> None:
    """Nothing is on its way to etcd."""
    world.clock.run(lambda: not world.several.is_writing, SETTLE_US)


def _check_readers(world: LeadingWorld) -> None:
    reader = world.read()
    everybody = (*world.readers, *world.loaders)
    world.clock.run(lambda: all(one.outcome is not None for one in everybody), SETTLE_US)
    newest = world.oracles.kept(RUN)[-1]
    found = reader.checkpoint
    if reader.outcome != "read" or found is None or found.checkpoint != newest:
        raise Violation(f"P1: after healing a load ends with {reader.outcome}, of {found}")
    held = {str(one.loaded) for one in world.loaders if one.outcome == "read"}
    if len(held) > 1:
        raise Violation(f"P2: one launch holds two steps: {held}")
    ends = {"read", "unavailable", "not_found", "lost", CRASHED}
    if world.etcd.store.was_full:  # Ranks that load together settle on what they have loaded.
        ends.add("no_space")
    for one in everybody:
        if one.outcome not in ends:
            raise Violation(f"P3: {one.name} ended with {one.outcome}")


def check_copies(world: LeadingWorld) -> None:
    """Who stands by comes to have all that is stored. A term may still end for a lease that was not
    kept before all healed.
    """

    def lacks() -> dict[str, int]:
        return {one.name: _lacks(world, one) for one in world.several.all if not one.leads}

    if not world.clock.run(lambda: not any(lacks().values()), COPY_US):
        raise Violation(f"P1: so many keys are not as stored in the copies: {lacks()}")


def _lacks(world: LeadingWorld, one: CoordinatorProcess) -> int:
    world.clock.changed = True
    known = {key: kv.value for key, kv in world.etcd.store.keys.items()}
    mirror = one.contender._mirror
    found = {mirror._names.full(name): value for name, value in mirror._values.items()}
    return sum(found.get(key) != known.get(key) for key in {*found, *known})


def _told(world: LeadingWorld, history: History) -> History:
    lines = [line for one in world.several.all for line in one.lines]
    leads = [fields for text, fields in lines if text == "leads"]
    history.terms = len(world.book.terms)
    history.warm = sum(fields["warm"] == "yes" for fields in leads)
    history.committed = len(world.oracles.announced)
    history.loaded = sum(one.outcome == "read" for one in world.loaders)
    history.aims = dict(world.aims)
    history.done_late, history.lost = world.etcd.done_late, world.etcd.lost
    history.given_up = world.network.given_up
    return history
