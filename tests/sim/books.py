"""Nobody saves or loads any more: what processes count is what there is, and no work is left."""

from __future__ import annotations

from tests.sim.oracles import Violation
from tests.sim.target_node import TargetNode
from tests.sim.world import World

LAST_NOTES_US = 5_000_000
"""A target may still write down how far the catalog has come, and an answer be on its way."""


def check_books(world: World) -> None:
    """Of all targets that run, and of the coordinator."""
    running = [target for target in world.targets.values() if target.up]

    def waits() -> int:
        return len(world.coordinator.machine._desk._questions)

    def quiet() -> bool:
        return not waits() and not any(t.machine.operations_open for t in running)

    world.clock.run(quiet, LAST_NOTES_US)
    for target in running:
        _check_target(target)
    if waits():
        raise Violation(f"P4: the coordinator still waits for {waits()} answers")


def _check_target(target: TargetNode) -> None:
    machine, disk, core = target.machine, target.disk, target.machine._core
    # A file whose rename was not synced, by a fault, is nobody's until the next start.
    files = [f"columns/{each.name}" for each in core.columns.values()]
    files += [f"documents/{each.name}" for each in core.documents.values()]
    # What a fault took away is found when it is read.
    folders = ("columns", "documents")
    there = {f"{each}/{name}" for each in folders for name in disk.list_directory(each)}
    if there.issuperset(files) and machine.bytes_used != sum(map(disk.file_bytes, files)):
        stored = sum(map(disk.file_bytes, files))
        raise Violation(f"P6: {target.name} counts {machine.bytes_used} bytes, it has {stored}")
    if machine.counters["streams"] or machine.operations_open:
        raise Violation(
            f"P5: {target.name} has {machine.counters['streams']} streams and "
            f"{machine.operations_open} operations under way"
        )
