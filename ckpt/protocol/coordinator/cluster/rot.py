"""Which columns of a target are damaged at rest, as far as it has said?"""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.format.messages.targets import Rot
from ckpt.protocol.coordinator.cluster.membership import Target


def rotten_columns(target: Target) -> set[ColumnId]:
    """Columns in which damage was found. They count, since most of each can be read, and are to be
    made again.
    """
    if target.scrub is None:
        return set()
    return {column for rot in target.scrub.rot if (column := _column_of(rot)) is not None}


def note_mended(target: Target, column: ColumnId) -> None:
    """It has said that it has the right bytes now; what it knows of itself it tells later."""
    if column not in rotten_columns(target):
        return
    assert target.scrub is not None
    left = tuple(rot for rot in target.scrub.rot if _column_of(rot) != column)
    count = target.scrub.rot_count - len(target.scrub.rot) + len(left)
    target.scrub = replace(target.scrub, rot=left, rot_count=count)


def _column_of(rot: Rot) -> ColumnId | None:
    """None: it is in a document."""
    if rot.rank is None or rot.column is None:
        return None
    return ColumnId(PayloadId(rot.checkpoint, Rank(rot.rank)), ColumnNumber(rot.column))
