"""One history of the small world: what happens by itself, in its order, and what disturbs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from ckpt.format.messages.asking import ChangeTarget, DeleteStep
from ckpt.format.messages.loading import Resolve
from ckpt.protocol.coordinator.cluster.vouching import CatalogStanding
from ckptd.catalog.rebuild import rebuild
from tests.explore.clients import Person, Worker
from tests.explore.columns import RUN, STEP
from tests.explore.held import HeldSource
from tests.explore.parties import CATALOG, CLUSTER, COORDINATOR
from tests.explore.rules import Rules
from tests.explore.world import Beginning, World
from tests.sim.oracles import Violation

CALM_TICKS = 9
"""Longer than anybody rests who is about to try something again."""
REST_TICKS = 36
"""And longer than what found no place for a column rests."""
LOOSE_TICKS = 4
"""After so many what was stuck comes loose: patience and leases are over by then."""
TICKS_MAX = 120


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody does in a history; the next one does it when nothing else happens."""

    name: str
    do: Callable[[World, Person], None]


def delete() -> Act:
    return Act("delete the step", lambda _, person: person.ask(DeleteStep(RUN, STEP)))


def change(target: str, standing: str) -> Act:
    question = ChangeTarget(target, standing, force=True)
    return Act(f"make {target} {standing}", lambda _, person: person.ask(question))


def end(target: str, *, stuck: bool = True) -> Act:
    """Its process is killed, and started again when all that was stuck comes loose."""

    def do(world: World, _: Person) -> None:
        if world.targets[target].up:
            world.kill(target)
        if stuck:
            world.stuck.add(f"{target} starts")

    return Act(f"{target} is killed, for a while", do)


def wipe(target: str) -> Act:
    return Act(f"{target} is emptied", lambda world, _: world.wipe(target))


def look() -> Act:
    """Somebody wants to read it."""
    return Act("load the step", lambda _, person: person.ask(Resolve(RUN, STEP)))


def back(target: str) -> Act:
    return Act(f"{target} may start", lambda world, _: world.stuck.discard(f"{target} starts"))


def moment() -> Act:
    """Who looks now and then whether there is something to do looks."""
    return Act("a moment passes", lambda world, _: world.tick())


def wait(ticks: int) -> Act:
    """Meanwhile whatever can happen does."""

    def do(world: World, _: Person) -> None:
        for _tick in range(ticks):
            world.tick()
            world.run_dry()

    return Act(f"{ticks} ticks", do)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a history begins from, what is done in it, and what may disturb it."""

    name: str
    beginning: Callable[[], Beginning]
    acts: tuple[Act, ...] = ()
    before: tuple[Act, ...] = ()
    """Done and settled before anything may disturb it."""
    faults: dict[str, int] = field(default_factory=dict)
    """Kind -> how often."""
    most: int = 1
    """Disturbances of all kinds together."""
    stays: frozenset[str] = frozenset()
    """Targets that nothing happens to."""


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A disturbance."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


class History:
    """I go on by what is oldest; `apply` lets something else happen first."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = world = World(scenario.beginning())
        count = len(world.targets)
        self.worker = Worker(count + 2, world)
        self.person = Person(count + 3, world)
        world.add(self.worker)
        world.add(self.person)
        world.start()
        self.worker.start()
        self.rules = Rules(world)
        self.position = 0
        """Steps so far."""
        self._acts = list(scenario.acts)
        self._calm = self._ticks = self._held = self._asked = self._remade = 0
        for act in scenario.before:
            act.do(world, self.person)
            world.run_dry()
        world.steps.clear()
        self.rules.check()

    # ----------------------------------------------------------------------- by itself

    def advance(self) -> bool:
        """The next thing; False when nothing is left. Raises what is wrong."""
        self.position += 1
        world = self.world
        before = world.busy
        ready = world.enabled()
        if ready:
            world.step(ready[0])
        elif self._acts and not self.person.waits:
            self._act()
        elif not self._tick():
            if self._ticks <= TICKS_MAX:
                self.rules.check_end()
            return False
        if world.busy != before:
            self._calm = 0
        self.rules.check()
        return True

    def _act(self) -> None:
        act = self._acts.pop(0)
        self.world.steps.append(f"-- {act.name}")
        act.do(self.world, self.person)
        self.world.settle()
        self._calm = 0

    def _tick(self) -> bool:
        world = self.world
        self._held = self._held + 1 if world.stuck else 0
        if self._held > LOOSE_TICKS:
            world.steps.append(f"-- loose again: {', '.join(sorted(world.stuck))}")
            world.stuck.clear()
            self._calm = self._held = 0
            return True
        if self._calm >= CALM_TICKS and (self._calm >= REST_TICKS or not self.rules.lacks()):
            return self._make_again()
        self._calm += 1
        self._ticks += 1
        if self._ticks > TICKS_MAX and self.rules.is_lost():
            # What cannot be made again is tried again for ever, until a reader asks for it.
            return False
        if self._ticks > TICKS_MAX:
            raise Violation(f"something happens for ever: {world.steps[-6:]}")
        world.steps.append("-- time passes")
        world.tick()
        if self.person.waits and world.coordinator.up:
            self._ask_again()
        return True

    def _ask_again(self) -> None:
        self._asked += 1
        question = self.person.question
        if self._asked % 3 == 0:
            if isinstance(question, DeleteStep):
                self.person.question = replace(question, repeated=True)
            self.person.ask_again()
            self.world.settle()

    def _make_again(self) -> bool:
        """A catalog that the targets have proved old is made again, from all of them."""
        if self.world.coordinator.machine.vouching.standing is not CatalogStanding.OLD:
            return False
        self._remade += 1
        if self._remade > 2:
            raise Violation("a catalog that was made of all targets is old")
        self.make_catalog()
        self._calm = 0
        return True

    def make_catalog(self) -> None:
        """From the targets that are here: the coordinator's own is lost."""
        world = self.world
        world.steps.append("-- the catalog is made again of the targets that are here")
        if world.coordinator.up:
            world.kill(COORDINATOR, power=True)
        world.queues.pop(f"{COORDINATOR} starts", None)
        sources = [
            HeldSource(one.name, one.disk, one.held(), away=not one.up)
            for one in world.targets.values()
        ]
        world.coordinator.begin_from(rebuild(CLUSTER, sources).image)
        world.coordinator.start()
        world.settle()

    # ----------------------------------------------------------------------- disturbed

    def choices(self) -> list[Choice]:
        """All that could happen in the place of what would by itself."""
        world, faults = self.world, self.scenario.faults
        found: list[Choice] = []
        ready = [name for name in world.enabled() if name not in world.slow]
        if len(ready) > 1:
            found += [Choice("slow", name) for name in ready]
        found += [Choice("stuck", name) for name in ready if name != CATALOG]
        for name, target in world.targets.items():
            if name in self.scenario.stays:
                continue
            if target.up:
                found += [Choice("kill", name), Choice("power", name)]
            if target.held().checkpoints:
                found.append(Choice("wipe", name))
        if world.coordinator.up:
            found += [Choice("kill", COORDINATOR), Choice("power", COORDINATOR)]
            if any(target.up for target in world.targets.values()):
                found.append(Choice("rebuild"))
        if self._acts and ready and not self.person.waits:
            found.append(Choice("early"))
        if ready:
            found.append(Choice("tick"))
        return [one for one in found if faults.get(kind_of(one), 0)]

    def apply(self, choice: Choice) -> None:
        """Instead of what would have happened."""
        self.position += 1
        world = self.world
        world.steps.append(f"!! {choice}")
        match choice:
            case Choice("slow", where):
                world.slow.add(where)
            case Choice("stuck", where):
                world.stuck.add(where)
            case Choice("kill", where):
                world.kill(where)
            case Choice("power", where):
                world.kill(where, power=True)
            case Choice("wipe", where):
                world.wipe(where)
            case Choice("rebuild"):
                self.make_catalog()
            case Choice("early"):
                self._act()
            case Choice("tick"):
                world.tick()
        self._calm = 0
        self.rules.check()

    def fingerprint(self) -> int:
        return hash((
            self.world.fingerprint(), len(self._acts), self._calm, self._held, self._asked, self._remade,
            self.person.question is None,
        ))  # fmt: skip


def kind_of(choice: Choice) -> str:
    """By which it is bounded."""
    if choice.where == COORDINATOR and choice.kind in ("kill", "power"):
        return COORDINATOR
    return choice.kind
