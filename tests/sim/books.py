"""Nobody saves or loads any more: what processes count is what there is, and no work is left."""

from __future__ import annotations

from tests.sim.oracles import Violation
from tests.sim.target_node import TargetNode
from tests.sim.world import World


def check_books(world: World) -> None:
    """Of all targets and stagers that run, and of the coordinator."""
    for target in world.targets.values():
        if target.up:
            _check_target(target)
    for rank in world.ranks:
        pending = [save for save in rank.machine.saves.values() if save.pending]
        if rank.up and pending:
            steps = sorted({int(save.step) for save in pending})
            raise Violation(f"P4: the saves of {steps} of {rank.name} have no end")
    waits = world.coordinator.machine._desk.questions_open
    if waits:
        raise Violation(f"P4: the coordinator still waits for {waits} answers")


def _check_target(target: TargetNode) -> None:
    machine, disk, core = target.machine, target.disk, target.machine._core
    # A file whose rename was not synced, by a fault, is nobody's until the next start.
    files = [f"columns/{each.name}" for each in core.columns.values()]
    files += [f"documents/{each.name}" for each in core.documents.values()]
    stored = sum(map(disk.file_bytes, files))
    if machine.bytes_used != stored:
        raise Violation(f"P6: {target.name} counts {machine.bytes_used} bytes, it has {stored}")
    if machine.counters["streams"] or machine.operations_open:
        raise Violation(
            f"P5: {target.name} has {machine.counters['streams']} streams and "
            f"{machine.operations_open} operations under way"
        )
