"""Which target holds which column of a committed checkpoint, as its index says."""

from __future__ import annotations

from ckpt.base.ids import Rank, TargetId

Placement = dict[Rank, tuple[TargetId | None, ...]]
"""By rank: the accepted target of each column, None where a column is missing."""
