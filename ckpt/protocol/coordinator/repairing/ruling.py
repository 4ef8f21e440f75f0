"""What people have said of repair: whether it goes, what it may take, and whether targets are
balanced; else the options count.

    asked --catalog--> counts, and is answered

Changes are folded in the order in which they were asked for. They are in the catalog alone: one
that is made again from the targets has none.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UnsetType
from msgspec.structs import replace

from ckpt.format.messages.repairs import (
    RepairLimits,
    RepairMeasured,
    RepairRules,
    RepairSet,
    SetRepair,
    check_limits,
)
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.said import RepairSaid
from ckpt.protocol.events import Session


class RepairRuling:
    """I know the rules in force."""

    def __init__(
        self,
        desk: Desk,
        options: RepairLimits,
        said: RepairRules,
        wall_s: Callable[[], float],
    ) -> None:
        """`options`: what counts of the limits that nobody has said. `wall_s`: what people see."""
        self._desk = desk
        self._options = options
        #: As they are durable; and with what is on its way to the catalog.
        self._said = self._coming = said
        self._wall_s = wall_s

    @property
    def said(self) -> RepairRules:
        return self._said

    @property
    def limits(self) -> RepairLimits:
        """The limits in force."""
        return self._limits(self._said)

    @property
    def is_paused(self) -> bool:
        return self._said.paused_at_s is not None

    def change(
        self, session: Session, request: int, message: SetRepair, then: Callable[[], None]
    ) -> None:
        """Change the rules; answered when that is durable, after `then`. Raises Refused for an
        invalid limit.
        """
        rules = self._changed(message)
        check_limits(self._limits(rules))
        self._coming = rules

        def durable() -> None:
            self._said = rules
            then()
            self._desk.send(session, request, RepairSet(rules))

        self._desk.persist((RepairSaid(rules),), durable)

    def balance(self, bytes_max: int | UnsetType, then: Callable[[], None]) -> None:
        """Record that a balance goes on from now on, or (UNSET) no longer; `then` runs when that is
        durable.
        """
        rules = self._coming = replace(self._coming, balance_bytes_max=bytes_max)

        def durable() -> None:
            self._said = rules
            then()

        self._desk.persist((RepairSaid(rules),), durable)

    def measured(self, found: RepairMeasured) -> None:
        """Record how fast lost columns were made again."""
        rules = self._coming = replace(self._coming, measured=found)

        def durable() -> None:
            self._said = rules

        self._desk.persist((RepairSaid(rules),), durable)

    # ----------------------------------------------------------------------- inside

    def _limits(self, rules: RepairRules) -> RepairLimits:
        floor, cap = rules.floor_bytes, rules.cap_bytes
        return RepairLimits(
            self._options.floor_bytes if floor is None else floor,
            self._options.cap_bytes if cap is None else cap,
        )

    def _changed(self, message: SetRepair) -> RepairRules:
        rules = self._coming
        if message.as_configured:
            rules = replace(rules, floor_bytes=None, cap_bytes=None)
        if message.floor_bytes is not None:
            rules = replace(rules, floor_bytes=message.floor_bytes)
        if message.cap_bytes is not None:
            rules = replace(rules, cap_bytes=message.cap_bytes)
        match message.paused, rules.paused_at_s:
            case True, None:
                rules = replace(rules, paused_at_s=self._wall_s())
            case False, _:
                rules = replace(rules, paused_at_s=None)
        return rules
