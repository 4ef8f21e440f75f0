"""What must be true at the end of a history, when all has healed and the last saves have ended."""

from __future__ import annotations

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.stager.events import SaveFailed
from ckpt.protocol.target.core import column_name
from ckpt.protocol.target.reading.shared_reads import KEEP_US
from tests.sim.books import check_books
from tests.sim.coordinator_node import TICK_US
from tests.sim.oracles import Announced, Violation
from tests.sim.payloads import encode_cells
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import CRASHED
from tests.sim.restarts import check_restart
from tests.sim.world import RUN, World
from tests.sim.worst_losses import check_worst_losses

SETTLE_US = 90_000_000
LEAK_US = 3_500_000
"""Longer than an orphan's grace and the ticks around it, of a target that has just dialed again."""
LOAD_US = 3_000
"""About what a load takes: where in it a fault strikes is left to chance."""


BACK_US = 30_000_000
"""For a target that lost its session after all had healed: longer than it rests between dials."""


def let_orphans_go(world: World) -> None:
    """A coordinator that has just started lets streams use what an earlier one gave out."""
    world.clock.pass_time(100_000)
    end_us = world.clock.now_us + LEAK_US
    while _leak(world) and world.clock.now_us < end_us:
        world.clock.pass_time(100_000)


def _all_are_back(world: World) -> bool:
    """Every target that runs is live, but for directories that nobody accepts."""
    live = {target.id for target in world.known_targets}
    running = [target for target in world.targets.values() if target.up]
    return all(target.id in live or target.machine._refusal for target in running)


def check_end(world: World, last: list[RankNode], *, had_places: bool = True) -> None:
    """`had_places`: whether a save found one for each of its columns as the last ones ended."""
    for node in last:
        for step, outcome in node.outcomes.items():
            # People took a target out, and then the one that shared its host was lost for good.
            is_refused = isinstance(outcome, SaveFailed) and outcome.code == "unavailable"
            if is_refused and not (had_places and world.has_places):
                continue
            if type(outcome).__name__ != "SaveCommitted":
                raise Violation(f"after healing, {node.name} cannot save step {step}: {outcome}")
    # A lease may have run out since: that target dials again, and hears then what goes back.
    world.clock.run(lambda: _all_are_back(world), BACK_US)
    for id, announced in world.oracles.announced.items():
        if id not in world.oracles.deleted:
            check_readable(world, id, announced)
    check_worst_losses(world)
    _check_launches(world)
    let_orphans_go(world)
    check_no_leak(world)
    _check_nothing_held(world)
    check_books(world)
    check_restart(world)


def _check_launches(world: World) -> None:
    """All ranks of one start of the run were given one number, whoever restarted meanwhile."""
    numbers: dict[str, set[int]] = {}
    for node in world.ranks:
        if node.launch_number is not None and not _took_a_free_seat(world, node):
            numbers.setdefault(node.job.launch_name, set()).add(node.launch_number)
    split = {name: sorted(given) for name, given in numbers.items() if len(given) > 1}
    if split:
        raise Violation(f"P10: one start of the run became several launches: {split}")


def _took_a_free_seat(world: World, node: RankNode) -> bool:
    """Without a key, a rank that an earlier start lacked may be taken for that one (the failure
    model says so): that start's rank of its number was never let in.
    """
    of_number = [n for n in world.ranks if n.launch_number == node.launch_number]
    earlier = {n.job.launch_name for n in of_number} - {node.job.launch_name}
    seats = [n for n in world.ranks if n.job.launch_name in earlier and n.rank == node.rank]
    return node.job.key is None and bool(seats) and all(n.launch_number is None for n in seats)


def check_last_read(world: World) -> None:
    """After healing a reader gets the newest step, whole; readers of bad times got it
    or an honest error.
    """
    reader = world.read()
    world.clock.run(lambda: all(r.outcome is not None for r in world.readers), SETTLE_US)
    kept = world.oracles.kept(RUN)
    if not kept:
        if reader.outcome != "not_found":
            raise Violation(f"P2: all is deleted, and a load ends with {reader.outcome}")
    elif reader.outcome != "read" or reader.checkpoint is None:
        # Somebody may have deleted what was saved since, and left what the faults had harmed.
        if _is_within_answer(world, kept[-1]):
            raise Violation(f"P1: after healing, a load ends with {reader.outcome}")
    elif reader.checkpoint.checkpoint != kept[-1]:
        raise Violation(f"P2: {reader.checkpoint.checkpoint} was loaded, {kept[-1]} is the newest")
    _check_outcomes(world)


def check_readable(world: World, id: CheckpointId, announced: Announced) -> None:
    """P1: readable as long as no more was lost than its answer allows; P3:
    the columns hold exactly its bytes.
    """
    info = announced.info
    allowed = True
    for rank, columns in announced.placement.items():
        payload = PayloadId(id, rank)
        good, bad = _good_columns(world, payload, columns)
        allowed = allowed and bad <= info.targets_survivable
        if bad <= info.targets_survivable and good < Code.parse(info.code).k:
            raise Violation(
                f"P1: {payload} has {good} good columns, {bad} were harmed, "
                f"{info.targets_survivable} allowed"
            )
    checkpoint = world.coordinator.machine.checkpoints.get(id)
    if checkpoint is None:
        raise Violation(f"P1: {id} was announced, the coordinator knows it no more")
    if allowed and not world.coordinator.machine.checkpoints.readable(checkpoint):
        raise Violation(f"P1: {id} should be readable after healing")


def _is_within_answer(world: World, id: CheckpointId) -> bool:
    """Whether no payload lost more columns than the commit's answer allows."""
    announced = world.oracles.announced[id]
    return all(
        _good_columns(world, PayloadId(id, rank), columns)[1] <= announced.info.targets_survivable
        for rank, columns in announced.placement.items()
    )


def _good_columns(
    world: World, payload: PayloadId, columns: tuple[TargetId | None, ...]
) -> tuple[int, int]:
    """(columns with exactly the right bytes, columns that a fault of the scenario harmed)."""
    data = world.content_of(payload)
    layout = Layout.plan(world.coordinator.machine.policy.code, len(data), 4096)
    cells = encode_cells(layout, data.ljust(layout.padded_bytes, b"\0"))
    good = harmed = 0
    for j, target in enumerate(columns):
        if target is None:
            continue
        file = f"columns/{column_name(ColumnId(payload, ColumnNumber(j)))}"
        node = world.targets[target]
        stored = node.disk.durable(file)
        wiped = node.wiped and stored is None
        if node.lost or wiped or f"{target}/{file}" in world.rotted:
            harmed += 1
            continue
        wanted = b"".join(row[j] for row in cells)
        if stored is None:
            raise Violation(f"P1: {payload} column {j} vanished from {target}")
        if stored[4096 : 4096 + len(wanted)] != wanted:
            raise Violation(f"P3: {payload} column {j} on {target} holds other bytes")
        good += 1
    return good, harmed


def check_no_leak(world: World) -> None:
    """P5, P6: no aside file stays but the standing space of the last launches."""
    leak = _leak(world)
    if leak > 0:
        raise Violation(f"P6: {leak} aside files are held for which no reservation stands")


def _leak(world: World) -> int:
    """Aside files on running targets, less the coordinator's standing reservations. A target may
    be writing down how far the catalog has come, or trying its term again.
    """
    up = [t for t in world.targets.values() if t.up]
    staged = [t.disk.list_directory("staging") for t in up]
    notes = sum(any(name.startswith("catalog-") for name in names) for names in staged)
    notes += sum(
        name.startswith("term-")
        for target, names in zip(up, staged, strict=True)
        for name in names
        if target.machine._terms.pending is not None
    )
    allotments = world.coordinator.machine.reservations.standing.all()
    standing = sum(len(allotment.places) for allotment in allotments)
    return max(0, sum(map(len, staged)) - notes - standing)


def _check_nothing_held(world: World) -> None:
    """P5: nobody saves or loads any more, so nothing is promised, buffered or pinned."""
    # The last reader's sessions close, and what was kept for others is forgotten.
    world.clock.pass_time(LOAD_US + KEEP_US + TICK_US)
    # A target may be reading a piece of a file that it scrubs.
    up = [target for target in world.targets.values() if target.up]
    world.clock.run(lambda: not any(target.memory.held_bytes for target in up), KEEP_US)
    for target in world.targets.values():
        if target.up and target.memory.held_bytes:
            raise Violation(f"P5: {target.name} still holds {target.memory.held_bytes} bytes")
    pinned = [str(c.id) for c in world.coordinator.machine.checkpoints.all() if c.pins]
    if pinned:
        raise Violation(f"P5: all readers have ended, {pinned} are still pinned")


def read_everything(world: World) -> None:
    """Every step that is listed, by its number: whole, if no more was lost than it allows."""
    machine = world.coordinator.machine
    listed = [c for c in machine.checkpoints.all() if c.state is RowState.COMMITTED]
    newest = {c.id.step: c for c in listed if c.id.run == RUN}
    reads = [(checkpoint, world.read(step)) for step, checkpoint in newest.items()]
    world.clock.run(lambda: all(r.outcome is not None for r in world.readers), SETTLE_US)
    harmed = harmed_count(world)
    for checkpoint, reader in reads:
        if reader.outcome != "read" and harmed <= checkpoint.info.targets_survivable:
            raise Violation(f"P1: after healing {checkpoint.id} ends with {reader.outcome}")
    _check_outcomes(world)


def harmed_count(world: World) -> int:
    """Targets that have lost something for good, at most."""
    return sum(t.lost or t.wiped for t in world.targets.values()) + bool(world.rotted)


def _check_outcomes(world: World) -> None:
    for reader in world.readers:
        fine = ("read", "unavailable", "not_found", CRASHED)
        # Its pin went with the coordinator, and somebody deleted the step then.
        known = reader.checkpoint
        was_deleted = known is not None and known.checkpoint in world.oracles.deleted
        if reader.outcome not in fine and not (was_deleted and reader.outcome == "lost"):
            raise Violation(f"P3: {reader.name} ended with {reader.outcome}")


def check_nothing_is_left(world: World) -> None:
    """What is deleted and no home of anything is on no target that runs."""
    world.clock.pass_time(5_000_000)
    checkpoints = list(world.coordinator.machine.checkpoints.all())
    stay = {c.id for c in checkpoints if c.state is not RowState.TOMBSTONED}
    stay |= {home for c in checkpoints if c.id in stay for home in c.homes}
    away = any(not t.up for t in world.targets.values())
    for checkpoint in checkpoints:
        if checkpoint.id not in stay and not away:
            raise Violation(f"P5: {checkpoint.id} is deleted and needed by nobody, and still here")
