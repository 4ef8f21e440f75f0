"""Placement groups stay what they are while targets come and go (ckpt.plan.grouping).

    first checkpoint    the groups that placement has dealt out so far are noted
    a target is new, has moved or was removed    those of all others stay --durable--> they count

Before anything is kept, and where one group has all targets, nothing is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckpt.base.ids import TargetId
from ckpt.erasure.code import Code
from ckpt.plan.grouping import regrouped
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.said import TargetsGrouped


class Grouping:
    """I look on every tick, and change the groups that Membership knows."""

    def __init__(
        self, desk: Desk, members: Membership, code: Code, keeps: Callable[[], bool]
    ) -> None:
        """`keeps`: anything is kept."""
        self._desk = desk
        self._members = members
        self._code = code
        self._keeps = keeps
        #: Of which roster the groups are, which may be on their way to the catalog.
        self._made_of: object = None
        self._coming: Mapping[TargetId, int] = members.groups

    def tick(self) -> None:
        roster = self._members.roster
        if roster == self._made_of or self._desk.full is not None:
            return
        if not (self._coming or self._keeps()):
            return
        self._made_of = roster
        domains = {target.id: target.domain for target in self._members.all()}
        groups = regrouped(self._code, self._coming, domains)
        if groups == self._coming:
            return
        self._coming = groups

        def durable() -> None:
            self._members.groups = groups

        self._desk.persist((TargetsGrouped(groups),), durable)
