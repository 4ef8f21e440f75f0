"""Which target holds which column of a committed checkpoint: as its index says, but for what has
moved since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckpt.base.ids import ColumnNumber, Rank, TargetId
from ckpt.format.layout import Layout


@dataclass(frozen=True, slots=True)
class PlacedPayload:
    """Where the columns of one payload are, and what is a right one."""

    columns: tuple[TargetId | None, ...]
    """The accepted target of each; None where a column is missing."""
    manifest_digest: bytes
    """xxh3-128 of the rank's manifest, which has the checksums of all columns."""
    layout: Layout
    """How the payload is cut. Ranks share it."""

    def moved(self, holders: Mapping[ColumnNumber, TargetId]) -> PlacedPayload:
        """The same with other holders of these columns."""
        columns = (holders.get(ColumnNumber(j), id) for j, id in enumerate(self.columns))
        return PlacedPayload(tuple(columns), self.manifest_digest, self.layout)


Placement = dict[Rank, PlacedPayload]
