"""Which columns of a target are damaged at rest, as far as it has said?"""

from __future__ import annotations

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.protocol.coordinator.cluster.membership import Target


def rotten_columns(target: Target) -> set[ColumnId]:
    """Columns in which damage was found. They count, since most of each can be read, and are to be
    made again elsewhere.
    """
    if target.scrub is None:
        return set()
    return {
        ColumnId(PayloadId(rot.checkpoint, Rank(rot.rank)), ColumnNumber(rot.column))
        for rot in target.scrub.rot
        if rot.rank is not None and rot.column is not None
    }
