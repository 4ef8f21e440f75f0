"""F21 and F22 at the end of a history, with a live reader: as much as the newest checkpoint's
answer allows is taken away, and it is read; one target more, and nobody gets another in its place.
"""

from __future__ import annotations

from collections.abc import Collection

from ckpt.base.ids import CheckpointId, PayloadId, TargetId
from ckpt.erasure.code import Code
from ckpt.plan.placement import check_level, domain_key
from ckpt.testing.disk import Keep
from tests.sim.oracles import Announced, Violation
from tests.sim.target_node import TargetNode
from tests.sim.world import RUN, World
from tests.sim.worst_losses import targets_gone

READ_US = 60_000_000
UP_US = 30_000_000
CELL_BYTES = 4096


def check_live_losses(world: World) -> None:
    """Any targets that it may lose, or whole domains where several share one; then one more. The
    writers are gone: a stager that has not heard of its commit yet would be told of one that is out
    of reach just now.
    """
    for rank in world.ranks:
        rank.crash()
    kept = world.oracles.kept(RUN)
    if not kept:
        return
    newest = kept[-1]
    announced = world.oracles.announced[newest]
    gone = targets_gone(world, newest)
    lost = _domains(world, announced, gone) if world.seed % 3 == 0 else None
    if lost is None:
        lost = _targets(world, announced, gone)
    if lost is None or not _may_be_asked(world, lost):
        return
    away = _take_away(world, lost)
    _expect(world, newest, "read", f"{sorted(lost)} are lost, as it allows")
    last = _one_too_many(world, newest, announced, {*gone, *lost})
    if last is not None:
        away += _take_away(world, {last})
        _expect(world, newest, "unavailable", f"{sorted({*lost, last})} are lost, one too many")
    for node in away:
        node.lost = False
    for node in world.targets.values():
        node.start()
    there = sum(not node.lost for node in world.targets.values())
    if not world.clock.run(lambda: world.live_targets == there, UP_US):
        raise Violation(f"P7: targets that came back do not count: {world.live_targets}")
    _expect(world, newest, "read", "all are back")


def _may_be_asked(world: World, lost: Collection[TargetId]) -> bool:
    """Where a target never comes back, and nobody has removed it, a coordinator that begins waits
    for a majority: what committed without that target says so to nobody who comes later.
    """
    known = world.coordinator.machine.members.all()
    here = [t for t in known if t.id not in lost and not world.targets[t.id].lost]
    return len(here) == len(known) - len(lost) or 2 * len(here) > len(known)


def _targets(
    world: World, announced: Announced, gone: Collection[TargetId]
) -> set[TargetId] | None:
    """As many as are left of its allowance; of one payload's holders first, where it hurts most."""
    allowed = announced.info.targets_survivable - len(gone)
    if allowed < 0:
        return None
    columns = world.clock.rng.choice(list(announced.placement.values()))
    held = [t for t in columns if t is not None and t not in gone]
    return set(world.clock.rng.sample(held, min(allowed, len(held))))


def _domains(
    world: World, announced: Announced, gone: Collection[TargetId]
) -> set[TargetId] | None:
    """All targets of as many domains."""
    info = announced.info
    level = check_level(info.domain_level)
    domain_of = {t: domain_key(t, node.domain, level) for t, node in world.targets.items()}
    broken = {domain_of[t] for t in gone}
    allowed = info.domains_survivable - len(broken)
    if allowed < 0:
        return None
    whole = sorted(set(domain_of.values()) - broken)
    fallen = set(world.clock.rng.sample(whole, min(allowed, len(whole))))
    return {t for t, domain in domain_of.items() if domain in fallen}


def _one_too_many(
    world: World, id: CheckpointId, announced: Announced, away: Collection[TargetId]
) -> TargetId | None:
    """A target without which some payload has fewer columns than it needs; None where none has,
    or where a column that rotted, a home's too, may serve all the same: damage has the size of a
    block.
    """
    k = Code.parse(announced.info.code).k
    rotted = {each.partition("/")[2] for each in world.rotted}
    oracles, homes = world.oracles, [home.id(id.run) for home in announced.info.homes]
    payloads = [PayloadId(one, r) for one in (id, *homes) for r in oracles.announced[one].placement]
    if any(rotted & oracles.files_of(payload) for payload in payloads):
        return None
    for rank, columns in announced.placement.items():
        if len(world.content_of(PayloadId(id, rank))) <= (k - 1) * CELL_BYTES:
            continue  # Fewer columns hold all that is there to be read.
        left = [t for t in columns if t is not None and t not in away]
        if len(left) == k:
            return world.clock.rng.choice(left)
    return None


def _take_away(world: World, lost: Collection[TargetId]) -> list[TargetNode]:
    """Those of them that were there: their processes end, and nothing that was about to start them
    does. The coordinator hears of it.
    """
    nodes = [world.targets[id] for id in sorted(lost) if not world.targets[id].lost]
    for node in nodes:
        node.crash(Keep.ALL)
        node.lost = True
    members = world.coordinator.machine.members
    # One that has just started may not know of them at all.
    known = [members.targets[id] for id in lost if id in members.targets]
    world.clock.run(lambda: all(target.session is None for target in known), UP_US)
    return nodes


def _expect(world: World, id: CheckpointId, outcome: str, when: str) -> None:
    """Of a process that loads the newest step. What it reads is compared as it comes."""
    reader = world.read()
    world.clock.run(lambda: reader.outcome is not None, READ_US)
    if reader.outcome != outcome:
        raise Violation(f"P1: {when}: a load of {id} ends with {reader.outcome}, not {outcome}")
    if outcome == "read" and (reader.checkpoint is None or reader.checkpoint.checkpoint != id):
        raise Violation(f"P2: {when}: {reader.checkpoint} was loaded, {id} is the newest")
