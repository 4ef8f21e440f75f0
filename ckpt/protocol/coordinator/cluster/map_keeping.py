"""The cluster's map, as the catalog has it, on every target that can keep one.

    what is known of a target, or its group, changes --durable--> a new version --> each live target
    that has another one, TARGETS_A_TICK at a time --durable there--> its answer

A target that comes says which map it has, by the digest of what that says: who has the same is sent
nothing, whichever coordinator it is from. Who removes a target for good hears it when so many
targets have the map that one of them is left where a payload can be read; nobody else waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ckpt.base.ids import CatalogPosition, TargetId
from ckpt.format.documents.cluster_map import MapEntry, encode_map, make_map
from ckpt.format.messages import Message
from ckpt.format.messages.targets import KeepMap, MapKept, RegisterTarget
from ckpt.protocol.coordinator.cluster.grouping import Grouping
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import Desk, Then
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.events import Buffer

TARGETS_A_TICK: Final = 32
"""Targets that get a new version in one tick, so that it costs no burst its place on the wire."""
PATIENCE_US: Final = 30_000_000
"""A target that has not answered by then is asked again."""
REST_US: Final = 5_000_000
"""Pause before a target that could not store it is asked again."""
WAIT_US: Final = 5_000_000
"""Nobody waits for longer: the catalog has the map."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Somebody waits until targets have a map."""

    number: int
    """Of that one, or a newer one."""
    copies: int
    until_us: int
    then: Then


class MapKeeper:
    """I send the map to targets."""

    def __init__(
        self, desk: Desk, members: Membership, policy: CoordinatorPolicy, keeps: Callable[[], bool]
    ) -> None:
        """`keeps`: anything is kept."""
        self._desk = desk
        self._members = members
        self._cluster = policy.cluster
        self._grouping = Grouping(desk, members, policy.code, keeps)
        #: The version of the seats, and the groups, that the document is of; None before there is
        #: one.
        self._made_of: tuple[int, Mapping[TargetId, int]] | None = None
        #: The newest map of which all is durable; empty before.
        self._document = self._digest = b""
        #: Of the newest map that was made, and of the newest of which all is durable.
        self._number = self._durable_number = 0
        #: The digest of what each target has, of those that keep a map at all.
        self._kept: dict[TargetId, bytes] = {}
        #: Who has been sent one and has not answered.
        self._asked: set[TargetId] = set()
        #: Until when those rest that could not store it.
        self._rests_us: dict[TargetId, int] = {}
        self._waiting: list[_Waiting] = []

    def when_kept(self, copies: int, then: Then) -> None:
        """Once so many targets have the map as it is now; once all have that can, or after WAIT_US,
        where that takes longer.
        """
        self.tick()
        until_us = self._desk.now_us + WAIT_US
        self._waiting.append(_Waiting(self._number, copies, until_us, then))
        self._look()

    def registered(self, target: Target, message: RegisterTarget) -> None:
        """Note which map a target has that registers; one of an earlier version keeps none."""
        self._asked.discard(target.id)
        self._rests_us.pop(target.id, None)
        if message.map is None:
            self._kept.pop(target.id, None)
        else:
            self._kept[target.id] = message.map

    def tick(self) -> None:
        """Send what is due, while the catalog is vouched for."""
        self._grouping.tick()
        if self._made_of != (self._members.seats.version, self._members.groups):
            self._make()
        self._spread()
        self._look()

    def _spread(self) -> None:
        lacking = (one for one in self._members.live() if self._lacks(one.id))
        for _, target in zip(range(TARGETS_A_TICK), lacking, strict=False):
            self._send(target)

    def _look(self) -> None:
        """Who waits for what is there now."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if self._is_kept(one) or self._desk.now_us >= one.until_us:
                one.then()
            else:
                self._waiting.append(one)

    def _is_kept(self, waiting: _Waiting) -> bool:
        if self._durable_number < waiting.number:
            return False
        live = [one.id for one in self._members.live() if one.id in self._kept]
        kept = sum(self._kept[id] == self._digest for id in live)
        return kept >= min(waiting.copies, len(live))

    def _make(self) -> None:
        seats, groups = self._members.seats, self._members.groups
        self._made_of = seats.version, groups
        self._number += 1
        number = self._number
        entries = tuple(
            MapEntry(
                seen.target, seen.domain, seen.directory, seen.incarnation, seen.standing.value
            )
            for seen in seats.all()
        )
        version = CatalogPosition(self._members.term, self._number)
        made = make_map(self._cluster, version, entries, groups)

        def durable() -> None:
            self._document, self._digest = encode_map(made), made.digest
            self._durable_number = number
            if self._waiting:
                self._spread()
                self._look()

        # All that it says was handed to the catalog before this.
        self._desk.persist((), durable)

    def _lacks(self, id: TargetId) -> bool:
        kept, rests = self._kept.get(id), self._rests_us.get(id, 0) > self._desk.now_us
        waits = rests or id in self._asked
        return bool(self._document) and not waits and kept not in (None, self._digest)

    def _send(self, target: Target) -> None:
        assert target.session is not None
        self._asked.add(target.id)
        answered = partial(self._answered, target.id, self._digest)
        self._desk.ask(
            target.session, KeepMap(self._members.term), answered, self._document,
            patience_us=PATIENCE_US,
        )  # fmt: skip

    def _answered(self, id: TargetId, digest: bytes, answer: Message, _bulk: Buffer) -> None:
        self._asked.discard(id)
        if not isinstance(answer, MapKept):
            self._rests_us[id] = self._desk.now_us + REST_US
        elif id in self._kept:
            self._kept[id] = digest
        self._look()
