"""A coordinator that starts again knows what it knew (P1, P10): nobody saves, loads or deletes any
more, so what its catalog says is all that it thinks.
"""

from __future__ import annotations

from ckpt.format.members import NO_LAUNCH
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.machine import CoordinatorMachine
from tests.sim.oracles import Violation
from tests.sim.world import World


def check_restart(world: World) -> None:
    """Of the coordinator that runs, and of another one that begins from its catalog."""
    node = world.coordinator
    if node.is_writing:
        return
    known, found = _known(node.machine), _known(node.machine_from(node.image()))
    differ = [name for name, value in known.items() if value != found[name]]
    if differ:
        told = "; ".join(f"{name}: {known[name]}, then {found[name]}" for name in differ)
        raise Violation(f"P10: a coordinator that starts again knows otherwise: {told}")


def _known(machine: CoordinatorMachine) -> dict[str, object]:
    """What must outlive a process."""
    runs, rounds = machine.launches.runs, machine.resolver.rounds._rounds
    return {
        "checkpoints": {
            one.id: (one.state, one.info, one.record_bytes, one.index_targets)
            for one in machine.checkpoints.all()
        },
        "labels": {
            one.id: (one.labels.names, one.labels.pinned)
            for one in machine.checkpoints.all()
            if one.labels is not None and one.labels.keeps and one.state is not RowState.TOMBSTONED
        },
        "retention": dict(sorted(machine.retaining._said.items())),
        "users": {one.id: sorted(one.users) for one in machine.checkpoints.all()},
        "ended": {
            id: state
            for id, state in sorted(machine.deleter.gone.items())
            if state is not RowState.TOMBSTONED  # Its columns go; a start sees to that anew.
        },
        "begun": {run: known.begun for run, known in sorted(runs.items()) if known.begun},
        "launches": {
            (run, number): (launch.key, launch.world_size, launch.numbered)
            for run, known in sorted(runs.items())
            for number, launch in sorted(known.launches.items())
            if number != NO_LAUNCH
        },
        "loaded": {
            (run, number, step, turn): one.id
            for (run, number), by_step in sorted(rounds.items())
            for step, turns in sorted(by_step.items(), key=str)
            for turn, one in sorted(turns.items())
            if one.settled
        },
        "stores": {
            url: {run: sorted(found) for run, found in sorted(store.row.stored.items())}
            for url, store in sorted(machine.drains.stores.items())
        },
        "targets": {
            id: (str(target.domain), target.directory)
            for id, target in sorted(machine.members.targets.items())
        },
    }
