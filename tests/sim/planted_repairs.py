"""Bugs of repair that the main campaign must find, in histories that have workers (planted.py)."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.ids import PayloadId
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.repairing.lacking import Lacking
from ckpt.protocol.coordinator.repairing.places import RepairPlaces
from ckpt.protocol.coordinator.repairing.task import RepairTask
from ckpt.protocol.coordinator.repairing.tasks import Repairs
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from tests.sim.planted import Plant


def _as_if_nobody_had_any(
    self: RepairPlaces, checkpoint: KeptCheckpoint, payload: PayloadId
) -> Allotment:
    """Room is room."""
    assert checkpoint.placement is not None
    return self._reserver.empty_allotment(checkpoint.placement[payload.rank].layout)


def _word_of_the_worker(
    self: Repairs, task: RepairTask, why: str, then: Callable[[int], None]
) -> None:
    """It said that it had sealed them."""
    self._close(task, [], why)
    then(len(task.lost))


PLANTS = (
    Plant("copies-for-ever", "P7", ((Adopter, "_drop_surplus", lambda *_: None),), 91),
    Plant("room-is-room", "P7", ((RepairPlaces, "allotment", _as_if_nobody_had_any),), 8),
    Plant("worker-is-believed", "P7", ((Repairs, "_end", _word_of_the_worker),), 9),
    Plant("here-is-whole", "P7", ((Lacking, "_is_due", lambda *_: False),), 8),
)
