"""What is due and expires sooner than it would be made again is left alone.

Checkpoints are taken in the queue's order: one is done when all that is ahead of it is, and its own
columns are. While nobody knows how fast that goes nothing is left alone; and never the first, or
nobody would learn that it goes faster now, nor what can lose no more.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.ids import CheckpointId
from ckpt.base.units import format_seconds
from ckpt.protocol.coordinator.repairing.lacking import LackingPayload

Leaves = Callable[[CheckpointId, float], bool]
"""Whether a checkpoint will have expired in so many seconds."""


def leave_expiring(
    queue: list[LackingPayload],
    bytes_of: Callable[[LackingPayload], int],
    bytes_per_s: float,
    leaves: Leaves,
) -> tuple[list[LackingPayload], dict[CheckpointId, str]]:
    """What stays of the queue, in its order; and why the others are left alone."""
    if bytes_per_s <= 0:
        return queue, {}
    own: dict[CheckpointId, int] = {}
    for one in queue:
        id = one.payload.checkpoint
        own[id] = own.get(id, 0) + bytes_of(one)
    kept = {one.payload.checkpoint for one in queue[:1]}
    kept.update(one.payload.checkpoint for one in queue if not one.left)
    left: dict[CheckpointId, str] = {}
    ahead = 0
    for id, size in own.items():
        seconds = (ahead + size) / bytes_per_s
        if id not in kept and leaves(id, seconds):
            left[id] = (
                f"it expires sooner than in {format_seconds(seconds)}, when it would be whole"
            )
        else:
            ahead += size
    return [one for one in queue if one.payload.checkpoint not in left], left
