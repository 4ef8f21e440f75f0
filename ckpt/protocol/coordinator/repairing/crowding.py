"""Columns of a payload that lie too many in one failure domain go to others.

A commit keeps the rule (P13), but targets move to other hosts, and one comes back that nobody
waited for any more, beside a column that was made again in its domain.

    too many in a domain, and another has room for one --> due as a drain's moves are: it counts
                                                           where it is until the copy is named

What lacks a column is made whole first, and where no domain has a place the payload stays as it is.
All is looked at when targets came, went or moved, in slices, so that nobody waits until a million
columns were looked at; else only what has other holders since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.base.units import US_PER_S
from ckpt.plan.placement import DomainKey, domain_key
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.policy import SpreadRule

LOOK_US: Final = 10 * US_PER_S
LOOKED_AT_ONCE: Final = 4096
"""Payloads that are looked at in one turn, in 4 ms; the last checkpoint of them may have more."""

Domains = Mapping[TargetId | None, DomainKey]


class Crowding:
    """I look now and then, and say which columns have to go."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, rule: SpreadRule,
        *, mends: bool,
    ) -> None:  # fmt: skip
        """`mends`: what is lost is made again at all."""
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._rule = rule
        self._mends = mends
        self._is_busy = False
        #: When to look next; None before the first tick. Who has just begun has more urgent work.
        self._look_us: int | None = None
        #: Under which domains all was looked at.
        self._seen: Domains = {}

    def tick(self) -> None:
        now_us = self._desk.now_us
        if self._look_us is None:
            self._look_us = now_us + LOOK_US
        if not self._mends or self._is_busy or now_us < self._look_us:
            return
        self._look_us, self._is_busy = now_us + LOOK_US, True
        domains, moving = self._domains(), self._checkpoints.moving
        others = moving.take_replaced() | {column.payload.checkpoint for column in moving.crowded}
        if domains == self._seen:
            ids = sorted(others)
        else:
            ids = [one.id for one in self._checkpoints.all()]
        self._seen = domains
        self._look_on(iter(ids), domains, {})

    def _domains(self) -> Domains:
        """Of the targets whose columns stay where they are."""
        return {
            target.id: domain_key(target.id, target.domain, self._rule.level)
            for target in self._members.live()
            if target.stays
        }

    def _look_on(
        self, ids: Iterator[CheckpointId], domains: Domains, found: dict[ColumnId, TargetId]
    ) -> None:
        """The next slice. Who moves meanwhile is seen at the next look."""
        looked = 0
        for checkpoint in filter(None, map(self._checkpoints.get, ids)):
            if checkpoint.is_needed:
                found.update(self._crowded(checkpoint, domains))
                looked += len(checkpoint.placement or ())
            if looked >= LOOKED_AT_ONCE:
                self._desk.later(partial(self._look_on, ids, domains, found))
                return
        self._is_busy = False
        self._checkpoints.moving.crowded = found

    def _crowded(
        self, checkpoint: KeptCheckpoint, domains: Domains
    ) -> Iterator[tuple[ColumnId, TargetId]]:
        for rank, placed in (checkpoint.placement or {}).items():
            held = [domains.get(id) for id in placed.columns]
            # Nearly all are as they should be: one comparison.
            if len(set(held)) < len(held):
                for j in self._too_many(held, domains):
                    holder = placed.columns[j]
                    assert holder is not None, "it lies in a domain"
                    yield ColumnId(PayloadId(checkpoint.id, rank), j), holder

    def _too_many(self, held: list[DomainKey | None], domains: Domains) -> list[ColumnNumber]:
        """Data goes ahead of parity: it is read where it is, parity is made of k others."""
        counts, most = Counter(held), self._rule.max_per_domain
        targets = Counter(domains.values())
        room = sum(max(0, min(most, count) - counts[key]) for key, count in targets.items())
        going: list[ColumnNumber] = []
        for j, key in enumerate(held):
            if key is not None and counts[key] > most and len(going) < room:
                counts[key] -= 1
                going.append(ColumnNumber(j))
        return going
