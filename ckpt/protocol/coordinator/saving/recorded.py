"""An attempt whose record lies on enough targets becomes a checkpoint."""

from __future__ import annotations

from ckpt.base.ids import LaunchNumber
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.coordinator.cluster.holdings import index_summaries
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.saving.attempts import Attempt


def become_checkpoint(
    attempt: Attempt, checkpoints: Checkpoints
) -> tuple[CommitInfo, tuple[LaunchNumber, ...]]:
    """What is said of it, now that it counts, and which launches' ranks wrote files of it."""
    record = attempt.record
    assert record is not None
    checkpoint = KeptCheckpoint(
        record.info, attempt.record_bytes, record.index_targets, index_summaries(record),
        attempt.placement or None,
    )  # fmt: skip
    attempt.info = checkpoints.info_now(checkpoint)
    checkpoints.add(checkpoint)
    return attempt.info, tuple(sorted(attempt.written_by))
