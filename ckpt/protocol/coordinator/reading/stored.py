"""What the tier has lost and an object store has is stored, not lost: loads of it go there.

It follows from the row, which says that the loss is proved, and from what stores hold; nothing else
remembers it. Who can read no store walks back past it.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.ids import RunName
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue

STORED: Final = "stored"


def stores_alone(drains: DrainQueue, checkpoint: KeptCheckpoint) -> tuple[str, ...]:
    """URLs of the object stores that have it, while the tier has lost it; else none."""
    is_lost = checkpoint.state is RowState.DAMAGED
    return drains.holding(checkpoint.id) if is_lost else ()


def state_text(drains: DrainQueue, checkpoint: KeptCheckpoint) -> str:
    """As people are answered."""
    return STORED if stores_alone(drains, checkpoint) else checkpoint.state.value


def loadable(checkpoints: Checkpoints, drains: DrainQueue, run: RunName) -> list[KeptCheckpoint]:
    """What can be loaded of a run, from the tier or from a store, oldest first."""
    held = checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
    return [one for one in held if state_text(drains, one) in (STORED, RowState.COMMITTED.value)]
