"""Which k columns of a payload are read to make lost ones again? Those whose targets gave least.

A read takes data columns, and parity where one is lost, whoever holds them. Who holds more parity
than others, or is named last, would give less; and what is spared here, a save may use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpt.base.ids import ColumnNumber, TargetId


class SourceLoads:
    """I count what each target gave. `choose` counts at once: what is chosen will be read."""

    def __init__(self) -> None:
        self._bytes: dict[TargetId, int] = {}

    def choose(
        self, columns: Sequence[TargetId | None], lost: Collection[ColumnNumber], k: int,
        column_bytes: int,
    ) -> frozenset[ColumnNumber]:  # fmt: skip
        """Which columns of a payload are to be spared. None where only k are there, or fewer."""
        holders = {
            ColumnNumber(j): target
            for j, target in enumerate(columns)
            if target is not None and j not in lost
        }
        # One that is new, or was away, owes nobody what the others gave before.
        least = min((self._bytes[id] for id in holders.values() if id in self._bytes), default=0)
        for target in holders.values():
            self._bytes.setdefault(target, least)
        by_load = sorted(holders, key=lambda j: (self._bytes[holders[j]], j))
        for j in by_load[:k]:
            self._bytes[holders[j]] += column_bytes
        return frozenset(by_load[k:])
