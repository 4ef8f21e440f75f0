"""What stood when another coordinator led: stagers say what waits for them, targets what they hold.

    heard --all its targets have come, and hold it--> stands again, as before
      |
      `-- one does not hold it, is late or was taken for another --> what is held of it goes back

Invariants: only what is an orphan is taken, and is none from then on, so that nothing is counted
twice, however often it is claimed; a claim is taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.layout import Layout
from ckpt.format.messages.saving import ClaimSpace, Place, SpaceStands
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.coordinator.saving.space.orphans import Orphans
from ckpt.protocol.coordinator.saving.space.standing import StandingKey, StandingSpace
from ckpt.protocol.events import Session

CLAIM_WAIT_US: Final = 500_000
"""A save waits no longer for the targets that hold its space: by then they have dialed, or are away
and others are asked."""


def space_of(key: StandingKey, allotment: Allotment) -> SpaceStands:
    """As its stager hears it."""
    layout = allotment.layout
    places = tuple(place for _, place in sorted(allotment.columns.items()))
    return SpaceStands(
        key[0], str(layout.code), layout.payload_bytes, layout.cell_bytes, places,
        tuple(allotment.spares),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a stager believes to stand."""

    session: Session
    layout: Layout
    places: tuple[Place, ...]
    """Of the columns, then spares."""
    heard_us: int
    since_us: int
    """When its stager heard of it."""


class SpaceClaims:
    """I match space that targets hold with the stagers that claim it."""

    def __init__(
        self, desk: Desk, members: Membership, orphans: Orphans, standing: StandingSpace,
        adopt: Callable[[Place, int], None],
    ) -> None:  # fmt: skip
        """`adopt` counts a place, of so many bytes, as reserved by this coordinator."""
        self._desk = desk
        self._members = members
        self._orphans = orphans
        self._standing = standing
        self._adopt = adopt
        #: Those whose targets have not all come.
        self._claims: dict[StandingKey, _Claim] = {}

    def heard(self, session: Session, message: ClaimSpace) -> None:
        """Raises Refused for what no coordinator has said."""
        space, now_us = message.space, self._desk.now_us
        layout = Layout.said(space.code, space.payload_bytes, space.cell_bytes)
        places = (*space.places, *space.spares)
        targets = {place.target for place in places}
        if len(space.places) != layout.code.n or len(targets) != len(places):
            raise Refused(f"{len(targets)} targets do not hold the columns of {layout.code}")
        key = space.run, message.rank
        if self._standing.heard_again(key, session, places):
            return
        self._give_back(key)
        since_us = now_us - max(0, message.stood_us)
        self._claims[key] = _Claim(session, layout, places, now_us, since_us)
        self._try(key)

    def is_waiting(self, key: StandingKey) -> bool:
        """Whether a save of this rank should wait a moment for its claimed space. If not, the save
        gets other space, and the claim is given back."""
        claim = self._claims.get(key)
        if claim is None:
            return False
        if self._desk.now_us - claim.heard_us < CLAIM_WAIT_US:
            return True
        self._give_back(key)
        return False

    def target_came(self, target: TargetId) -> None:
        """A target has listed what it holds: try the claims on it again."""
        for key, claim in list(self._claims.items()):
            if any(place.target == target for place in claim.places):
                self._try(key)

    def tick(self) -> None:
        """Try every claim again; a target that is no longer expected holds nothing."""
        for key in list(self._claims):
            self._try(key)

    # ----------------------------------------------------------------------- inside

    def _try(self, key: StandingKey) -> None:
        claim = self._claims[key]
        missing = [place for place in claim.places if not self._orphans.has(place)]
        if not missing:
            del self._claims[key]
            self._take(key, claim)
        elif not all(self._is_coming(place) for place in missing):
            self._give_back(key)

    def _is_coming(self, place: Place) -> bool:
        target = self._members.targets.get(place.target)
        return target is not None and self._members.is_expected(target)

    def _take(self, key: StandingKey, claim: _Claim) -> None:
        layout = claim.layout
        allotment = Allotment(layout, file_bytes(layout, manifest_bytes_bound(layout)))
        for number, claimed in enumerate(claim.places):
            self._orphans.take(claimed)
            self._adopt(claimed, allotment.file_bytes)
            here = self._members.targets[claimed.target]
            place = replace(claimed, address=here.address, unix=here.unix)
            if number < layout.code.n:
                allotment.columns[ColumnNumber(number)] = place
                allotment.intended[ColumnNumber(number)] = place.target
            else:
                allotment.spares.append(place)
                allotment.asked_spares.add(place.target)
        allotment.heard_by, allotment.idle_since_us = claim.session, claim.since_us
        self._standing.put(key, allotment)

    def _give_back(self, key: StandingKey) -> None:
        """Nobody uses it: whom it waited for has said so."""
        claim = self._claims.pop(key, None)
        for place in claim.places if claim is not None else ():
            self._orphans.give_back(place)
