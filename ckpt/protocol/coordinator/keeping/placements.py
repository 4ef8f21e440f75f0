"""Which target holds which column of a committed checkpoint: as its index says, but for what has
moved since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ckpt.base.ids import CheckpointId, ColumnNumber, Rank, TargetId
from ckpt.format.layout import Layout
from ckpt.protocol.coordinator.cluster.holdings import ProvedColumns
from ckpt.protocol.coordinator.cluster.membership import Membership


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
Holdings = tuple[tuple[ProvedColumns, int], ...]
"""Of each live target that has something of a generation: what, and its revision."""


class PlacementMemory:
    """I remember of each checkpoint what takes a look at all its payloads: ranks of a crowd ask for
    the same within a moment. I forget it when my owner says that its columns have other holders,
    and see for myself what targets have of it.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._named: dict[CheckpointId, frozenset[TargetId]] = {}
        #: What was found, and under which holdings.
        self._whole: dict[CheckpointId, tuple[Holdings, bool]] = {}

    def named(self, id: CheckpointId, placement: Placement) -> frozenset[TargetId]:
        """All that its placement names."""
        found = self._named.get(id)
        if found is None:
            columns = (id for payload in placement.values() for id in payload.columns)
            found = self._named[id] = frozenset(each for each in columns if each is not None)
        return found

    def is_whole(self, id: CheckpointId, count: Callable[[], bool]) -> bool:
        """What `count` says, which hangs on its placement and on what live targets have of it."""
        live = (target.proved for target in self._members.live())
        seen = tuple((proved, proved.revision(id)) for proved in live if proved.has(id))
        known = self._whole.get(id)
        if known is None or known[0] != seen:
            known = self._whole[id] = seen, count()
        return known[1]

    def forget(self, id: CheckpointId) -> None:
        """Its columns have other holders, or it goes."""
        self._named.pop(id, None)
        self._whole.pop(id, None)
