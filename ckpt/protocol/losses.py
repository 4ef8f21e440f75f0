"""A proved loss in words: the checkpoint that is lost is named once.

A reason as the catalog keeps it names its own subject, a payload or an index: of the checkpoint
itself, or of a home that holds bytes of it.
"""

from __future__ import annotations

from ckpt.base.ids import CheckpointId


def loss_reason(checkpoint: CheckpointId, reason: str) -> str:
    """After the name of the checkpoint: `rank 0 has 3 damaged columns at one place, ...`."""
    own = f"{checkpoint} "
    if not reason.startswith(own):
        return reason
    rest = reason.removeprefix(own)
    return rest if rest.startswith("rank ") else f"it {rest}"


def loss_text(checkpoint: CheckpointId, reason: str) -> str:
    """The message of a Lost."""
    return f"{checkpoint} is lost: {loss_reason(checkpoint, reason)}"
