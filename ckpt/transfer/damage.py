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
    """What became of damage in a payload, or in the index (None). Blocks while all of it is read.

    Raises Unavailable, PeerError.
    """
    subject = payload or PayloadId(checkpoint, Rank(0))
    message = ReportDamage(subject, reason, index=payload is None)
    judged, _ = rpc.call(message, timeout_s=JUDGE_TIMEOUT_S)
    if not isinstance(judged, DamageJudged):
        raise PeerError(f"the coordinator answered with a {type(judged).__name__}")
    return judged
