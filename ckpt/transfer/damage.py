"""Damage that a reader met, reported to the coordinator: it proves a loss, or says why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, Corrupt, Lost, Unavailable
from ckpt.base.ids import CheckpointId, PayloadId, Rank
from ckpt.format.messages.loading import DamageJudged, ReportDamage
from ckpt.protocol.losses import loss_text
from ckpt.transfer.index_source import IndexUnreadable
from ckpt.transfer.payload_finder import HomeUnreadable
from ckpt.transfer.read_job import PayloadDamaged

JUDGE_TIMEOUT_S: Final = 600.0
"""To have every column of a payload, or every copy of an index, read whole."""


def have_judged(rpc: RpcClient, checkpoint: CheckpointId, error: CkptError) -> DamageJudged:
    """What became of damage that was met while this checkpoint was read: in a payload, else in an
    index, its own or a home's. Blocks while all of it is read.

    Proved of a home, it is proved of this checkpoint as well. Raises Unavailable, PeerError.
    """
    match error:
        case PayloadDamaged():
            subject, index = error.payload, False
        case HomeUnreadable():
            subject, index = PayloadId(error.home, Rank(0)), True
        case _:
            subject, index = PayloadId(checkpoint, Rank(0)), True
    reading = checkpoint if subject.checkpoint != checkpoint else None
    message = ReportDamage(subject, error.message, index=index, reading=reading)
    return rpc.ask(message, DamageJudged, timeout_s=JUDGE_TIMEOUT_S)[0]


@contextmanager
def judging(rpc: RpcClient, checkpoint: CheckpointId) -> Iterator[None]:
    """Damage that is met within is judged: it becomes Lost when it is proved, else Unavailable."""
    try:
        yield
    except (PayloadDamaged, IndexUnreadable, Corrupt) as error:
        judged = have_judged(rpc, checkpoint, error)
        raise _verdict(judged, checkpoint, error) from error


def _verdict(judged: DamageJudged, checkpoint: CheckpointId, error: CkptError) -> CkptError:
    if judged.proved:
        return Lost(loss_text(checkpoint, judged.reason), hint="load an older step by its number")
    text = f"{checkpoint} cannot be read ({error.message}), which is not proved: {judged.reason}"
    return Unavailable(text, hint="again when all its targets answer")
