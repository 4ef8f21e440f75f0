"""The history of one seed: two launches, at least two faults that struck, at chosen phases,
then healing and the last checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ckpt.protocol.coordinator.catalog import LaunchEntered, LaunchNumbered
from ckpt.protocol.coordinator.saving.attempts import AttemptState
from ckpt.protocol.writer.column import ColumnState
from tests.sim.aimed import BESIDE_ANOTHER_LAUNCH, aim_anywhere
from tests.sim.drain_world import small_items
from tests.sim.faults import FAULTS
from tests.sim.last_checks import (
    LOAD_US,
    SETTLE_US,
    check_end,
    check_last_read,
    let_orphans_go,
)
from tests.sim.live_losses import check_live_losses
from tests.sim.oracles import Violation
from tests.sim.rank_node import HALF_BYTES, RankNode
from tests.sim.struck import Struck
from tests.sim.whole_world import whole
from tests.sim.windows import Aim, Window
from tests.sim.world import World

PHASE_WAIT_US = 600_000
"""Longer than the longest pause between two saves."""
GENERATIONS_MIN = 3
"""Of every history; where faults left the first launch fewer, the second saves more."""
FAULTS_MIN = 2
"""Of every history; those that found nothing to strike, or waited in vain, are not counted."""
AMID_US = 6_000_000
"""So long a launch amid faults is waited for."""
COMMITTING = (
    AttemptState.INDEXING,
    AttemptState.DECIDING,
    AttemptState.RECORDING,
    AttemptState.CLOSING,
)


@dataclass(slots=True)
class Report:
    """What one seed did."""

    seed: int
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each fault struck in each phase."""
    windows: Counter[tuple[Window, str]] = field(default_factory=Counter)
    """How often who was struck in each window that was aimed at."""
    launches: int = 0
    """Starts of the run that were given a number."""
    generations: int = 0
    """Attempts that were opened durably."""
    committed: int = 0
    steps: int = 0

    @property
    def ends(self) -> list[str]:
        """Of its attempts."""
        return ["committed"] * self.committed + ["ended"] * (self.generations - self.committed)


# --------------------------------------------------------------------------- phases


def _joining(world: World) -> bool:
    """Some ranks of a start have its number, others not yet."""
    told = Counter((r.job.launch_name, r.launch_number is not None) for r in world.ranks)
    return any(told[name, not has] for name, has in told)


def _reserving(world: World) -> bool:
    return any(
        a.state is AttemptState.OPENING or any(p.planned is None for p in a.payloads.values())
        for a in world.attempts
    )


def _in_column_state(*states: ColumnState) -> Callable[[World], bool]:
    def now(world: World) -> bool:
        return any(column.state in states for rank in world.ranks for column in rank.columns)

    return now


def _committing(world: World) -> bool:
    return any(a.state in COMMITTING for a in world.attempts)


def _at_rest(world: World) -> bool:
    return bool(world.oracles.announced) and not world.attempts


def _loading(world: World) -> bool:
    return any(reader.reading for reader in world.readers)


def _moving(world: World) -> bool:
    return world.is_moving


def _rebuilding(world: World) -> bool:
    return world.is_rebuilding


PHASES: dict[str, Callable[[World], bool]] = {
    "J": _joining,
    "R": _reserving,
    "S": _in_column_state(ColumnState.OPENING, ColumnState.STREAMING),
    "L": _in_column_state(ColumnState.SEALING),
    "C": _committing,
    "A": _at_rest,
    "X": _loading,
    "M": _moving,
    "B": _rebuilding,
}
DRAWN = [phase for phase in PHASES if phase not in "MB"]
"""Any history waits for these; for a rebuild those that have workers (rebuilds.py), for a move
those of which targets leave (move_rounds.py)."""

OF_READERS = frozenset({"F14 reader"})
"""Faults for which somebody must be in the middle of a load when the phase comes."""

# --------------------------------------------------------------------------- the history


def run_seed(seed: int) -> Report:
    """Run a seed to its end; raises Violation (or a machine's AssertionError)
    when a promise breaks.
    """
    with pytest.MonkeyPatch.context() as patch:
        small_items(patch)
        return run_history(whole(seed), aiming=True)


def world_of(seed: int) -> World:
    """As the campaign has it, with nothing beside ranks and readers."""
    return World.build(seed, shared_hosts=seed % 3 == 0)


def run_history(world: World, *, aiming: bool = False) -> Report:
    """What happens in a world that was just built. `aiming`: somebody is struck between two durable
    steps, besides the faults that come with the phases.
    """
    strikes: list[Struck] = []
    rng = world.clock.rng
    world.start()
    sizes = [100, 4096, 5000 * world.coordinator.machine.policy.code.k]
    first = world.launch(
        (10, 20) if rng.random() < 0.85 and not world.many_steps else (10, 20, 30),
        rng.choice([2_000, 30_000, 400_000]),
        rng.choice(sizes),
    )
    aimed = aim_anywhere(world) if aiming else None
    world.live_beside()
    for _ in range(rng.choice([2, 2, 2, 3])):
        strikes.append(_fault_at_phase(world))
    _end_launch(world, first)
    if aimed is not None and aimed[1].window.of in BESIDE_ANOTHER_LAUNCH:
        _launch_amid_faults(world, aimed[1])
    strikes.append(_fault_at_phase(world))
    while sum(one.strike() for one in strikes) < FAULTS_MIN:
        strikes.append(_fault_at_phase(world))
    strikes += world.rebuild_amid_faults()
    world.heal()
    world.clock.pass_time(200_000)
    world.clock.run(lambda: _may_launch(world, world.ranks), SETTLE_US)
    missing = GENERATIONS_MIN - len(world.oracles.opened)
    few = rng.random() < 0.85 and not world.many_steps
    steps = (30, 40, 50)[: max(missing, 1 if few else 2)]
    second = world.launch(steps, 50_000, rng.choice(sizes))
    world.end_beside()
    settle(world, second)
    # People may put back what they had taken out, after a save that found too few places for it.
    had_places = world.has_places
    world.settle_beside()
    check_last_read(world)
    check_end(world, second, had_places=had_places)
    world.check_beside()
    check_live_losses(world)
    return _report(world, strikes, aimed)


def _report(world: World, strikes: list[Struck], aimed: tuple[str, Aim] | None) -> Report:
    aims = world.aims_of_rebuilds() + ([aimed] if aimed is not None else [])
    struck = [(aim.window, who) for who, aim in aims if aim.struck]
    return Report(
        world.seed,
        Counter((one.fault, one.phase) for one in strikes if one.strike()),
        Counter(struck),
        launches=sum(type(entry) is LaunchNumbered for entry in world.coordinator.durable),
        generations=len(world.oracles.opened),
        committed=len(world.oracles.announced),
        steps=world.clock.steps,
    )


def _fault_at_phase(world: World) -> Struck:
    """Wait for a phase and strike; when the phase does not come, strike anyway and count what is.
    Where one fault finds nothing to strike, another does.
    """
    rng = world.clock.rng
    names, phase = list(FAULTS), rng.choice(DRAWN)
    rng.shuffle(names)
    if phase == "X":
        world.clock.run(lambda: _at_rest(world), 1_000_000)
        world.read()
    elif names[0] in OF_READERS:
        _hang_inside_a_load(world)
    world.clock.run(lambda: PHASES[phase](world), PHASE_WAIT_US)
    reached = phase if PHASES[phase](world) else next(
        (p for p, holds in PHASES.items() if holds(world)), "-"
    )  # fmt: skip
    struck = ((name, FAULTS[name](world)) for name in names)
    name, strike = next((name, strike) for name, strike in struck if strike is not None)
    for reader in world.readers:
        reader.stopped = False
    return Struck(name, reached, strike)


def _hang_inside_a_load(world: World) -> None:
    """Somebody loads, and stops anywhere between its resolution and its end."""
    world.clock.run(lambda: bool(world.oracles.announced), 1_000_000)
    if not _loading(world):
        world.read()
        world.clock.run(lambda: _loading(world), PHASE_WAIT_US)
    world.clock.run(lambda: not _loading(world), world.clock.rng.randint(0, LOAD_US))
    for reader in world.readers:
        reader.stopped = reader.reading


def _end_launch(world: World, nodes: list[RankNode]) -> None:
    """The job ends as jobs do: done, trainers killed, everything killed, or not at all; but not
    before it has begun, or it would count for no launch. One that has not begun by then is killed
    whole: it would be the newer one when it does (failure_model.md).
    """
    rng = world.clock.rng
    if not world.clock.run(lambda: any(n.launch_number is not None for n in nodes), 6_000_000):
        for node in nodes:
            node.crash()
        return
    way = rng.choice(["done", "trainers", "all", "zombies"])
    if way == "zombies":
        return
    if way == "done":
        world.clock.run(lambda: all(_finished(n) for n in nodes), 6_000_000)
    else:
        world.clock.pass_time(rng.randint(0, 300_000))
    for node in nodes:
        if way == "all":
            node.crash()
        else:
            node.kill_trainer()


def _launch_amid_faults(world: World, aim: Aim) -> None:
    """The job starts again while faults go on, and what the earlier launch left is given up."""
    world.clock.run(lambda: _may_launch(world, world.ranks), PHASE_WAIT_US)
    if not _may_launch(world, world.ranks):
        return
    nodes = world.launch((25,), 30_000, 4096)
    world.clock.run(lambda: aim.struck or all(_finished(n) for n in nodes), AMID_US)
    _end_launch(world, nodes)


def _may_launch(world: World, earlier: list[RankNode]) -> bool:
    """Enough targets, with room as far as the coordinator has heard: where people have taken some
    out, all of the others may be needed. And without a key, late ranks of two launches cannot be
    told apart: those of the first have joined before the second begins.
    """
    keyed = earlier[0].job.key is not None
    known = world.known_targets
    roomy = [t for t in known if t.bytes_free >= HALF_BYTES]
    gone = sum(target.lost for target in world.targets.values())
    taking = sum(target.stays for target in roomy)
    floor = world.coordinator.machine_policy.code.floor
    has_room = taking >= floor or taking == sum(target.stays for target in known)
    return (
        has_room
        and len(roomy) >= len(world.targets) - max(1, gone)
        and (keyed or not any(node.joining for node in earlier))
    )


def _finished(node: RankNode) -> bool:
    return not node.trainer_alive or len(node.outcomes) == len(node.job.steps)


def _went_astray(world: World, node: RankNode) -> bool:
    """Without a key, a rank that the first start never had is taken for a late one of it, and is
    fenced when its peers begin another (failure_model.md). Nobody else may be fenced at the end.
    """
    if not node.fenced:
        return False
    number, entries = node.launch_number, world.coordinator.durable
    entered = [e for e in entries if isinstance(e, LaunchEntered) and e.launch == number]
    return [e.process for e in entered if e.rank == node.rank] == [node.process]


def settle(world: World, nodes: list[RankNode]) -> None:
    """All saves of these ranks end; one that went astray starts again."""

    def quiet() -> bool:
        return all(_finished(n) for n in nodes) and not world.attempts

    def stray() -> RankNode | None:
        return next((node for node in nodes if _went_astray(world, node)), None)

    keyed = nodes[0].job.key is not None
    settled = quiet if keyed else lambda: quiet() or stray() is not None
    ended = world.clock.run(settled, SETTLE_US)
    while not keyed and (node := stray()) is not None:
        nodes[nodes.index(node)] = world.start_again(node)
        ended = world.clock.run(settled, SETTLE_US)
    if not ended:
        states = [(str(a.checkpoint), a.state.value, len(a.payloads)) for a in world.attempts]
        raise Violation(f"P4: no end within {SETTLE_US // 1_000_000} s of healing: {states}")
    let_orphans_go(world)
