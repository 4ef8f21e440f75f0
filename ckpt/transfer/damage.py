"""Damage that a reader met, told to the coordinator: it proves a loss, or says why not."""

from __future__ import annotations

from typing import Final

from ckpt.aio.rpc import RpcClient
from ckpt.base.errors import PeerError
from ckpt.base.ids import CheckpointId, PayloadId, Rank
from ckpt.format.messages import DamageJudged, ReportDamage

JUDGE_TIMEOUT_S: Final = 600.0
"""To have every column of a payload, or every copy of an index, read whole."""


def have_judged(
    rpc: RpcClient, checkpoint: CheckpointId, payload: PayloadId | None, reason: str
) -> DamageJudged:
    """What became of damage in a payload, of what is read or of a home of it, or in the index
    (None). Blocks while all of it is read.

    Raises Unavailable, PeerError.
    """
    subject = payload or PayloadId(checkpoint, Rank(0))
    reading = checkpoint if subject.checkpoint != checkpoint else None
    message = ReportDamage(subject, reason, index=payload is None, reading=reading)
    judged, _ = rpc.call(message, timeout_s=JUDGE_TIMEOUT_S)
    if not isinstance(judged, DamageJudged):
        raise PeerError(f"the coordinator answered with a {type(judged).__name__}")
    return judged
