"""Nobody saves or loads any more: what processes count is what there is, and no work is left."""

from __future__ import annotations

from tests.sim.oracles import Violation
from tests.sim.target_node import TargetNode
from tests.sim.world import World


def check_books(world: World) -> None:
    """Of all targets that run, and of the coordinator."""
    for target in world.targets.values():
        if target.up:
            _check_target(target)
    waits = world.coordinator.machine._desk.questions_open
    if waits:
        raise Violation(f"P4: the coordinator still waits for {waits} answers")


def _check_target(target: TargetNode) -> None:
    machine, disk = target.machine, target.disk
    stored = sum(
        disk.file_bytes(f"{folder}/{name}")
        for folder in ("columns", "documents")
        for name in disk.list_directory(folder)
    )
    if machine.bytes_used != stored:
        raise Violation(f"P6: {target.name} counts {machine.bytes_used} bytes, it has {stored}")
    if machine.counters["streams"] or machine.operations_open:
        raise Violation(
            f"P5: {target.name} has {machine.counters['streams']} streams and "
            f"{machine.operations_open} operations under way"
        )
